"""What a client writes into a trace about its side of an exchange."""

from __future__ import annotations

from collections.abc import Iterable
from time import perf_counter_ns
from typing import Any

from llmlab.api.heads import head_text
from llmlab.trace.events import Stage, WireEvent
from llmlab.trace.recorder import Recorder

MAX_TEXT = 20_000
"""Characters of a body, frame or piece that are kept; the rest is cut and the cut is marked."""


class Log:
    """Writes the events of one attempt, ``wire_id``, on side ``client``.

    ``secret``, the API key, is replaced wherever it would appear: a server may send it back in an error.
    """

    def __init__(self, recorder: Recorder | None, wire_id: str, secret: str | None = None) -> None:
        self.recorder, self.wire_id, self.secret = recorder, wire_id, secret

    @property
    def enabled(self) -> bool:
        """Whether anything is kept."""
        return self.recorder is not None and self.recorder.enabled

    def event(
        self, kind: str, name: str, *, text: str | None = None, size: int = 0, direction: str = "", t_ns: int = 0
    ) -> None:
        """A :class:`WireEvent`, of now unless ``t_ns`` is given."""
        if self.enabled:
            at = t_ns or perf_counter_ns()
            shown = None if text is None else self._shown(text)
            self.recorder.emit(WireEvent(at, self.wire_id, "client", kind, direction, size, self._shown(name), shown))

    def sent(self, name: str, headers: Iterable[tuple[str, str]], body: bytes) -> None:
        """A request leaves: head, empty line and body; ``size`` is the body's."""
        if self.enabled:
            text = f"{head_text(headers)}\n\n{body.decode('utf-8', 'replace')}"
            self.event("request", name, text=text, size=len(body), direction="sent")

    def piece(self, data: bytes, t_ns: int) -> None:
        """Bytes of a body came off the socket."""
        if self.enabled:
            text = data.decode("utf-8", "replace")
            self.event("bytes", "", text=text, size=len(data), direction="received", t_ns=t_ns)

    def stage(
        self, start_ns: int, name: str, outcome: str, reason: str = "", *, end_ns: int = 0, **details: Any
    ) -> None:
        """A :class:`Stage` from ``start_ns`` to ``end_ns``, or to now."""
        if self.enabled:
            end = max(end_ns or perf_counter_ns(), start_ns)
            stage = Stage(start_ns, end, self.wire_id, "client", name, outcome, self._shown(reason), details)
            self.recorder.emit(stage)

    def _shown(self, text: str) -> str:
        if self.secret:
            text = text.replace(self.secret, "[key]")
        return text if len(text) <= MAX_TEXT else f"{text[:MAX_TEXT]}... ({len(text) - MAX_TEXT:,} characters cut)"
