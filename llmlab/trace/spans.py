"""Nested spans whose leaves tile each request from its first stage to its end.

A request's root holds its client-side stages, then alternately ``queue`` and the steps that ran while it was
in the batch: ``prefill`` or ``decode`` (with the step's phases as leaves) where it took part, ``wait`` where
it did not, and ``between steps`` in the gaps. Where another process computes prompts, its work and the transfer of the
K/V are cut out of the queue. Everything is clipped to the request's own beginning and end. The root
of a request that came over the wire hangs in the tree of its exchange: :mod:`llmlab.trace.exchange_spans`.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, field

import numpy as np
import pandas as pd

from llmlab.trace.columns import integers, objects, table
from llmlab.trace.events import Span
from llmlab.trace.exchange_spans import add_exchanges
from llmlab.trace.handoffs import PREFILL_PROCESS, divide, elsewhere
from llmlab.trace.index import Index
from llmlab.trace.requests import participation
from llmlab.trace.schedule import spread
from llmlab.trace.span_table import NO_REQUEST, NO_STEP, ROOT, Places, SpanTable, free_standing

PHASES = ("schedule", "build batch", "forward", "sample", "detokenize", "emit")


@dataclass(slots=True)
class _Life:
    """One request on the clock: queued and in the batch by turns, without a hole from ``submitted`` to
    ``end``.

    ``residences`` are ``(place of the first step, from, to)`` in nanoseconds.
    """

    request: int
    start: int
    submitted: int
    end: int
    stages: list[Span] = field(default_factory=list)
    queues: list[tuple[int, int]] = field(default_factory=list)
    residences: list[tuple[int, int, int]] = field(default_factory=list)

    def split(self, steps: np.ndarray, starts: list[int], preempted: list[int]) -> None:
        """Cut the time from submission to end; ``starts``: when the ``steps`` it took part in began."""
        cursor, done = self.submitted, 0
        for boundary in [*(t for t in preempted if self.submitted < t < self.end), self.end]:
            joined = boundary
            if done < len(starts) and starts[done] < boundary:
                joined = max(starts[done], cursor)
                self.residences.append((int(steps[done]), joined, boundary))
                done = bisect_left(starts, boundary)
            self.queues.append((cursor, joined))
            cursor = boundary


def spans(index: Index) -> pd.DataFrame:
    """All spans: one tree per exchange or request, one per engine step, and stages outside both as own roots."""
    built = SpanTable()
    lives = _lives(index)
    places = free_standing(len(lives))
    add_exchanges(built, index, [(life.start, life.end) for life in lives], places)
    roots = _add_roots(built, lives, places, _waits(index, lives))
    _add_residences(built, index, lives, roots)
    _add_loose(built, index, {id(stage) for life in lives for stage in life.stages})
    _add_engine_steps(built, index)
    parent, exchange, request, step, name, start, end, depth = built.columns()
    names = np.array(list(built.names), dtype=object)
    ids = np.array([*index.request_ids, None], dtype=object)
    wire_ids = np.array([*(e.id for e in index.exchanges.all), None], dtype=object)
    return table(
        "spans",
        {
            "span_id": np.arange(built.size),
            "parent_id": integers(parent).mask(parent == ROOT),
            "request_id": objects(ids[request]),
            "wire_id": objects(wire_ids[exchange]),
            "step": integers(step).mask(step == NO_STEP),
            "name": objects(names[name]),
            "start_s": index.seconds(start),
            "end_s": index.seconds(end),
            "duration_ms": (end - start) / 1e6,
            "depth": depth,
        },
    )


def leaves(spans: pd.DataFrame, request_id: str | None = None, wire_id: str | None = None) -> pd.DataFrame:
    """The spans that tile their roots: the innermost of each tree. ``request_id`` or ``wire_id`` picks a tree."""
    found = spans[(spans.depth > 0) & ~spans.span_id.isin(spans.parent_id.dropna())]
    if request_id is not None:
        return found[found.request_id == request_id]
    return found if wire_id is None else found[found.wire_id == wire_id]


# -- requests ------------------------------------------------------------------------------------------------


def _lives(index: Index) -> list[_Life]:
    request, step, _ = participation(index)
    bounds = np.searchsorted(request, np.arange(len(index.request_ids) + 1))
    preempted: dict[str, list[int]] = {}
    for decision in index.decisions:
        if decision.action == "preempted":
            preempted.setdefault(decision.request_id, []).append(decision.t_ns)
    stages, there = _stages(index), elsewhere(index)
    lives = []
    for code, request_id in enumerate(index.request_ids):
        steps = step[bounds[code] : bounds[code + 1]]
        # K/V may arrive while the step that takes it in has already begun
        arrived = max((end for _, _, end in there.get(request_id, ())), default=0)
        starts = np.maximum(index.marks[steps, 0], arrived).tolist()
        life = _life(index, code, starts, stages.get(request_id, []))
        life.split(steps, starts, sorted(preempted.get(request_id, [])))
        lives.append(life)
    return lives


def _life(index: Index, code: int, starts: list[int], stages: list[Span]) -> _Life:
    """Beginning and end of a request; what is not recorded is taken from the first and last step that is."""
    request_id = index.request_ids[code]
    submitted, finished = index.submitted.get(request_id), index.finished.get(request_id)
    last = int(index.marks[-1, 6]) if index.steps else index.start_ns
    end = finished.t_ns if finished else last
    begin = submitted.t_ns if submitted else min([*starts, end])
    stages = stages if submitted else []
    start = min([begin, *(s.t_ns for s in stages)])
    return _Life(code, start, begin, max(end, begin), stages)


def _stages(index: Index) -> dict[str, list[Span]]:
    """Each request's stages that end before its submission and do not overlap, in order."""
    found: dict[str, list[Span]] = {}
    for span in sorted(index.spans, key=lambda s: s.t_ns):
        submitted = index.submitted.get(span.request_id)
        if submitted is None or span.end_ns > submitted.t_ns:
            continue
        before = found.setdefault(span.request_id, [])
        if not before or before[-1].end_ns <= span.t_ns:
            before.append(span)
    return found


def _waits(index: Index, lives: list[_Life]) -> list[tuple[int, str, int, int]]:
    """``(request, name, begin, end)`` of the time outside the batch: in the queue, or in the prefill process."""
    there = elsewhere(index)
    return [
        (life.request, *piece)
        for life in lives
        for queue in life.queues
        for piece in divide(*queue, there.get(index.request_ids[life.request], []), rest="queue")
    ]


def _add_roots(built: SpanTable, lives: list[_Life], places: Places, waits: list[tuple[int, str, int, int]]) -> Places:
    """Roots, stages and queues; returns the places of what goes below the roots."""
    code = np.array([life.request for life in lives], dtype=np.int64)
    start = np.array([life.start for life in lives], dtype=np.int64)
    end = np.array([life.end for life in lives], dtype=np.int64)
    ids = built.add(code, NO_STEP, built.name("request"), start, end, **places.below(code, 0))
    roots = Places(ids, places.depth, places.exchange)
    parts = [(request, built.name(name), *times) for request, name, *times in waits]
    for life in lives:
        cursor = life.start
        for stage in life.stages:
            parts.append((life.request, built.name("between stages"), cursor, stage.t_ns))
            parts.append((life.request, built.name(stage.name), stage.t_ns, stage.end_ns))
            cursor = stage.end_ns
        parts.append((life.request, built.name("between stages"), cursor, life.submitted))
    request, name, begin, end = np.array(parts, dtype=np.int64).reshape(-1, 4).T
    keep = end > begin
    request, begin, end = request[keep], begin[keep], end[keep]
    built.add(request, NO_STEP, name[keep], begin, end, **roots.below(request, 1))
    return roots


def _add_residences(built: SpanTable, index: Index, lives: list[_Life], roots: Places) -> None:
    """The steps, and the gaps between them, of every stay in the batch."""
    stays = [(life.request, *residence) for life in lives for residence in life.residences]
    request, first, begin, end = np.array(stays, dtype=np.int64).reshape(-1, 4).T
    after = np.searchsorted(index.marks[:, 0], end, side="left")
    stay, offset = spread(after - first)
    step, request, begin, end = first[stay] + offset, request[stay], begin[stay], end[stay]
    is_last = step == after[stay] - 1
    low = np.maximum(index.marks[step, 0], begin)
    high = np.maximum(np.minimum(index.marks[step, 6], end), low)
    _add_steps(built, index, request, step, low, high, roots)
    following = np.append(index.marks[1:, 0], 0)[step]
    until = np.where(is_last, end, np.minimum(following, end))
    name = np.where(_is_hole(index, request, step, is_last), built.name("not recorded"), built.name("between steps"))
    keep = until > high
    request = request[keep]
    built.add(request, NO_STEP, name[keep], high[keep], until[keep], **roots.below(request, 1))


def _is_hole(index: Index, request: np.ndarray, step: np.ndarray, is_last: np.ndarray) -> np.ndarray:
    """Whether a step that is not in the trace (it failed, or its record was dropped) lies after ``step``."""
    numbers = index.step_numbers
    skipped = np.append(numbers[1:] != numbers[:-1] + 1, False)[: len(numbers)][step]
    ends = {index.code[i]: f.step for i, f in index.finished.items() if f.stop_reason != "aborted"}
    final = np.array([ends.get(code, NO_STEP) for code in range(len(index.request_ids))], dtype=np.int64)
    return np.where(is_last, final[request] > numbers[step], skipped)


def _add_steps(
    built: SpanTable,
    index: Index,
    request: np.ndarray,
    step: np.ndarray,
    low: np.ndarray,
    high: np.ndarray,
    roots: Places,
) -> None:
    keep = high > low
    request, step, low, high = request[keep], step[keep], low[keep], high[keep]
    took_part, is_prefill = _roles(index, request, step)
    name = np.where(is_prefill, built.name("prefill"), built.name("decode"))
    name = np.where(took_part, name, built.name("wait"))
    numbers = index.step_numbers[step]
    nodes = built.add(request, numbers, name, low, high, **roots.below(request, 1))
    for i, phase in enumerate(PHASES):
        start = np.maximum(index.marks[step, i], low)
        end = np.minimum(index.marks[step, i + 1], high)
        has = took_part & (end > start)
        below = roots.below(request[has], 2, nodes[has])
        built.add(request[has], numbers[has], built.name(phase), start[has], end[has], **below)


def _roles(index: Index, request: np.ndarray, step: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Whether each (request, step) is one in which the request took part, and with prefill."""
    theirs, steps, is_prefill = participation(index)
    known = theirs * (len(index.steps) + 1) + steps
    key = request * (len(index.steps) + 1) + step
    place = np.searchsorted(known, key).clip(max=max(len(known) - 1, 0))
    took_part = known[place] == key if len(known) else np.zeros(len(key), dtype=bool)
    return took_part, is_prefill[place] & took_part if len(known) else took_part


# -- engine --------------------------------------------------------------------------------------------------


def _add_loose(built: SpanTable, index: Index, placed: set[int]) -> None:
    """Stages that are in no request's tree: the engine's own, later ones, overlapping ones."""
    for span in index.spans:
        if id(span) not in placed and span.name != PREFILL_PROCESS:
            code = index.code.get(span.request_id, NO_REQUEST)
            built.add(code, NO_STEP, built.name(span.name), span.t_ns, span.end_ns)


def _add_engine_steps(built: SpanTable, index: Index) -> None:
    marks, numbers = index.marks, index.step_numbers
    roots = built.add(NO_REQUEST, numbers, built.name("step"), marks[:, 0], marks[:, 6])
    for i, phase in enumerate(PHASES):
        built.add(NO_REQUEST, numbers, built.name(phase), marks[:, i], marks[:, i + 1], parent=roots, depth=1)
