"""One attempt whose answer is a stream of events."""

from __future__ import annotations

import json
from collections.abc import Iterator
from time import perf_counter_ns
from typing import Any

from llmlab.api.sse_parser import EventTooLarge, SseEvent, SseParser
from llmlab.client.accumulate import Accumulator, Delta
from llmlab.client.attempt import Attempt
from llmlab.client.lifecycle import Lifecycle
from llmlab.client.message import Message
from llmlab.client.retry import Phase
from llmlab.client.stream_errors import ProtocolViolation, StreamIncomplete, failure_in_stream
from llmlab.client.transfer import Piece

GRACE_S = 1.0
"""How long the end of the response may take after ``message_stop``: reading it keeps the connection usable."""

HIDDEN_BLOCKS = frozenset({"thinking", "redacted_thinking"})


class Streamed:
    """Reads the events of one attempt and builds its message.

    Frames and deltas are recorded at the time at which their bytes arrived, however late they are read.
    """

    def __init__(self, attempt: Attempt) -> None:
        self.attempt = attempt
        self.parser, self.lifecycle, self.accumulator = SseParser(), Lifecycle(), Accumulator()
        self._piece: Piece | None = None  # the one whose events are being taken

    @property
    def message(self) -> Message:
        """The message as far as it came."""
        message, attempt = self.accumulator.message, self.attempt
        message.request_id, message.client_request_id = attempt.request_id, attempt.log.wire_id
        message.timings, message.attempts = attempt.timings, attempt.number + 1
        return message

    @property
    def phase(self) -> Phase:
        """What the stream has shown so far: what a retry would contradict depends on it."""
        content = self.accumulator.message.content
        if any(
            b["type"] == "tool_use" and "partial_json" not in b for b in content[: self.accumulator.finished_blocks]
        ):
            return "tool_use"
        if not content:
            return "nothing"
        return "thinking" if all(block["type"] in HIDDEN_BLOCKS for block in content) else "shown"

    def deltas(self) -> Iterator[Delta]:
        """What each event did. Raises ``ClientError``; ``StreamIncomplete`` when the end marker never came."""
        self.attempt.head()
        self._check_type()
        for piece in self._pieces():
            self._piece = piece
            for event in self._feed(piece.data):
                yield self._take(event)
        self._finish()

    def _pieces(self) -> Iterator[Piece]:
        pieces = self.attempt.pieces()
        while not self.lifecycle.is_complete:
            piece = next(pieces, None)
            if piece is None:
                return
            yield piece
        self._drain()

    def _drain(self) -> None:
        """Read up to the end of the response, which is due now, but do not wait long for it."""
        deadline = perf_counter_ns() + int(GRACE_S * 1e9)
        transfer = self.attempt.transfer
        while (left := deadline - perf_counter_ns()) > 0:
            item = transfer.next(left / 1e9)
            if isinstance(item, Piece):
                for event in self._feed(item.data):
                    self.lifecycle.check(self._parse(event))
            elif item is not None:
                self.attempt.timings.end = self.attempt.since_sent(item.t_ns)
                return

    def _check_type(self) -> None:
        kind = self.attempt.headers.get("content-type", "")
        if not kind.lower().startswith("text/event-stream"):
            raise ProtocolViolation(
                f"a stream was asked for and {kind or 'no content-type'} came: is this a model API?"
            )

    def _feed(self, data: bytes) -> list[SseEvent]:
        try:
            return self.parser.feed(data)
        except EventTooLarge as error:
            raise ProtocolViolation(str(error)) from error

    def _take(self, event: SseEvent) -> Delta:
        attempt, at = self.attempt, self._piece.t_ns
        if attempt.log.enabled:
            size = len(event.data.encode())
            attempt.log.event("frame", event.name, text=event.data, size=size, direction="received", t_ns=at)
        for notice in attempt.watchdog.on_event(at / 1e9):
            attempt.report(notice)
        data = self._parse(event)
        self.lifecycle.check(data)
        if data["type"] == "error":
            raise failure_in_stream(data, attempt.headers)
        delta = self.accumulator.add(data)
        self._note(delta, at)
        return delta

    def _parse(self, event: SseEvent) -> Any:
        try:
            data = json.loads(event.data)
        except (ValueError, RecursionError) as error:
            raise ProtocolViolation(f"the data of {event.name!r} is not JSON: {error}") from None
        if event.name == "error" and isinstance(data, dict):
            data = data | {"type": "error"}
        if event.name not in ("message", data.get("type") if isinstance(data, dict) else None):
            raise ProtocolViolation(f"an event named {event.name!r} carries data of another type")
        return data

    def _note(self, delta: Delta, at: int) -> None:
        if not delta.text or delta.kind == "signature":
            return
        attempt = self.attempt
        size = len(delta.text.encode("utf-8", "surrogatepass"))
        attempt.log.event("delta", delta.kind, text=delta.text, size=size, t_ns=at)
        if attempt.timings.first_delta is None:
            attempt.timings.first_delta = attempt.since_sent(at)
            start = attempt.transfer.sent_ns or attempt.timings.sent_at
            attempt.log.stage(start, "wait", "ok", "until the first token", end_ns=at)

    def _finish(self) -> None:
        if not self.lifecycle.is_complete:
            where = "inside an event" if self.parser.close() else "between two events"
            raise StreamIncomplete(f"the stream ended {where}, without message_stop: the answer is cut off")
        self.attempt.log.event("end", self.accumulator.message.stop_reason or "no stop reason")
