"""The bubble of a pipeline, counted in slots and not in time.

A slot is one micro-batch in one stage. A stage works on a micro-batch in the first slot in which the stage before it,
and the micro-batch before this one, are done: with ``p`` stages and ``m`` equal micro-batches that leaves
``(p - 1) / (m + p - 1)`` of the slots empty (GPipe, arXiv 1811.06965, section 2.3).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

import pandas as pd

from llmlab.errors import InvalidParameter
from llmlab.trace.split_events import RankWork
from llmlab.trace.trace import Trace


@dataclass(frozen=True, slots=True)
class Bubble:
    """``slots`` is how many slots a step took from the first to the last; ``busy`` in how many of ``stages x slots``
    a stage had a micro-batch. ``places`` is (rank, micro-batch) -> its slot."""

    step: int
    stages: int
    micro_batches: int
    slots: int
    busy: int
    places: dict[tuple[int, int], int]

    @property
    def idle(self) -> int:
        """Slots in which a stage had nothing to do."""
        return self.stages * self.slots - self.busy

    @property
    def idle_share(self) -> float:
        """Of all slots."""
        return self.idle / (self.stages * self.slots)

    @property
    def expected_share(self) -> float:
        """``(p - 1) / (m + p - 1)``."""
        return (self.stages - 1) / (self.micro_batches + self.stages - 1)


def bubble(trace: Trace, step: int | None = None) -> Bubble:
    """The slots of one step (default: the last) of a pipeline, from the work its stages recorded, in its order.

    Raises ``InvalidParameter`` for a step in which no pipeline worked.
    """
    by_step = _work(trace)
    if not by_step:
        raise InvalidParameter("no pipeline worked in this trace: record one with llmlab.open(pipeline_parallel=2)")
    step = max(by_step) if step is None else step
    if step not in by_step:
        raise InvalidParameter(f"step={step!r} has no work of a pipeline: steps {min(by_step)} to {max(by_step)} have")
    return bubble_of(step, by_step[step])


def bubbles(trace: Trace) -> pd.DataFrame:
    """One row per step of a pipeline: stages, micro-batches, slots, idle ones, their share, and the formula's."""
    found = [bubble_of(step, work) for step, work in sorted(_work(trace).items())]
    names = ("step", "stages", "micro_batches", "slots", "busy", "idle", "idle_share", "expected_share")
    return pd.DataFrame({name: [getattr(b, name) for b in found] for name in names})


def _work(trace: Trace) -> dict[int, list[RankWork]]:
    by_step: dict[int, list[RankWork]] = defaultdict(list)
    for event in trace.index.rank_work:
        if event.role == "pipeline" and event.name == "forward":
            by_step[event.step].append(event)
    return by_step


def bubble_of(step: int, work: Iterable[RankWork]) -> Bubble:
    """The slots of a step from its events; those that are not a stage's forward work do not count."""
    work = [event for event in work if event.role == "pipeline" and event.name == "forward"]
    places: dict[tuple[int, int], int] = {}
    last: dict[int, int] = defaultdict(lambda: -1)  # rank -> its latest slot
    for event in sorted(work, key=lambda e: (e.rank, e.t_ns)):
        before = places.get((event.rank - 1, event.micro_batch), -1)
        places[event.rank, event.micro_batch] = last[event.rank] = max(before, last[event.rank]) + 1
    stages = len({rank for rank, _ in places})
    parts = len({part for _, part in places})
    return Bubble(step, stages, parts, max(places.values()) + 1, len(places), places)
