"""The endpoints that generate nothing: models, token counts, metrics, health."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs

from llmlab import __version__
from llmlab.api.models_page import find_model, model_object, models_page
from llmlab.gateway.backend import Model
from llmlab.gateway.exchange import Exchange
from llmlab.gateway.failover import Failover
from llmlab.gateway.generate import authenticated, decoded, read_json
from llmlab.gateway.metrics import CONTENT_TYPE
from llmlab.gateway.openapi import openapi_document

if TYPE_CHECKING:
    from llmlab.gateway.app import Gateway


@dataclass(frozen=True, slots=True)
class Lookups:
    """Handlers of one gateway; each takes the exchange it is to answer, and raises ``ApiError``."""

    gateway: Gateway

    async def models(self, exchange: Exchange) -> None:
        """``GET /v1/models``: one page that both protocols' clients can read."""
        await authenticated(self.gateway, exchange)
        query = parse_qs(exchange.scope["query_string"].decode("latin-1"))
        first = {name: query[name][0] for name in ("limit", "after_id", "before_id") if name in query}
        limit = _number(first.pop("limit")) if "limit" in first else None
        await exchange.json(models_page(await self._models(), limit, **first))

    async def model(self, exchange: Exchange) -> None:
        """``GET /v1/models/{id}``; an id may hold slashes."""
        await authenticated(self.gateway, exchange)
        await exchange.json(find_model(await self._models(), exchange.scope["path_params"]["id"]))

    async def _models(self) -> list[dict[str, Any]]:
        """The objects of all models, each id once: the first backend's."""
        found: dict[str, dict[str, Any]] = {}
        for models in await self.gateway.router.models():
            for model in models:
                found.setdefault(model.id, _object(model))
        return list(found.values())

    async def count_tokens(self, exchange: Exchange) -> None:
        """``POST /v1/messages/count_tokens``: the prompt's length as it would be served, after context edits."""
        identity = await authenticated(self.gateway, exchange)
        body = await read_json(self.gateway, exchange)
        codec = self.gateway.anthropic
        conversation = await decoded(self.gateway, exchange, codec.decode_count, body)
        choice = await self.gateway.router.pick(conversation, identity.salt)
        backend = Failover(self.gateway.router, choice, identity.salt, exchange.log)
        after, before = await exchange.guarded(backend.count_tokens(conversation), self.gateway.stop)
        edits = {"context_management": {"original_input_tokens": before}} if conversation.edits else {}
        await exchange.json({"input_tokens": after} | edits)

    async def metrics(self, exchange: Exchange) -> None:
        """``GET /metrics``, in the Prometheus exposition format."""
        await authenticated(self.gateway, exchange)
        await self.gateway.metrics.ask_backends()
        await exchange.writer.whole(200, {"content-type": CONTENT_TYPE}, self.gateway.metrics.text())

    async def health(self, exchange: Exchange) -> None:
        """``GET /health``: 200 while requests are accepted, 503 once the server is stopping."""
        stopping = self.gateway.stopping
        body = {"status": "stopping" if stopping else "ok", "version": __version__}
        await exchange.json(body, status=503 if stopping else 200)

    async def openapi(self, exchange: Exchange) -> None:
        """``GET /openapi.json``: a description of the endpoints."""
        await exchange.json(openapi_document())

    async def hello(self, exchange: Exchange) -> None:
        """``HEAD /api/hello``: some clients warm a connection with it."""
        await exchange.writer.whole(200, {}, b"")


def _object(model: Model) -> dict[str, Any]:
    return model_object(
        model.id,
        model.created,
        owned_by=model.owned_by,
        max_input_tokens=model.max_input_tokens,
        max_tokens=model.max_tokens,
    )


def _number(text: str) -> int:
    """A query parameter; what is no number is out of every range."""
    return int(text) if text.isascii() and text.isdecimal() and len(text) < 10 else -1
