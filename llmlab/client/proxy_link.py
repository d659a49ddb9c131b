"""One connection through the teaching proxy: what is done to the bytes on their way."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from enum import Enum

import h11

READ_SIZE = 16_384
PACKET = 1_400
"""Bytes that pass a slow line as one piece, about what an Ethernet frame carries."""
MAX_QUEUED = 64
"""Pieces on their way in one direction; a sender that is faster has to wait."""

Report = Callable[[str, str, int], None]
"""Called with the name of an injected effect, the direction (``sent`` is towards the target), and bytes concerned."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Effects:
    """What a proxy injects. ``rtt_s``: added round-trip time, half in each direction, and one more round trip before
    the first bytes of a connection for the TCP handshake, which the operating system completes at once.
    ``bandwidth``: bytes per second in each direction. ``buffer_response``: a response is passed on when it is complete.
    ``split``: response bytes are written in pieces of this size. ``drop_after``: a connection is closed after this many
    response bytes.
    """

    rtt_s: float = 0.0
    bandwidth: float | None = None
    buffer_response: bool = False
    split: int | None = None
    drop_after: int | None = None

    def without_buffer(self) -> Effects:
        """The effects on bytes that cannot be read, such as encrypted ones."""
        return replace(self, buffer_response=False)


class _End(Enum):
    """What comes after the last bytes: the end of the stream, or of the whole connection."""

    STREAM = "stream"
    CONNECTION = "connection"


class DelayLine:
    """A pipe that takes time: pieces leave in the order in which they came, each no earlier than it may.

    A piece first waits for the line, then takes ``size / bandwidth`` to enter it, then ``delay`` to pass it.
    """

    def __init__(self, writer: asyncio.StreamWriter, delay: float, bandwidth: float | None, first_extra: float) -> None:
        self._writer, self._delay, self._bandwidth = writer, delay, bandwidth
        self._first_extra = first_extra
        self._free_at = 0.0
        self._queue: asyncio.Queue[tuple[float, bytes | _End]] = asyncio.Queue(MAX_QUEUED)

    async def put(self, data: bytes) -> None:
        """Send bytes on their way."""
        for piece in _pieces(data, PACKET if self._bandwidth else len(data)):
            await self._queue.put((self._due(len(piece)), piece))

    async def end(self) -> None:
        """Send the end of the stream on its way."""
        await self._queue.put((self._due(0), _End.STREAM))

    async def drop(self) -> None:
        """Close the connection once everything before has been delivered."""
        await self._queue.put((self._due(0), _End.CONNECTION))

    def _due(self, size: int) -> float:
        now = asyncio.get_running_loop().time()
        start = max(now, self._free_at) + (self._first_extra if size else 0.0)
        self._first_extra = 0.0 if size else self._first_extra
        self._free_at = start + (size / self._bandwidth if self._bandwidth else 0.0)
        return self._free_at + self._delay

    async def deliver(self, split: int | None = None) -> None:
        """Write what arrives until the end has arrived, in pieces of ``split`` bytes.

        Raises ``ConnectionAbortedError`` when it was the end of the connection.
        """
        while True:
            due, data = await self._queue.get()
            await asyncio.sleep(max(0.0, due - asyncio.get_running_loop().time()))
            if data is _End.CONNECTION:
                raise ConnectionAbortedError("dropped on purpose")
            if data is _End.STREAM:
                _finish(self._writer)
                return
            for piece in _pieces(data, split or len(data)):
                self._writer.write(piece)
                await self._writer.drain()


def _pieces(data: bytes, size: int) -> Iterator[bytes]:
    return (data[at : at + size] for at in range(0, len(data), size))


def _finish(writer: asyncio.StreamWriter) -> None:
    if writer.can_write_eof():
        writer.write_eof()
    else:
        writer.close()


class ResponseHold:
    """Keeps a response back until its end has come, as a buffering proxy does."""

    def __init__(self) -> None:
        self._held = bytearray()
        self._method = b"GET"
        self._parser: h11.Connection | None = None

    def expect(self, request: bytes) -> None:
        """A request has begun: the end of its response depends on the method."""
        self._method = request.split(b" ", 1)[0] or b"GET"

    def feed(self, data: bytes) -> bytes:
        """Bytes that may go on now. What is not HTTP goes on at once."""
        self._held += data
        if self._parser is None:
            self._parser = self._new_parser()
        try:
            self._parser.receive_data(data)
            is_complete = self._is_complete()
        except h11.ProtocolError:
            is_complete = True
        return self.release() if is_complete else b""

    def release(self) -> bytes:
        """Everything that is held, at the end of a response or of the connection."""
        data, self._parser = bytes(self._held), None
        self._held.clear()
        return data

    def _new_parser(self) -> h11.Connection:
        parser = h11.Connection(h11.CLIENT)
        parser.send(h11.Request(method=self._method, target="/", headers=[("host", "localhost")]))
        parser.send(h11.EndOfMessage())
        return parser

    def _is_complete(self) -> bool:
        assert self._parser is not None
        while True:
            event = self._parser.next_event()
            if isinstance(event, h11.EndOfMessage):
                return True
            if event is h11.NEED_DATA or event is h11.PAUSED or isinstance(event, h11.ConnectionClosed):
                return False


class Link:
    """A client's connection and ours to the target, and the two lines between them."""

    def __init__(
        self,
        client: tuple[asyncio.StreamReader, asyncio.StreamWriter],
        target: tuple[asyncio.StreamReader, asyncio.StreamWriter],
        effects: Effects,
        report: Report,
        on_request: Callable[[], None],
    ) -> None:
        self._client, self._target = client, target
        self._effects, self._report, self._on_request = effects, report, on_request
        half = effects.rtt_s / 2
        self._up = DelayLine(target[1], half, effects.bandwidth, effects.rtt_s)
        self._down = DelayLine(client[1], half, effects.bandwidth, 0.0)
        self._hold = ResponseHold() if effects.buffer_response else None
        self._is_idle = True  # the next bytes from the client begin a request
        self._passed = 0
        self.first_bytes_at: float | None = None

    async def run(self) -> None:
        """Pass bytes until both directions have ended, or either breaks; then both connections are closed."""
        jobs = [self._requests(), self._responses(), self._up.deliver(), self._down.deliver(self._effects.split)]
        tasks = [asyncio.ensure_future(job) for job in jobs]
        try:
            await asyncio.gather(*tasks)
        except (ConnectionError, OSError):
            pass  # one side has gone; so does the other
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            for writer in (self._client[1], self._target[1]):
                writer.close()

    async def _requests(self) -> None:
        while data := await self._client[0].read(READ_SIZE):
            if self.first_bytes_at is None:
                self._begin()
            if self._is_idle:
                self._is_idle = False
                self._on_request()
                if self._hold is not None:
                    self._hold.expect(data)
            self._say_delay("sent", len(data))
            await self._up.put(data)
        await self._up.end()

    def _begin(self) -> None:
        self.first_bytes_at = asyncio.get_running_loop().time()
        if self._effects.rtt_s:
            self._report(f"connect +{self._effects.rtt_s * 1e3:g} ms", "sent", 0)

    async def _responses(self) -> None:
        while data := await self._target[0].read(READ_SIZE):
            self._is_idle = True
            await self._respond(self._hold.feed(data) if self._hold is not None else data, len(data))
        if self._hold is not None:
            await self._respond(self._hold.release(), 0)
        await self._down.end()

    async def _respond(self, data: bytes, arrived: int) -> None:
        if len(data) != arrived:
            self._report("released" if data else "held back", "received", len(data) or arrived)
        if not data:
            return
        allowed = self._allowed(data)
        self._say_delay("received", len(allowed))
        if self._effects.split:
            self._report(f"split by {self._effects.split}", "received", len(allowed))
        await self._down.put(allowed)
        if len(allowed) < len(data):
            self._report(f"drop after {self._effects.drop_after} bytes", "received", len(data) - len(allowed))
            await self._down.drop()

    def _allowed(self, data: bytes) -> bytes:
        """The part of some response bytes that is within ``drop_after``."""
        before, self._passed = self._passed, self._passed + len(data)
        limit = self._effects.drop_after
        return data if limit is None else data[: max(limit - before, 0)]

    def _say_delay(self, direction: str, size: int) -> None:
        if self._effects.rtt_s:
            self._report(f"delay {self._effects.rtt_s * 500:g} ms", direction, size)
        if self._effects.bandwidth:
            self._report(f"at most {self._effects.bandwidth:g} bytes/s", direction, size)
