"""Cutting the events of some requests, with the HTTP exchanges that carried them, out of a trace."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from llmlab.errors import UnknownRequest
from llmlab.trace.events import DraftPolicy, EngineInfo, Event, Gap, Stage, Step, WireEvent, WireLink
from llmlab.trace.exchange import Exchange
from llmlab.trace.index import Index
from llmlab.trace.split_events import Collective, RankWork

OF_STEPS = (Step, RankWork, Collective)
"""Events that belong to whatever was running."""


def resolve(index: Index, any_id: str) -> tuple[str, ...]:
    """The ids a part is made of: a request's own; an exchange's and those of all requests that served it.

    Raises ``UnknownRequest`` for an id that is neither a request's nor an exchange's.
    """
    if any_id in index.code:
        return (any_id,)
    exchange = index.exchanges.find(any_id)
    if exchange is not None:
        return (exchange.id, *(i for i in exchange.request_ids if i in index.code))
    known = [*index.request_ids, *(exchange.id for exchange in index.exchanges.all)]
    some = ", ".join(known[:8]) + (", ..." if len(known) > 8 else "")
    raise UnknownRequest(f"request {any_id!r} is not in the trace, which has: {some or 'none'}")


def events_of(index: Index, ids: Sequence[str]) -> list[Event]:
    """The requests' own events, their exchanges', the steps that ran during their lives, the info and all gaps.

    ``ids`` name requests, and exchanges as :func:`resolve` gives them.
    """
    wanted = [i for i in ids if i in index.code]
    belongs = _membership(index, set(wanted), _exchanges(index, ids))
    begin, end = _lifetime(index, wanted)
    return [
        event
        for event in index.events
        if (begin < event.end_ns and event.t_ns < end if isinstance(event, OF_STEPS) else belongs(event))
    ]


def _exchanges(index: Index, ids: Iterable[str]) -> set[int]:
    """Identities of the exchanges that ids name, or that carried the requests they name."""
    found: list[Exchange | None] = []
    for any_id in ids:
        is_request = any_id in index.code
        found.append(index.exchanges.by_request_id.get(any_id) if is_request else index.exchanges.find(any_id))
    return {id(exchange) for exchange in found if exchange is not None}


def _membership(index: Index, wanted: set[str], exchanges: set[int]) -> Callable[[Event], bool]:
    def belongs(event: Event) -> bool:
        if isinstance(event, (EngineInfo, Gap)):
            return True
        if isinstance(event, (WireEvent, Stage)):
            return id(index.exchanges.owner(event)) in exchanges
        if isinstance(event, WireLink):
            ours = id(index.exchanges.by_wire_id[event.wire_id]) in exchanges
            return ours and (event.relation != "engine" or event.other_id in wanted)
        return event.request_id in wanted or (isinstance(event, DraftPolicy) and event.request_id is None)

    return belongs


def _lifetime(index: Index, request_ids: Sequence[str]) -> tuple[int, int]:
    """From the first submission to the last end; unbounded where that is not recorded."""
    if not request_ids:
        return index.start_ns, index.start_ns
    submitted = [index.submitted[i].t_ns if i in index.submitted else index.start_ns for i in request_ids]
    last = max((step.end_ns for step in index.steps), default=index.start_ns) + 1
    finished = [index.finished[i].t_ns if i in index.finished else last for i in request_ids]
    return min(submitted), max(finished)
