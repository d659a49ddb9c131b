"""The gateway: everything between a socket and the backends."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, MutableMapping, Sequence
from typing import Any, NoReturn

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.routing import Route

from llmlab.api.anthropic.codec import AnthropicCodec
from llmlab.api.errors import ApiError
from llmlab.api.openai.codec import OpenAICodec
from llmlab.errors import InvalidParameter
from llmlab.gateway.admission import Admission
from llmlab.gateway.auth import KeyRing, check_local
from llmlab.gateway.backend import Backend
from llmlab.gateway.body import READ_TIMEOUT_S
from llmlab.gateway.disconnect import ClientLeft, Receive
from llmlab.gateway.exchange import Exchange, as_api_error
from llmlab.gateway.faults import ConnectionDropped, Faults
from llmlab.gateway.generate import Generate
from llmlab.gateway.lookups import Lookups
from llmlab.gateway.metrics import Metrics
from llmlab.gateway.rate_limit import RateLimiter
from llmlab.gateway.response import Send
from llmlab.gateway.routing import Router
from llmlab.gateway.settings import Settings
from llmlab.trace.recorder import Recorder

Scope = MutableMapping[str, Any]
EXCHANGE = "llmlab.exchange"
ALIASES = ("/messages", "/chat/completions")
"""Paths for clients whose base URL lacks ``/v1``."""


class Gateway:
    """Serves two wire formats from any number of backends; ``app`` is the ASGI application.

    It belongs to one event loop: that of the server, or of the test, that runs ``app``. Raises ``InvalidParameter``
    without a backend, for two of one name, and for a keys file that cannot be used.
    """

    def __init__(self, backends: Sequence[Backend], settings: Settings, recorder: Recorder) -> None:
        names = [backend.name for backend in backends]
        if not names or len(set(names)) < len(names):
            raise InvalidParameter(f"backends {names} must be at least one, with different names")
        self.backends, self.settings, self.recorder = tuple(backends), settings, recorder
        self.keys = KeyRing.load(settings.keys_file)
        self.anthropic, self.openai = AnthropicCodec(), OpenAICodec()
        self.limiter = RateLimiter(settings)
        self.router = Router(self.backends, settings)
        self.admission = Admission(settings.max_open)
        self.metrics = Metrics(self.backends)
        self.faults = Faults(settings.allow_faults)
        self.read_timeout_s = READ_TIMEOUT_S
        self.stopping = False  # new requests are refused
        self.stop = asyncio.Event()  # open requests are ended
        self.app = self._application()

    async def aclose(self) -> None:
        """Refuse new requests, end the open ones, and let go of the backends' connections."""
        self.stopping = True
        self.stop.set()
        for backend in self.backends:
            await backend.aclose()

    def _application(self) -> Starlette:
        lookups = Lookups(self)
        messages, chat = Generate(self, self.anthropic), Generate(self, self.openai)
        routes = [
            _route("/v1/messages", messages, "POST"),
            _route("/messages", messages, "POST"),
            _route("/v1/messages/count_tokens", lookups.count_tokens, "POST"),
            _route("/v1/chat/completions", chat, "POST"),
            _route("/chat/completions", chat, "POST"),
            _route("/v1/models", lookups.models, "GET"),
            _route("/v1/models/{id:path}", lookups.model, "GET"),
            _route("/metrics", lookups.metrics, "GET"),
            _route("/health", lookups.health, "GET"),
            _route("/openapi.json", lookups.openapi, "GET"),
            _route("/api/hello", lookups.hello, "GET"),
        ]
        app = Starlette(
            routes=routes,
            middleware=[Middleware(Exchanges, gateway=self)],
            exception_handlers={HTTPException: _refuse},
        )
        app.router.redirect_slashes = False
        return app


class Endpoint:
    """An ASGI application that hands the exchange of a request to a handler."""

    def __init__(self, handler: Callable[[Exchange], Awaitable[None]]) -> None:
        self.handler = handler

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        scope[EXCHANGE].scope = scope  # the router has added path parameters to it
        await self.handler(scope[EXCHANGE])


def _route(path: str, handler: Callable[[Exchange], Awaitable[None]], method: str) -> Route:
    return Route(path, Endpoint(handler), methods=[method])


async def _refuse(request: Any, error: HTTPException) -> NoReturn:
    """What the router could not place, as an error of ours."""
    path = request.scope["path"][:200]
    if error.status_code == 405:
        headers = dict(error.headers or {})
        message = f"{path} does not take {request.scope['method']}: use {headers.get('Allow', 'another method')}"
        raise ApiError("invalid_request_error", message, status=405, headers=headers)
    hint = ": the client adds /v1 itself, leave it out of base_url" if path.startswith("/v1/v1/") else ""
    raise ApiError("not_found_error", f"there is no {path} here{hint}. There are {_listed(request.app.routes)}")


def _listed(routes: Sequence[Route]) -> str:
    """The paths under each method, as in ``POST /v1/messages; GET /health``; names of one handler count once."""
    found: dict[str, list[str]] = {"POST": [], "GET": []}
    for route in routes:
        if route.path not in ALIASES:
            found["POST" if "POST" in route.methods else "GET"].append(route.path.replace(":path", ""))
    return "; ".join(f"{method} {', '.join(paths)}" for method, paths in found.items())


class Exchanges:
    """The outermost layer: makes the exchange, and turns every way out of it into a response or a record."""

    def __init__(self, app: Callable, gateway: Gateway) -> None:
        self.app, self.gateway = app, gateway
        self.is_open = not len(gateway.keys)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request; other kinds of connection are left to the application inside."""
        if scope["type"] != "http":
            return await self.app(scope, receive, send)
        exchange = Exchange(scope, receive, send, self.gateway.recorder)
        scope[EXCHANGE] = exchange
        try:
            await self._serve(exchange, scope, receive, send)
        finally:
            exchange.end()

    async def _serve(self, exchange: Exchange, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            if self.is_open:
                check_local(exchange.headers)
            await self.app(scope, receive, send)
        except ClientLeft:
            self._note_leaving(exchange, "the client closed the connection")
        except asyncio.CancelledError:
            self._note_leaving(exchange, "the task was cancelled")
            raise
        except ConnectionDropped:
            exchange.outcome = "dropped"  # the server closes a connection whose response is left unfinished
        except Exception as error:
            await exchange.fail(as_api_error(error))

    def _note_leaving(self, exchange: Exchange, reason: str) -> None:
        exchange.outcome = "disconnected"
        exchange.log.event("disconnect", reason, size=exchange.writer.sent_bytes)
