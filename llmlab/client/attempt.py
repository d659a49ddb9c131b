"""One attempt: a request, the head of its response, and its body under the clocks of a watchdog."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from llmlab.api.heads import head_text
from llmlab.client.message import Timings
from llmlab.client.recording import Log
from llmlab.client.stream_errors import ConnectionLost, ProtocolViolation, failure_from
from llmlab.client.timeouts import Notice, Timeouts, Watchdog
from llmlab.client.transfer import Broken, End, Head, Piece, Transfer

Tap = Callable[[bytes], None]

MAX_BODY_BYTES = 32 * 1024 * 1024
"""Longest answer in one piece that is read."""


class Attempt:
    """Reads one response. ``timings`` fill as it goes; ``headers`` are the response's, lower-case, once it began.

    ``number`` counts from 0. ``tap`` is called with each piece of the body, exactly as it came. Close it however it
    ended: that is what ends the connection of one that is not over.
    """

    def __init__(self, transfer: Transfer, timeouts: Timeouts, log: Log, number: int, tap: Tap | None = None) -> None:
        self.transfer, self.log, self.number, self.tap = transfer, log, number, tap
        self.watchdog = Watchdog(timeouts)
        self.timings = Timings(sent_at=transfer.started_ns)
        self.headers: Mapping[str, str] = {}
        self.is_closed = False

    @property
    def request_id(self) -> str | None:
        """The server's id of the exchange."""
        return self.headers.get("request-id") or self.headers.get("x-request-id")

    def head(self) -> None:
        """Wait for the response to begin. Raises ``ApiFailure`` for any status but 200, ``ClientError``."""
        item = self._wait()
        assert isinstance(item, Head), "a transfer begins with its head"
        self.headers, self.timings.head = item.headers, self.since_sent(item.t_ns)
        self._record_head(item)
        if item.status != 200:
            raise failure_from(item.status, self._read_error(), item.headers)

    def pieces(self) -> Iterator[Piece]:
        """The body as it arrives. Raises ``ClientError``."""
        while not isinstance(item := self._wait(), End):
            if self.timings.first_byte is None:
                self.timings.first_byte = self.since_sent(item.t_ns)
            self.log.piece(item.data, item.t_ns)
            if self.tap is not None:
                self.tap(item.data)
            for notice in self.watchdog.on_bytes(item.t_ns / 1e9):
                self.report(notice)
            yield item
        self.timings.end = self.since_sent(item.t_ns)

    def json(self) -> Any:
        """The whole answer of a call that is not streamed. Raises ``ClientError``."""
        self.head()
        body = self._body()
        self.log.event("end", "ok")
        try:
            return json.loads(body)
        except (ValueError, RecursionError):
            kind = self.headers.get("content-type", "no content-type")
            raise ProtocolViolation(f"the answer is not JSON but {kind}: {_start(body)!r}") from None

    def close(self) -> None:
        """Let go of the connection: for reuse if the response is complete, for good if not."""
        self.is_closed = True
        if not self.transfer.has_ended:
            self.log.event("disconnect", "the client left")
        self.transfer.abandon()

    def patience(self) -> float | None:
        """Seconds to wait for the next item before the clocks are looked at; ``None``: for ever."""
        return self.watchdog.remaining()

    def report(self, notice: Notice) -> None:
        """Record a notice of the watchdog."""
        self.log.event("warning", notice.kind, text=f"{notice.seconds:.3g} s without {self.watchdog.timeouts.reset_by}")

    def since_sent(self, t_ns: int) -> float:
        """Seconds from the beginning of the attempt."""
        return (t_ns - self.timings.sent_at) / 1e9

    def _wait(self) -> Head | Piece | End:
        while (item := self.transfer.next(self.patience())) is None:
            for notice in self.watchdog.check():
                self.report(notice)
        if isinstance(item, Broken):
            raise item.error
        if isinstance(item, Piece):
            self.watchdog.check_total()
        return item

    def _body(self) -> bytes:
        found = bytearray()
        for piece in self.pieces():
            found += piece.data
            if len(found) > MAX_BODY_BYTES:
                raise ProtocolViolation(f"the answer is longer than {MAX_BODY_BYTES:,} bytes")
        return bytes(found)

    def _read_error(self) -> Any:
        try:
            body = self._body()
        except ConnectionLost:
            return ""  # the status alone says enough
        try:
            return json.loads(body)
        except (ValueError, RecursionError):
            return _start(body)

    def _record_head(self, head: Head) -> None:
        sent_ns = self.transfer.sent_ns or head.t_ns
        details = {"attempt": self.number + 1, "new_connection": self.transfer.is_new_connection}
        self.log.stage(self.timings.sent_at, "send", "ok", end_ns=sent_ns, **details)
        shown = head_text(head.headers.items())
        self.log.event("response", str(head.status), text=shown, direction="received", t_ns=head.t_ns)


def _start(body: bytes) -> str:
    return body[:300].decode("utf-8", "replace")
