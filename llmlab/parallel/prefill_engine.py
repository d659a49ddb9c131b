"""The engine of the prefill process: it computes prompts and hands over their K/V blocks instead of tokens."""

from __future__ import annotations

import mmap
from collections.abc import Callable
from time import perf_counter_ns
from typing import Any

from llmlab.engine.engine import Engine
from llmlab.engine.params import SamplingParams
from llmlab.engine.request import StopReason
from llmlab.engine.run import Run
from llmlab.engine.sequence import Sequence
from llmlab.errors import LabError
from llmlab.parallel.kv_link import Buffer
from llmlab.parallel.kv_link_blocks import BlockPort
from llmlab.trace.events import Step

Say = Callable[[dict[str, Any], Buffer], None]
Place = Callable[[], mmap.mmap]


class PrefillEngine(Engine):
    """Runs prompts with ``max_tokens=0``. ``say(header, payload)`` sends one reply for each, and its work step by step.

    A request's blocks are copied out at its end, while it still holds them; afterwards they stay findable for later
    prompts like any other cached block. Replies are sent after the step that ended them.
    """

    def __init__(self, *args: Any, port: BlockPort, say: Say, **options: Any) -> None:
        super().__init__(*args, **options)
        self._port, self._say = port, say
        self._places: dict[str, Place | None] = {}  # where the bytes go; None: into the reply
        self._replies: list[tuple[dict[str, Any], Buffer]] = []
        self._cursor = 0

    def prefill(self, name: str, tokens: list[int], salt: str, priority: int, place: Place | None) -> Run:
        """Queue a prompt; the errors of :meth:`Engine.submit`."""
        params = SamplingParams(max_tokens=0, cache_salt=salt)
        self._places[name] = place
        try:
            return self.submit(tokens, params, priority=priority, request_id=name)
        except LabError:
            del self._places[name]
            raise

    def step(self) -> bool:
        """A step, then what it did and which prompts it finished."""
        busy = super().step()
        self._tell_work()
        while self._replies:
            self._say(*self._replies.pop(0))
        return busy

    def _tell_work(self) -> None:
        events, self._cursor = self.recorder.read_since(self._cursor)
        for step in (event for event in events if isinstance(event, Step)):
            num_tokens = sum(row.num_tokens for row in step.rows)
            work = {"step": step.step, "begin": step.forward_ns, "end": step.sample_ns, "num_tokens": num_tokens}
            self._say({"type": "work", **work}, b"")

    def end(self, sequence: Sequence, reason: StopReason) -> None:
        """Copy the blocks of a computed prompt out, then end the request; say so in any case."""
        name, table = sequence.request.id, list(sequence.request.block_table)
        reply, payload = {"type": "dropped", "reason": str(sequence.run.error or reason)}, b""
        if reason is StopReason.LENGTH:
            reply, payload = self._hand_over(sequence, self._places[name], table)
        super().end(sequence, reason)
        del self._places[name]
        self._replies.append(({"id": name, **reply}, payload))

    def _hand_over(self, sequence: Sequence, place: Place | None, table: list[int]) -> tuple[dict[str, Any], Buffer]:
        request, begin = sequence.request, perf_counter_ns()
        out = bytearray(self._port.nbytes(len(table))) if place is None else place()
        self._port.read(table, out)
        reply = {
            "type": "done",
            "step": self.journal.step,
            "blocks": table,
            "num_tokens": request.num_computed,
            "num_cached": request.num_cached,
            "nbytes": self._port.nbytes(len(table)),
            "scheduled": sequence.run.times.scheduled,
            "send": begin,
        }
        if place is None:
            return reply, out
        out.close()
        return reply, b""
