"""The simulated clock, and a recorder that stamps events with it."""

from __future__ import annotations

from dataclasses import replace

from llmlab.trace.events import BlockEvent, Decision, Event
from llmlab.trace.recorder import Recorder


class SimulatedRecorder(Recorder):
    """Keeps all events. What scheduler and pool write is stamped with ``now_ns``, the time in the simulation."""

    def __init__(self, enabled: bool) -> None:
        super().__init__(capacity=10_000_000 if enabled else 1, enabled=enabled)
        self.now_ns = 0

    def emit(self, event: Event) -> None:
        """Append one event; decisions and block changes happen now."""
        stamped = type(event) in (Decision, BlockEvent)
        super().emit(replace(event, t_ns=self.now_ns) if stamped else event)
