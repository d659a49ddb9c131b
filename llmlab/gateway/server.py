"""Running a gateway on a socket, in a thread of its own."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import socket
import sys
import threading
from collections.abc import Callable, Coroutine
from typing import Any

import uvicorn

from llmlab.errors import InvalidParameter, LabError
from llmlab.gateway.app import Gateway
from llmlab.gateway.faults import Faults
from llmlab.gateway.http_protocol import BoundedHttp
from llmlab.gateway.request_log import RequestLog
from llmlab.gateway.settings import Settings

KEEP_ALIVE_S = 30
BACKLOG = 512
START_TIMEOUT_S = 30.0
END_GRACE_S = 2.0
"""How long (s) ended requests may take to send their last frame before their connections are cut."""


class Server:
    """Serves one gateway. Use it as a context manager, or :meth:`start` and :meth:`close` it; it starts once.

    The event loop runs on a thread of its own, so a notebook's cells go on. ``close`` stops accepting, gives open
    requests ``settings.drain_s`` seconds, then ends the rest with an error (529, or an SSE error in a stream).
    ``log`` is called with one line about each finished request, on the server's thread.
    """

    def __init__(
        self, gateway: Gateway, settings: Settings | None = None, *, log: Callable[[str], None] | None = None
    ) -> None:
        self.gateway = gateway
        self._app = gateway.app if log is None else RequestLog(gateway, log)
        self.settings = gateway.settings if settings is None else settings
        self._socket: socket.socket | None = None
        self._server: uvicorn.Server | None = None
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._ready = threading.Event()
        self._failure: BaseException | None = None

    @property
    def port(self) -> int:
        """The port it listens on; known once it has started."""
        if self._socket is None:
            raise InvalidParameter("the server has not started: call start(), or use it in a with statement")
        return self._port

    @property
    def url(self) -> str:
        """Its address, as ``ANTHROPIC_BASE_URL`` wants it; OpenAI's clients need ``/v1`` after it."""
        host = self.settings.host
        shown = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
        return f"http://[{shown}]:{self.port}" if ":" in shown else f"http://{shown}:{self.port}"

    @property
    def faults(self) -> Faults:
        """Failures to be made on purpose."""
        return self.gateway.faults

    @property
    def is_running(self) -> bool:
        """Whether the server's thread is alive."""
        return self._thread is not None and self._thread.is_alive()

    def start(self) -> Server:
        """Listen, and return once connections are accepted. Raises ``LabError`` when the port is in use."""
        if self._thread is not None:
            raise InvalidParameter("a server starts once: make another")
        self._socket = listen(self.settings.host, self.settings.port)
        self._port = self._socket.getsockname()[1]
        self._thread = threading.Thread(target=self._run, name="llmlab-gateway", daemon=True)
        self._thread.start()
        if not self._ready.wait(START_TIMEOUT_S) or self._failure is not None:
            raise LabError(f"the server did not start: {self._failure or 'no answer from its thread'}")
        return self

    def close(self, drain_s: float | None = None) -> None:
        """Stop as described above, and wait until it is done. Harmless before the start and after the end."""
        self.begin_close(drain_s)
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()

    def begin_close(self, drain_s: float | None = None) -> None:
        """Start stopping without waiting for it; ``drain_s`` (s) replaces the settings' own.

        Calling it again with 0 ends an unfinished drain.
        """
        drain_s = self.settings.drain_s if drain_s is None else drain_s
        if self.is_running and self._loop is not None:
            with contextlib.suppress(RuntimeError):  # the loop ended by itself meanwhile
                self._loop.call_soon_threadsafe(self._stop_soon, drain_s)

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until the server has stopped; whether it has (``timeout`` in s)."""
        if self._thread is not None:
            self._thread.join(timeout)
        return not self.is_running

    def __enter__(self) -> Server:
        return self if self.is_running else self.start()

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        names = ", ".join(backend.name for backend in self.gateway.backends)
        return f"<Server {self.url if self.is_running else 'stopped'}: {names}>"

    # -- on the server's thread -----------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            asyncio.run(self._serve())
        except BaseException as error:
            self._failure = error
        finally:
            self._ready.set()
            self._socket.close()

    async def _serve(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._tasks: set[asyncio.Task] = set()
        self._server = uvicorn.Server(self._config())
        self._spawn(self._announce())
        try:
            await self._server.serve(sockets=[self._socket])
        finally:
            await self.gateway.aclose()

    def _config(self) -> uvicorn.Config:
        """No access log, no signal handlers (the thread is not the main one), proxies not trusted.

        What goes wrong in the application is reported by the gateway itself, so uvicorn's own log has nothing to add.
        """
        return uvicorn.Config(
            self._app,
            http=BoundedHttp,
            ws="none",
            lifespan="off",
            log_config=None,
            log_level="critical",
            access_log=False,
            server_header=False,
            proxy_headers=False,
            timeout_keep_alive=KEEP_ALIVE_S,
            backlog=BACKLOG,
        )

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _announce(self) -> None:
        while not self._server.started:
            await asyncio.sleep(0.005)
        self._ready.set()

    def _stop_soon(self, drain_s: float) -> None:
        self.gateway.stopping = True
        self._server.config.timeout_graceful_shutdown = drain_s + 2 * END_GRACE_S
        self._server.should_exit = True
        self._spawn(self._end_open(drain_s))

    async def _end_open(self, drain_s: float) -> None:
        """End what is still open after ``drain_s`` seconds; cut off whoever does not even read the error."""
        await asyncio.sleep(drain_s)
        self.gateway.stop.set()
        await asyncio.sleep(END_GRACE_S)
        for connection in list(self._server.server_state.connections):
            connection.transport.abort()


def listen(host: str, port: int) -> socket.socket:
    """A listening socket. Raises ``LabError`` when the address cannot be had, in one line that says what to do."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # asyncio switches Nagle's delay off only where the protocol is named; with it a small frame can wait 40 ms
    found = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        if sys.platform != "win32":  # there it would let two servers share the port
            found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        found.bind((host, port))
        found.listen(BACKLOG)
    except (OSError, OverflowError) as error:
        found.close()
        in_use = getattr(error, "errno", None) == errno.EADDRINUSE
        problem = "the port is in use: stop the other server, or take another port (0 finds a free one)"
        raise LabError(f"cannot listen on {host}:{port}: {problem if in_use else error}") from error
    return found
