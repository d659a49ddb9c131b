"""One HTTP request on one connection, read by a thread of its own.

A blocking read can be neither timed by three clocks nor given up at once; a queue can. The thread does nothing but
put what arrives into it.
"""

from __future__ import annotations

import contextlib
import queue
import socket
import ssl
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from time import perf_counter_ns
from typing import Any

import httpx2

from llmlab.client.stream_errors import (
    CertificateRejected,
    ClientError,
    ConnectionLost,
    ServerUnreachable,
    TotalTimeout,
)

QUEUE_PIECES = 64
"""Pieces held for a reader that is slow; beyond that the server is slowed down through the socket."""

JOIN_S = 0.2


class Lane:
    """An HTTP client that is used by one transfer at a time, and so has one connection, kept between transfers.

    ``is_owned``: whether it is closed with the lane; one that the user brought is not.
    """

    def __init__(self, http: httpx2.Client, is_owned: bool) -> None:
        self.http, self.is_owned = http, is_owned
        self.socket: socket.socket | None = None

    def cut(self) -> None:
        """End the connection at once, even while another thread waits on it."""
        if self.socket is not None:
            with contextlib.suppress(OSError):  # already closed by the other side
                socket.socket.shutdown(self.socket, socket.SHUT_RDWR)

    def close(self) -> None:
        """Close the connection; no transfer may be using it."""
        if self.is_owned:
            self.http.close()


@dataclass(frozen=True, slots=True)
class Head:
    """The status line and headers arrived. Header names are lower-case."""

    t_ns: int
    status: int
    headers: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Piece:
    """Bytes of the body arrived."""

    t_ns: int
    data: bytes


@dataclass(frozen=True, slots=True)
class End:
    """The body is complete as far as HTTP can tell, which is not whether the stream inside it is."""

    t_ns: int


@dataclass(frozen=True, slots=True)
class Broken:
    """The transfer failed."""

    t_ns: int
    error: Exception


Item = Head | Piece | End | Broken


class Transfer:
    """Sends ``request`` on ``lane`` and hands out what comes back: a head, pieces, and one end or failure.

    ``sent_ns`` is when the last byte of the request was handed to the system; ``is_new_connection`` whether one had to
    be made. ``has_ended``: the connection can be used again.
    """

    def __init__(self, lane: Lane, request: httpx2.Request) -> None:
        self.lane, self.request = lane, request
        self.started_ns = perf_counter_ns()
        self.sent_ns = 0
        self.is_new_connection = False
        self.has_ended = False
        self._is_abandoned = False
        self._items: queue.Queue[Item] = queue.Queue(QUEUE_PIECES)
        request.extensions["trace"] = self._on_trace
        self._thread = threading.Thread(target=self._read, name="llmlab transfer", daemon=True)
        self._thread.start()

    def next(self, timeout: float | None) -> Item | None:
        """The next item, or ``None`` when none came within ``timeout`` seconds."""
        try:
            return self._items.get(timeout=timeout) if timeout is None or timeout > 0 else self._items.get_nowait()
        except queue.Empty:
            return None

    def abandon(self) -> None:
        """Stop reading and end the connection, so that the server notices; harmless after the end."""
        if self.has_ended:
            return
        self._is_abandoned = True
        self.lane.cut()
        with contextlib.suppress(queue.Empty):
            while True:
                self._items.get_nowait()
        self._thread.join(JOIN_S)

    def _read(self) -> None:
        try:
            self._items.put(self._exchange())
        except httpx2.TimeoutException as error:
            self._items.put(Broken(perf_counter_ns(), _timed_out(error, self.request)))
        except httpx2.HTTPError as error:
            self._items.put(Broken(perf_counter_ns(), lost(error, self.request.url)))
        except Exception as error:
            self._items.put(Broken(perf_counter_ns(), error))
        finally:
            if not self.has_ended:
                self.lane.close()

    def _exchange(self) -> Item:
        response = self.lane.http.send(self.request, stream=True)
        with contextlib.closing(response):
            self._keep_socket(response.extensions.get("network_stream"))
            headers = {name.lower(): value for name, value in response.headers.items()}
            self._items.put(Head(perf_counter_ns(), response.status_code, headers))
            for data in response.iter_bytes():
                if self._is_abandoned:
                    return Broken(perf_counter_ns(), ConnectionLost("the transfer was abandoned"))
                self._items.put(Piece(perf_counter_ns(), data))
        self.has_ended = not self._is_abandoned  # a connection cut here looks like the end of a body without a length
        return End(perf_counter_ns())

    def _on_trace(self, name: str, info: dict[str, Any]) -> None:
        if name in ("connection.connect_tcp.complete", "connection.start_tls.complete"):
            self.is_new_connection = True
            self._keep_socket(info.get("return_value"))
        elif name.endswith("send_request_body.complete"):
            self.sent_ns = perf_counter_ns()

    def _keep_socket(self, stream: Any) -> None:
        self.lane.socket = stream.get_extra_info("socket") if stream is not None else None
        if self._is_abandoned:
            self.lane.cut()


def lost(error: httpx2.HTTPError, url: httpx2.URL) -> ClientError:
    """The named failure for a connection to ``url`` that broke or was never made."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, ssl.SSLCertVerificationError):
            why = getattr(cause, "verify_message", cause)
            return CertificateRejected(
                f"the server's certificate is not trusted ({why}); for one of your own, give "
                "http=httpx2.Client(verify=...) with a context that knows it"
            )
        cause = cause.__cause__ or cause.__context__
    if isinstance(error, httpx2.ConnectError):
        return _unreachable(url, str(error) or type(error).__name__)
    return ConnectionLost(f"the connection broke: {type(error).__name__}: {error}")


def _timed_out(error: httpx2.TimeoutException, request: httpx2.Request) -> Exception:
    """A socket's clock may run out a moment before the watchdog's: the same limit, so the same error."""
    if isinstance(error, httpx2.ConnectTimeout):
        return _unreachable(request.url, "no connection could be made in time")
    return TotalTimeout.after(request.extensions["timeout"]["read"])


def _unreachable(url: httpx2.URL, why: str) -> ServerUnreachable:
    host = url.netloc.decode("ascii", "replace")
    return ServerUnreachable(f"no server answers at {url.scheme}://{host} ({why}): is it running, and at this address?")
