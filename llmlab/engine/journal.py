"""Writes the engine's decisions and block changes into the trace, stamped with the current step."""

from __future__ import annotations

from time import perf_counter_ns

from llmlab.trace.events import BlockEvent, Decision
from llmlab.trace.recorder import Recorder


class Journal:
    """The one place where scheduler and block pool meet the recorder.

    Owned by the engine, which sets ``step``. When recording is off every method returns at once.
    """

    __slots__ = ("recorder", "step")

    def __init__(self, recorder: Recorder | None = None) -> None:
        self.recorder = Recorder(enabled=False) if recorder is None else recorder
        self.step = 0

    def decision(self, request_id: str, action: str, reason: str, num_tokens: int = 0, by: str | None = None) -> None:
        """Record why a request was treated as it was."""
        if self.recorder.enabled:
            self.recorder.emit(Decision(perf_counter_ns(), self.step, request_id, action, str(reason), num_tokens, by))

    def block(
        self,
        block_id: int,
        action: str,
        request_id: str | None,
        index: int,
        ref_count: int,
        digest: bytes = b"",
        source_id: int | None = None,
    ) -> None:
        """Record a change of one block; ``digest`` is its hash when it has one."""
        if self.recorder.enabled:
            self.recorder.emit(
                BlockEvent(
                    perf_counter_ns(),
                    self.step,
                    block_id,
                    action,
                    request_id,
                    index,
                    ref_count,
                    digest[:6].hex(),
                    source_id,
                )
            )
