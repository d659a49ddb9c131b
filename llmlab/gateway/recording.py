"""What the trace keeps of one exchange, written by the gateway; credentials never."""

from __future__ import annotations

import asyncio
from time import perf_counter_ns
from types import TracebackType
from typing import Any

from llmlab.api.errors import ApiError
from llmlab.trace.events import Stage, WireEvent, WireLink
from llmlab.trace.recorder import Recorder

SIDE = "gateway"
MAX_TEXT = 64 * 1024
MAX_NAME = 256


def cut(text: str) -> str:
    """``text``, or its beginning and a note when it is longer than 64 Ki characters."""
    return text if len(text) <= MAX_TEXT else f"{text[:MAX_TEXT]}\n[cut: {len(text) - MAX_TEXT} more characters]"


class ExchangeLog:
    """Writes the events of one exchange. Nothing is built while recording is off."""

    def __init__(self, recorder: Recorder, wire_id: str) -> None:
        self.recorder, self.wire_id = recorder, wire_id

    @property
    def enabled(self) -> bool:
        """Whether events are kept."""
        return self.recorder.enabled

    def event(
        self,
        kind: str,
        name: str,
        *,
        direction: str = "",
        size: int = 0,
        text: str | None = None,
        t_ns: int | None = None,
    ) -> None:
        """Record a :class:`WireEvent`; ``t_ns`` defaults to now."""
        if self.enabled:
            when = perf_counter_ns() if t_ns is None else t_ns
            text = None if text is None else cut(text)
            self.recorder.emit(WireEvent(when, self.wire_id, SIDE, kind, direction, size, name[:MAX_NAME], text))

    def frames(self, data: bytes) -> None:
        """Record each server-sent event in ``data``, a run of whole frames."""
        if not self.enabled:
            return
        now = perf_counter_ns()
        for frame in data.split(b"\n\n")[:-1]:
            name, text = _parse_frame(frame.decode(errors="replace"))
            self.event("frame", name, direction="sent", size=len(frame) + 2, text=text, t_ns=now)

    def link(self, relation: str, other_id: str) -> None:
        """Record that ``other_id`` names the same work elsewhere."""
        if self.enabled:
            self.recorder.emit(WireLink(perf_counter_ns(), self.wire_id, relation, other_id[:MAX_NAME]))

    def stage(self, name: str) -> StageTimer:
        """A context manager that records its body as one :class:`Stage`."""
        return StageTimer(self, name)


def _parse_frame(frame: str) -> tuple[str, str]:
    """The event's name (``data`` when it has none, ``comment`` for a comment) and its data."""
    name, data = "", ""
    for line in frame.split("\n"):
        if line.startswith("event: "):
            name = line.removeprefix("event: ")
        elif line.startswith("data: "):
            data = line.removeprefix("data: ")
        elif line.startswith(":"):
            return "comment", line
    return name or "data", data


class StageTimer:
    """Times one stage. An ``ApiError`` that leaves the body makes it ``refused``, anything else ``failed``."""

    def __init__(self, log: ExchangeLog, name: str) -> None:
        self.log, self.name = log, name
        self.outcome, self.reason = "ok", ""
        self.details: dict[str, Any] = {}
        self.start = 0

    def note(self, reason: str, **details: Any) -> None:
        """Say why, with numbers and names."""
        self.reason = reason
        self.details |= details

    def __enter__(self) -> StageTimer:
        self.start = perf_counter_ns()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        if not self.log.enabled:
            return
        if isinstance(error, ApiError):
            self.outcome, self.reason = "refused", cut(error.message)
            self.details = self.details | {"status": error.status}
        elif kind is asyncio.CancelledError:
            self.outcome, self.reason = "cancelled", "nobody waits for it any more"
        elif kind is not None:
            self.outcome, self.reason = "failed", kind.__name__
        self.log.recorder.emit(
            Stage(
                self.start,
                perf_counter_ns(),
                self.log.wire_id,
                SIDE,
                self.name,
                self.outcome,
                self.reason,
                self.details,
            )
        )
