"""HTTP exchanges in the Chrome trace JSON: processes ``client`` and ``gateway`` with one track per exchange.

A track has the exchange as its side saw it with the side's stages inside; what overlaps instead of nesting is
asynchronous. Arrows lead from the client's request to the gateway and from there to the engine's requests. Bodies,
frames and other texts are left out.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from typing import Any

from llmlab.trace.events import Stage
from llmlab.trace.exchange import CLIENT, GATEWAY, Exchange
from llmlab.trace.index import Index

PROCESSES = {CLIENT: 3, GATEWAY: 4}
INSTANTS = ("retry", "warning", "fault", "disconnect", "error")

TraceEvent = dict[str, Any]
Track = tuple[int, int]


def wire_events(index: Index, request_tracks: dict[str, Track]) -> Iterator[TraceEvent]:
    """All events of the two processes; ``request_tracks`` are the (pid, tid) of the engine's requests."""
    found = index.exchanges.all
    if found:
        yield from (_metadata("process_name", pid, 0, side) for side, pid in PROCESSES.items())
    for tid, exchange in enumerate(found, start=1):
        for side, pid in PROCESSES.items():
            if side in exchange.sides:
                yield _metadata("thread_name", pid, tid, f"exchange {exchange.id}")
                yield from _side(index, exchange, side, (pid, tid))
    yield from _arrows(index, request_tracks)


def _metadata(kind: str, pid: int, tid: int, name: str) -> TraceEvent:
    return {"ph": "M", "name": kind, "pid": pid, "tid": tid, "args": {"name": name}}


def _at(index: Index, track: Track, t_ns: int) -> TraceEvent:
    return {"pid": track[0], "tid": track[1], "cat": "llmlab", "ts": (t_ns - index.start_ns) / 1e3}


# -- tracks --------------------------------------------------------------------------------------------------


def _side(index: Index, exchange: Exchange, side: str, track: Track) -> Iterator[TraceEvent]:
    part = exchange.seen_by(side)
    start, end = part.start_ns, part.end_ns
    yield {**_at(index, track, start), "ph": "X", "name": "exchange", "dur": (end - start) / 1e3}
    for stage, is_nested in _nesting(part.stages):
        args = {"outcome": stage.outcome, "reason": stage.reason}
        event = {**_at(index, track, stage.t_ns), "name": stage.name, "args": args}
        if is_nested:
            yield {**event, "ph": "X", "dur": (stage.end_ns - stage.t_ns) / 1e3}
        else:
            number = f"{exchange.id} {side} {stage.t_ns} {stage.name}"
            yield {**event, "ph": "b", "id": number}
            yield {**event, "ph": "e", "id": number, "ts": (stage.end_ns - index.start_ns) / 1e3}
    for event in part.events:
        if event.kind in INSTANTS:
            yield {
                **_at(index, track, event.t_ns),
                "ph": "i",
                "s": "t",
                "name": event.kind,
                "args": {"what": event.name},
            }


def _nesting(stages: list[Stage]) -> Iterator[tuple[Stage, bool]]:
    """Each stage, and whether it lies inside or after those that were accepted before it."""
    open_until: list[int] = []
    for stage in sorted(stages, key=lambda s: (s.t_ns, -s.end_ns)):
        while open_until and open_until[-1] <= stage.t_ns:
            open_until.pop()
        is_nested = stage.end_ns >= stage.t_ns and (not open_until or stage.end_ns <= open_until[-1])
        if is_nested:
            open_until.append(stage.end_ns)
        yield stage, is_nested


# -- arrows --------------------------------------------------------------------------------------------------


def _arrows(index: Index, request_tracks: dict[str, Track]) -> Iterator[TraceEvent]:
    numbers = count(1)
    for tid, exchange in enumerate(index.exchanges.all, start=1):
        sent = [e.t_ns for e in exchange.of(CLIENT) if e.kind == "request"]
        arrived = [e.t_ns for e in exchange.of(GATEWAY) if e.kind == "request"]
        if sent and arrived:
            start, end = (PROCESSES[CLIENT], tid), (PROCESSES[GATEWAY], tid)
            yield from _arrow(index, next(numbers), "carries", (start, sent[-1]), (end, arrived[0]))
    places = {id(exchange): tid for tid, exchange in enumerate(index.exchanges.all, start=1)}
    for link in index.links:
        exchange, submitted = index.exchanges.by_wire_id[link.wire_id], index.submitted.get(link.other_id)
        if link.relation == "engine" and submitted and GATEWAY in exchange.sides:
            start = (PROCESSES[GATEWAY], places[id(exchange)]), _within(exchange, min(link.t_ns, submitted.t_ns))
            yield from _arrow(index, next(numbers), "serves", start, (request_tracks[link.other_id], submitted.t_ns))


def _within(exchange: Exchange, t_ns: int) -> int:
    """A moment, moved into the gateway's slice: an arrow must touch a slice."""
    part = exchange.seen_by(GATEWAY)
    return min(max(t_ns, part.start_ns), part.end_ns)


def _arrow(
    index: Index, number: int, name: str, start: tuple[Track, int], end: tuple[Track, int]
) -> Iterator[TraceEvent]:
    (tail, begin), (head, until) = start, end
    yield {**_at(index, tail, begin), "ph": "s", "id": number, "name": name}
    yield {**_at(index, head, until), "ph": "f", "bp": "e", "id": number, "name": name}
