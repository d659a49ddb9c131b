"""A proxy that makes distance visible on one machine: it delays, slows, buffers, splits and drops, and says so.

Nothing it does is a measurement of a network. Every effect is recorded as injected.
"""

from __future__ import annotations

import asyncio
import ssl
import threading
from collections.abc import Callable, Coroutine
from contextlib import suppress
from dataclasses import replace
from time import perf_counter_ns
from typing import Any
from urllib.parse import SplitResult, urlsplit

from llmlab.client.certificate import LocalCertificate, make_certificate
from llmlab.client.proxy_link import Effects, Link, Report
from llmlab.client.wire import is_loopback
from llmlab.errors import InvalidParameter, ProxyFailed
from llmlab.trace.events import Stage, WireEvent
from llmlab.trace.recorder import Recorder

HOST = "127.0.0.1"
HANDSHAKE_TIMEOUT_S = 60.0

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class Proxy:
    """Listens on this machine and passes connections on to ``target_url``, which must be on it too.

    ``rtt_s``, ``bandwidth``, ``buffer_response``, ``split`` and ``drop_after`` are those of :class:`Effects`; at most
    ``drops`` connections are dropped, all of them when ``None``. ``tls=True`` encrypts the way to the proxy with a
    certificate made at start (``certificate.client_context()`` trusts it), so that the handshake and what reuse of
    connections saves can be seen. ``tls`` may also be such a certificate.

    ``connections`` and ``requests`` count what passed; a request begins when the client speaks after an answer.
    ``handshakes`` are seconds from a connection's first bytes until its encryption stood, injected delays included.
    With a ``recorder`` each effect is a :class:`WireEvent` of kind ``fault`` with text ``injected`` on side ``proxy``.
    Runs on a thread of its own until :meth:`close`.

    Raises ``InvalidParameter`` for a target elsewhere or a value out of range, ``MissingExtra`` when ``tls=True`` and
    no certificate can be made, ``ProxyFailed`` when no port can be opened.
    """

    def __init__(
        self,
        target_url: str,
        *,
        rtt_s: float = 0.0,
        bandwidth: float | None = None,
        buffer_response: bool = False,
        split: int | None = None,
        drop_after: int | None = None,
        drops: int | None = None,
        tls: bool | LocalCertificate = False,
        recorder: Recorder | None = None,
    ) -> None:
        self._target = _local_target(target_url)
        self.effects = _checked(
            Effects(
                rtt_s=rtt_s, bandwidth=bandwidth, buffer_response=buffer_response, split=split, drop_after=drop_after
            )
        )
        self._drops_left = drops
        self.certificate = make_certificate() if tls is True else tls or None
        self._tls: ssl.SSLContext | None = self.certificate.server_context() if self.certificate else None
        self._recorder = recorder
        self.connections = self.requests = 0
        self.handshakes: list[float] = []
        self._links: dict[int, tuple[str, Link]] = {}  # by the port from which a link speaks to the TLS side
        self._tasks: set[asyncio.Future[None]] = set()
        self._ports: list[int] = []  # the one clients use, then the TLS side's
        self._ready = threading.Event()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._serve, name="llmlab-proxy", daemon=True)
        self._thread.start()
        self._ready.wait()
        if not self._ports:
            raise ProxyFailed("the proxy could not listen on this machine; its thread's error is on stderr")

    @property
    def url(self) -> str:
        """What a client uses in place of the target's URL."""
        return f"{'https' if self._tls else 'http'}://{HOST}:{self._ports[0]}{self._target.path.rstrip('/')}"

    @property
    def reused(self) -> int:
        """Requests that found their connection open already."""
        return max(self.requests - self.connections, 0)

    def __enter__(self) -> Proxy:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Stop listening and close all connections. May be called again."""
        with suppress(RuntimeError):  # the loop has ended already
            self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join()

    # -- on the proxy's thread ------------------------------------------------------------------------------

    def _serve(self) -> None:
        try:
            with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
                runner.run(self._main())
        finally:
            self._ready.set()

    async def _main(self) -> None:
        self._stop = asyncio.Event()
        servers = [await asyncio.start_server(self._as_task(self._accept), HOST, 0)]
        if self._tls is not None:
            servers.append(await asyncio.start_server(self._as_task(self._accept_tls), HOST, 0))
        self._ports = [server.sockets[0].getsockname()[1] for server in servers]
        self._ready.set()
        await self._stop.wait()
        for server in servers:
            server.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _as_task(self, serve: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
        """Each connection is a task of ours, because asyncio's own are reported as errors when they are cancelled."""

        def start(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            task = asyncio.ensure_future(serve(reader, writer))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

        return start

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        wire_id = f"proxy-{self.connections}"
        if self._tls is None:
            await self._link((reader, writer), self._address, self._effects_now(), wire_id, counts=True)
        else:
            effects = self._effects_now().without_buffer()
            await self._link((reader, writer), (HOST, self._ports[1]), effects, wire_id, counts=False)

    async def _accept_tls(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """The target's side of an encrypted connection, behind the one that injects delays."""
        start = perf_counter_ns()
        try:
            await writer.start_tls(self._tls, ssl_handshake_timeout=HANDSHAKE_TIMEOUT_S)
        except (ssl.SSLError, OSError):
            writer.close()
            return
        wire_id, outer = self._links[writer.get_extra_info("peername")[1]]
        self._note_handshake(wire_id, outer, writer, start)
        effects = Effects(buffer_response=self.effects.buffer_response)
        await self._link((reader, writer), self._address, effects, wire_id, counts=True)

    async def _link(
        self, client: Streams, address: tuple[str, int], effects: Effects, wire_id: str, *, counts: bool
    ) -> None:
        try:
            target = await asyncio.open_connection(*address)
        except OSError as error:
            self._emit(wire_id, "error", "", 0, f"target: {type(error).__name__}", None)
            client[1].close()
            return
        port = target[1].get_extra_info("sockname")[1]
        link = Link(client, target, effects, self._reporter(wire_id), self._count if counts else _ignore)
        self._links[port] = (wire_id, link)
        try:
            await link.run()
        finally:
            del self._links[port]

    @property
    def _address(self) -> tuple[str, int]:
        return self._target.hostname or HOST, self._target.port or 80

    def _effects_now(self) -> Effects:
        """The effects on a new connection: drops may be used up."""
        if self.effects.drop_after is None or self._drops_left is None:
            return self.effects
        self._drops_left -= 1
        return self.effects if self._drops_left >= 0 else replace(self.effects, drop_after=None)

    def _count(self) -> None:
        self.requests += 1

    def _reporter(self, wire_id: str) -> Report:
        def report(name: str, direction: str, size: int) -> None:
            self._emit(wire_id, "fault", direction, size, name, "injected")

        return report

    def _emit(self, wire_id: str, kind: str, direction: str, size: int, name: str, text: str | None) -> None:
        if self._recorder is not None and self._recorder.enabled:
            self._recorder.emit(WireEvent(perf_counter_ns(), wire_id, "proxy", kind, direction, size, name, text))

    def _note_handshake(self, wire_id: str, outer: Link, writer: asyncio.StreamWriter, start: int) -> None:
        began = outer.first_bytes_at
        assert began is not None, "a handshake begins with the client's bytes"
        self.handshakes.append(asyncio.get_running_loop().time() - began)
        if self._recorder is not None and self._recorder.enabled:
            session = writer.get_extra_info("ssl_object")
            details = {"version": session.version(), "cipher": session.cipher()[0], "seconds": self.handshakes[-1]}
            reason = "a new connection agrees on keys before its first request"
            self._recorder.emit(
                Stage(start, perf_counter_ns(), wire_id, "proxy", "tls handshake", "ok", reason, details)
            )


def _ignore() -> None:
    """Encrypted bytes do not show where requests begin."""


def _local_target(url: str) -> SplitResult:
    parts = urlsplit(url)
    if parts.scheme != "http" or not is_loopback(url):
        raise InvalidParameter(f"{url!r} must be an http:// address on this machine, such as http://127.0.0.1:8000")
    return parts


def _checked(effects: Effects) -> Effects:
    if not 0 <= effects.rtt_s <= 60:
        raise InvalidParameter(f"rtt_s={effects.rtt_s} must be 0 to 60 seconds")
    for name, least in (("bandwidth", 1), ("split", 1), ("drop_after", 0)):
        value = getattr(effects, name)
        if value is not None and not least <= value < float("inf"):
            raise InvalidParameter(f"{name}={value} must be at least {least}")
    return effects
