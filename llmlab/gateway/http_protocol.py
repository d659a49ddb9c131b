"""uvicorn's HTTP/1.1 protocol with limits on a request's head, which it has none of."""

from __future__ import annotations

import asyncio
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

MAX_HEAD_BYTES = 64 * 1024
HEAD_TIMEOUT_S = 30.0
WRITE_TIMEOUT_S = 60.0

_RESPONSE = "HTTP/1.1 {status}\r\ncontent-type: text/plain\r\ncontent-length: {size}\r\nconnection: close\r\n\r\n{text}"


class GuardedTransport:
    """A transport that drops what is written once the connection is lost.

    The loop tells the protocol of the loss only when it comes round again, and asyncio logs every write until then.
    """

    def __init__(self, transport: asyncio.Transport) -> None:
        self._transport = transport

    def write(self, data: bytes) -> None:
        """Write, unless nobody is there any more."""
        if not self._transport.is_closing():
            self._transport.write(data)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)


class BoundedHttp(HttpToolsProtocol):
    """Closes connections whose request head is longer than 64 KiB (431) or takes longer than 30 s (408).

    It cuts connections whose client has read nothing for 60 s of what waits for it: whoever does not read a stream
    would hold its place at the backend for ever.
    """

    max_head_bytes = MAX_HEAD_BYTES
    head_timeout_s = HEAD_TIMEOUT_S
    write_timeout_s = WRITE_TIMEOUT_S

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._in_head, self._head_bytes = True, 0
        self._head_timer: asyncio.TimerHandle | None = None
        self._write_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:
        """A connection is open: its first request must come in time."""
        super().connection_made(GuardedTransport(transport))
        self._watch_head()

    def connection_lost(self, exc: Exception | None) -> None:
        """The connection is gone."""
        self._forget_head()
        self._forget_write()
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        """The client reads more slowly than is written, and the buffers are full."""
        super().pause_writing()
        self._watch_write()

    def resume_writing(self) -> None:
        """The client has read on."""
        self._forget_write()
        super().resume_writing()

    def timeout_keep_alive_handler(self) -> None:
        """The connection is idle and closes, once the client has read the rest or does not read at all."""
        super().timeout_keep_alive_handler()
        self._watch_write()

    def data_received(self, data: bytes) -> None:
        """Feed the parser; what it has not recognised as a whole head by then counts against the limit."""
        super().data_received(data)
        if self._in_head and not self.transport.is_closing():
            self._head_bytes += len(data)
            if self._head_bytes > self.max_head_bytes:
                self._refuse("431 Request Header Fields Too Large", f"the head exceeds {self.max_head_bytes} bytes")

    def on_message_begin(self) -> None:
        """The first line of a request arrives."""
        super().on_message_begin()
        self._watch_head()

    def on_headers_complete(self) -> None:
        """The head is whole: what follows is the application's to limit."""
        self._forget_head()
        if sum(len(name) + len(value) for name, value in self.headers) > self.max_head_bytes:
            self._refuse("431 Request Header Fields Too Large", f"the head exceeds {self.max_head_bytes} bytes")
            return
        super().on_headers_complete()

    def _watch_head(self) -> None:
        self._forget_head()
        self._in_head, self._head_bytes = True, 0
        self._head_timer = self.loop.call_later(self.head_timeout_s, self._time_out)

    def _forget_head(self) -> None:
        self._in_head = False
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _watch_write(self) -> None:
        self._forget_write()
        waiting = self.transport.get_write_buffer_size()
        self._write_timer = self.loop.call_later(self.write_timeout_s, self._check_write, waiting)

    def _check_write(self, waiting: int) -> None:
        """Nothing is written meanwhile, so what waits can only become less."""
        if self.transport.get_write_buffer_size() < waiting:
            self._watch_write()
        else:
            self.transport.abort()

    def _forget_write(self) -> None:
        if self._write_timer is not None:
            self._write_timer.cancel()
            self._write_timer = None

    def _time_out(self) -> None:
        self._refuse("408 Request Timeout", f"no request head within {self.head_timeout_s:g} s")

    def _refuse(self, status: str, text: str) -> None:
        if not self.transport.is_closing():
            self.transport.write(_RESPONSE.format(status=status, size=len(text), text=text).encode())
            self.transport.close()
