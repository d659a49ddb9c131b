"""The life of every request in stretches of one kind: what the lanes of the step timeline are drawn from."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from llmlab.trace.events import Step
from llmlab.trace.index import Index
from llmlab.views.waterfall_rows import Life, lives_of

MAX_LANES = 40


@dataclass(frozen=True, slots=True)
class Window:
    """The steps at the places ``low`` to ``high`` (inclusive) of ``index.steps``, and the time (ns) that is shown."""

    index: Index
    low: int
    high: int
    start: int
    end: int

    @property
    def steps(self) -> list[Step]:
        """The steps themselves."""
        return self.index.steps[self.low : self.high + 1]


def num_tokens(step: Step) -> tuple[int, int]:
    """Prefill and decode tokens of a step's batch."""
    prefill = sum(row.num_tokens for row in step.rows if row.is_prefill)
    return prefill, sum(row.num_tokens for row in step.rows) - prefill


@dataclass(frozen=True, slots=True)
class Stretch:
    """A request was ``queued``, ``preempted`` (queued again), or computed ``prefill``, ``recompute`` (prefill after a
    preemption) or ``decode`` tokens, from ``start`` to ``end`` (ns). ``first`` and ``last`` are numbers of steps, -1
    while it was in none; ``num_tokens`` is what it was given in them."""

    request_id: str
    kind: str
    start: int
    end: int
    first: int = -1
    last: int = -1
    num_tokens: int = 0

    @property
    def num_steps(self) -> int:
        """Steps of the stretch, which follow each other."""
        return 0 if self.first < 0 else self.last - self.first + 1


@dataclass(frozen=True, slots=True)
class Lane:
    """One request: its stretches in order, and when it had its first token (ns), if it has one."""

    request_id: str
    life: Life
    stretches: tuple[Stretch, ...]
    first_token: int | None


def lanes_of(index: Index, low: int, high: int, start: int, end: int) -> list[Lane]:
    """The requests that were there between ``start`` and ``end`` (ns), in the order of their arrival.

    Of the steps, those at the places ``low`` to ``high`` count.
    """
    lives = lives_of(index, index.request_ids)
    first: dict[str, int] = {}
    for token in index.tokens:
        first.setdefault(token.request_id, token.t_ns)
    tokens = _tokens(index)
    alive = [i for i, life in lives.items() if life.submitted <= end and life.end >= start]
    lanes = []
    for request_id in alive:
        life = lives[request_id]
        found = [*_waits(request_id, life), *_runs(index, request_id, life, tokens, low, high)]
        inside = [s for s in found if s.end > start and s.start < end]
        ordered = tuple(sorted(inside, key=lambda s: s.start))
        lanes.append(Lane(request_id, life, ordered, first.get(request_id)))
    return lanes


def _tokens(index: Index) -> dict[tuple[int, int], int]:
    """(request code, place of the step) -> tokens of its row."""
    rows = index.rows
    return dict(zip(zip(rows.request.tolist(), rows.step.tolist(), strict=True), rows.num_tokens.tolist(), strict=True))


def _waits(request_id: str, life: Life) -> Iterator[Stretch]:
    for start, end in life.queues:
        yield Stretch(request_id, "queued" if start == life.submitted else "preempted", start, end)


def _runs(
    index: Index, request_id: str, life: Life, tokens: dict[tuple[int, int], int], low: int, high: int
) -> Iterator[Stretch]:
    """Neighbouring steps of one kind as one stretch."""
    inside = np.flatnonzero((life.places >= low) & (life.places <= high))
    if not len(inside):
        return
    lost = next((start for start, _ in life.queues if start != life.submitted), None)
    kinds = [_kind(bool(life.is_prefill[i]), lost is not None and life.times[i][0] >= lost) for i in inside]
    cuts = [k for k in range(1, len(inside)) if kinds[k] != kinds[k - 1] or _apart(life, inside[k - 1], inside[k])]
    code = index.code[request_id]
    for a, b in zip([0, *cuts], [*cuts, len(inside)], strict=True):
        places = [int(life.places[i]) for i in inside[a:b]]
        given = sum(tokens.get((code, place), 0) for place in places)
        numbers = index.steps[places[0]].step, index.steps[places[-1]].step
        times = life.times[inside[a]][0], life.times[inside[b - 1]][1]
        yield Stretch(request_id, kinds[a], *times, *numbers, given)


def _kind(is_prefill: bool, is_again: bool) -> str:
    return ("recompute" if is_again else "prefill") if is_prefill else "decode"


def _apart(life: Life, one: int, other: int) -> bool:
    return bool(life.places[other] != life.places[one] + 1)
