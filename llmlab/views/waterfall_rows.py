"""What a waterfall shows, before it has a place: the stages, steps and moments of one request, by who recorded them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from llmlab.trace.events import Stage
from llmlab.trace.exchange import CLIENT, GATEWAY, Exchange
from llmlab.trace.handoffs import PREFILL_PROCESS, TRANSFER, divide, elsewhere
from llmlab.trace.index import Index
from llmlab.trace.requests import participation
from llmlab.trace.spans import PHASES
from llmlab.views.glyphs import visible

ENGINE = "engine"
MAX_STAGES = 24  # names of stages per side that get a row of their own
TROUBLE = ("retry", "warning", "fault", "disconnect", "error")


@dataclass(slots=True)
class Row:
    """One line of the waterfall.

    ``times`` are ``(from, to)`` in ns, both equal for a moment; ``steps`` the engine steps they belong to, one for each
    or none at all; ``note`` a word or two that a second run repeats.
    """

    side: str
    name: str
    times: list[tuple[int, int]]
    kind: str = "stage"
    indent: int = 0
    note: str = ""
    steps: list[int] = field(default_factory=list)

    @property
    def is_moment(self) -> bool:
        """Whether nothing in it lasts."""
        return all(start == end for start, end in self.times)

    @property
    def total(self) -> int:
        """Nanoseconds of all its stretches."""
        return sum(end - start for start, end in self.times)


@dataclass(frozen=True, slots=True)
class Life:
    """One request in the engine (ns).

    ``places`` are those in ``index.steps`` of the steps it took part in, ``times`` their ``(from, to)`` cut at its end,
    ``queues`` the stretches in which it waited to be let in.
    """

    submitted: int
    end: int
    is_finished: bool
    places: np.ndarray
    is_prefill: np.ndarray
    times: list[tuple[int, int]]
    queues: list[tuple[int, int]]


def life_of(index: Index, request_id: str) -> Life:
    """When the request was queued and when it was in a step."""
    return lives_of(index, [request_id])[request_id]


def lives_of(index: Index, request_ids: Sequence[str]) -> dict[str, Life]:
    """:func:`life_of` of several requests."""
    request, step, is_prefill = participation(index)
    preempted: dict[str, list[int]] = {}
    for decision in index.decisions:
        if decision.action == "preempted":
            preempted.setdefault(decision.request_id, []).append(decision.t_ns)
    lives = {}
    for request_id in request_ids:
        code = index.code[request_id]
        mine = slice(*np.searchsorted(request, [code, code + 1]))
        lives[request_id] = _life(
            index, request_id, step[mine], is_prefill[mine], sorted(preempted.get(request_id, []))
        )
    return lives


def _life(index: Index, request_id: str, places: np.ndarray, is_prefill: np.ndarray, preempted: list[int]) -> Life:
    finished, submitted = index.finished.get(request_id), index.submitted.get(request_id)
    last = int(index.marks[-1, 6]) if index.steps else max((e.t_ns for e in index.events), default=0)
    starts, ends = index.marks[places, 0].tolist(), index.marks[places, 6].tolist()
    begin = submitted.t_ns if submitted else min([*starts, finished.t_ns if finished else last])
    end = max(finished.t_ns if finished else last, begin)
    times = [(max(a, begin), min(b, end)) for a, b in zip(starts, ends, strict=True)]
    queues = list(_queues(begin, end, [start for start, _ in times], preempted))
    return Life(begin, end, finished is not None, places, is_prefill, times, queues)


def _queues(begin: int, end: int, starts: list[int], preempted: list[int]) -> Iterator[tuple[int, int]]:
    for left in [begin, *preempted]:
        joined = next((start for start in starts if start >= left), end)
        if left < joined:
            yield left, joined


def rows_of(index: Index, request_id: str, life: Life) -> list[Row]:
    """All rows from the client's to the engine's, without empty ones."""
    exchange = index.exchanges.by_request_id.get(request_id)
    rows = [] if exchange is None else [*_side(exchange, CLIENT), *_side(exchange, GATEWAY)]
    return [row for row in [*rows, *_engine(index, request_id, life)] if row.times]


# -- the wire's two sides ------------------------------------------------------------------------------------


def _side(exchange: Exchange, side: str) -> list[Row]:
    stages: dict[str, list[Stage]] = {}
    for stage in sorted((s for s in exchange.stages if s.side == side), key=lambda s: s.t_ns):
        stages.setdefault(stage.name, []).append(stage)
    named = [_stage_row(side, name, found) for name, found in stages.items()]
    rest = [time for row in named[MAX_STAGES:] for time in row.times]
    folded = [Row(side, f"{len(named) - MAX_STAGES} further stages", rest)] if rest else []
    first, *moments = _moments(exchange, side)
    return [first, *named[:MAX_STAGES], *folded, *moments]


def _stage_row(side: str, name: str, found: Sequence[Stage]) -> Row:
    outcomes = [visible(s.outcome) for s in found if s.outcome != "ok"]
    note = " ".join(dict.fromkeys(outcomes)) + (f" ×{len(found)}" if len(found) > 1 else "")
    return Row(side, visible(name, limit=60), [(s.t_ns, s.end_ns) for s in found], note=note.strip())


def _moments(exchange: Exchange, side: str) -> list[Row]:
    out, back = ("sent", "received") if side == CLIENT else ("received", "sent")
    events = exchange.of(side)
    at = {kind: [e.t_ns for e in events if e.kind == kind] for kind in ("request", "response", "frame", "delta", "end")}
    rows = [
        Row(side, f"request {out}", _points(at["request"]), "moment"),
        Row(side, f"response {back}", _points(at["response"]), "moment"),
        Row(side, f"frames {back}", _points(at["frame"]), "ticks"),
        Row(side, "first delta", _points(at["delta"][:1]), "moment"),
        Row(side, "end", _points(at["end"]), "moment"),
    ]
    return rows + [Row(side, kind, _points([e.t_ns for e in events if e.kind == kind]), "trouble") for kind in TROUBLE]


def _points(times: Sequence[int]) -> list[tuple[int, int]]:
    return [(t_ns, t_ns) for t_ns in times]


# -- the engine ----------------------------------------------------------------------------------------------


def _engine(index: Index, request_id: str, life: Life) -> list[Row]:
    spans: dict[str, list[tuple[int, int]]] = {}
    for span in index.spans:
        if span.request_id == request_id:
            spans.setdefault(span.name, []).append((span.t_ns, span.end_ns))
    emitted = [t.t_ns for t in index.texts if t.request_id == request_id]
    first = next(((t.t_ns, t.t_ns) for t in index.tokens if t.request_id == request_id), None)
    waits: dict[str, list[tuple[int, int]]] = {"queue": [], PREFILL_PROCESS: [], TRANSFER: []}
    for queue in life.queues:
        for name, start, end in divide(*queue, elsewhere(index).get(request_id, []), rest="queue"):
            waits[name].append((start, end))
    spans.pop(PREFILL_PROCESS, None)
    return [
        *(Row(ENGINE, visible(name, limit=60), times) for name, times in list(spans.items())[:MAX_STAGES]),
        Row(ENGINE, "queue", [(start, end) for start, end in waits["queue"] if start < end] or life.queues, "queue"),
        *(Row(ENGINE, name, waits[name]) for name in (PREFILL_PROCESS, TRANSFER) if waits[name]),
        _steps(index, life, "prefill", life.is_prefill),
        Row(ENGINE, "first token", [first] if first else [], "moment"),
        _steps(index, life, "decode", ~life.is_prefill),
        Row(ENGINE, "between its steps", between(life), "between"),
        *_phases(index, life),
        Row(ENGINE, "text handed on", _points(emitted), "ticks"),
    ]


def _steps(index: Index, life: Life, kind: str, mine: np.ndarray) -> Row:
    chosen = np.flatnonzero(mine).tolist()
    steps = [index.steps[life.places[i]].step for i in chosen]
    return Row(ENGINE, kind, [life.times[i] for i in chosen], kind, 0, _counted(len(steps)), steps)


def _counted(number: int) -> str:
    return f"{number} step" + ("s" if number != 1 else "")


def between(life: Life) -> list[tuple[int, int]]:
    """The stretches of a request's time in the engine in which it was neither queued nor in a step of its own."""
    found, cursor = [], life.submitted
    for start, end in sorted([*life.times, *life.queues]):
        if start > cursor:
            found.append((cursor, start))
        cursor = max(cursor, end)
    return [*found, (cursor, life.end)] if cursor < life.end else found


def _phases(index: Index, life: Life) -> Iterator[Row]:
    """What its steps were spent on; a step's phases are those of the whole batch."""
    marks = np.minimum(index.marks[life.places], life.end)
    steps = [index.steps[place].step for place in life.places]
    for i, name in enumerate(PHASES):
        times = [(int(start), int(end)) for start, end in marks[:, i : i + 2]]
        yield Row(ENGINE, name, times, "phase", 1, "", steps)
