"""A bounded run of recent events that still says what came before: who the requests are, where each block stands."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from llmlab.trace.events import (
    BlockEvent,
    Captured,
    Decision,
    DraftPolicy,
    DraftRound,
    EngineInfo,
    Event,
    Gap,
    ProbeNote,
    RequestFinished,
    RequestSubmitted,
    Span,
    Stage,
    Step,
    TextEmitted,
    Token,
    WireEvent,
    WireLink,
)
from llmlab.trace.split_events import BlockTransfer, Collective, RankWork
from llmlab.widgets.pool_life import PoolLife

MAX_EVENTS = 12_000  # more are thinned out
MAX_STEPS = 300  # whole steps that stay then
MAX_EARLIER = 4_000  # events from before those steps, about requests and exchanges that go on

_ONE_PER_REQUEST = (RequestSubmitted, RequestFinished)
_OF_ITS_SUBJECT = (
    Token,
    TextEmitted,
    Span,
    DraftRound,
    Captured,
    ProbeNote,
    BlockTransfer,
    WireEvent,
    Stage,
    WireLink,
)
_LATEST = (Decision, DraftPolicy)  # these hold until the next about the same request


class Window:
    """All events while there are few of them; else the last steps, and of earlier events those still needed.

    ``count`` is the number of events ever taken in.
    """

    def __init__(self) -> None:
        self.count = 0
        self._pool = PoolLife()
        self._head: list[Event] = []  # engine and gap, then what is left from before the steps in _events
        self._earlier: list[Event] = []
        self._events: list[Event] = []

    def extend(self, events: Sequence[Event]) -> None:
        """Take in what was recorded next."""
        self._events.extend(events)
        self.count += len(events)
        if len(self._events) + len(self._earlier) > MAX_EVENTS:
            self._thin()

    def events(self) -> list[Event]:
        """What is left, in the order of the recording but for what came before the window's steps."""
        return [*self._head, *self._pool.events(), *self._earlier, *self._events]

    def _thin(self) -> None:
        cut = self._cut()
        old, self._events = self._events[:cut], self._events[cut:]
        for event in old:
            self._keep_pool(event)
        alive = {subject for event in self._events for subject in _subjects(event)}
        self._earlier = _still_needed([*self._earlier, *old], alive)

    def _keep_pool(self, event: Event) -> None:
        if isinstance(event, BlockEvent):
            self._pool.add(event)
        elif isinstance(event, Gap):  # the pool's state before it is not known
            self._pool = PoolLife()
            self._head = [*(e for e in self._head if not isinstance(e, Gap)), event]
        elif isinstance(event, EngineInfo):
            self._head = [event, *(e for e in self._head if not isinstance(e, EngineInfo))]

    def _cut(self) -> int:
        """Where the last steps begin: at most ``MAX_STEPS``, fewer when they alone are too many events."""
        ends = [i + 1 for i, event in enumerate(self._events) if type(event) is Step]
        least = len(self._events) - MAX_EVENTS // 2
        by_steps = ends[-MAX_STEPS - 1] if len(ends) > MAX_STEPS else 0
        by_size = next((end for end in ends if end >= least), least)
        return max(by_steps, by_size)


def _still_needed(events: Iterable[Event], alive: set[str]) -> list[Event]:
    """Who the subjects in ``alive`` are, their latest decisions, and as much else about them as there is room for."""
    names: list[Event] = []
    latest: dict[tuple, Event] = {}
    rest: list[Event] = []
    for event in events:
        if isinstance(event, _LATEST):
            if event.request_id is None or event.request_id in alive:
                latest[type(event), event.request_id] = event
        elif alive.intersection(_subjects(event)):
            (names if isinstance(event, _ONE_PER_REQUEST) else rest).append(event)
    kept = [event for event in rest if isinstance(event, _OF_ITS_SUBJECT)]
    return [*names, *kept[-MAX_EARLIER:], *latest.values()]


def _subjects(event: Event) -> tuple[str, ...]:
    """The requests and exchanges an event is about."""
    match event:
        case Step():
            return tuple(row.request_id for row in event.rows)
        case WireLink():
            return event.wire_id, event.other_id
        case WireEvent() | Stage():
            return (event.wire_id,)
        case EngineInfo() | Gap() | RankWork() | Collective():
            return ()
    return () if event.request_id is None else (event.request_id,)
