"""HTTP exchanges: the wire events and stages of both sides, joined by their links."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from llmlab.trace.events import Stage, WireEvent, WireLink

CLIENT, GATEWAY = "client", "gateway"


@dataclass(slots=True)
class Exchange:
    """One HTTP request and its response, as far as either side recorded them.

    ``wire_id`` is the gateway's id, ``None`` when no gateway recorded the exchange; ``client_id`` the client's,
    ``None`` when it gave none. ``request_ids`` are the engine requests that serve it. Events are in order of time.
    """

    wire_id: str | None = None
    client_id: str | None = None
    request_ids: tuple[str, ...] = ()
    events: list[WireEvent] = field(default_factory=list)
    stages: list[Stage] = field(default_factory=list)

    @property
    def id(self) -> str:
        """What names it in the trace: the gateway's id, or the client's when there is no other."""
        return self.client_id if self.wire_id is None else self.wire_id

    @property
    def sides(self) -> set[str]:
        """Who recorded something about it."""
        return {event.side for event in self.events} | {stage.side for stage in self.stages}

    @property
    def start_ns(self) -> int:
        """The first moment that is recorded on either side."""
        return min(event.t_ns for event in (*self.events, *self.stages))

    @property
    def end_ns(self) -> int:
        """The last moment that is recorded on either side."""
        return max([*(event.t_ns for event in self.events), *(stage.end_ns for stage in self.stages)])

    def of(self, side: str) -> list[WireEvent]:
        """The wire events that one side recorded."""
        return [event for event in self.events if event.side == side]

    def seen_by(self, side: str) -> Exchange:
        """The exchange with what one side recorded only."""
        stages = [stage for stage in self.stages if stage.side == side]
        return Exchange(self.wire_id, self.client_id, self.request_ids, self.of(side), stages)


@dataclass(frozen=True, slots=True)
class Exchanges:
    """All exchanges of a trace in the order in which they began, and where each id leads.

    The ids of the two sides are kept apart: a client chooses its own freely, also one that a gateway has given. What
    others, such as a proxy, recorded under an id that neither side uses, and what has an empty id, is in ``strays``
    and not among ``all``.
    """

    all: list[Exchange]
    by_wire_id: dict[str, Exchange]
    by_client_id: dict[str, Exchange]
    by_request_id: dict[str, Exchange]
    strays: dict[str, Exchange]

    def find(self, any_id: str) -> Exchange | None:
        """The exchange of a gateway's id, else of a client's."""
        return self.by_wire_id.get(any_id) or self.by_client_id.get(any_id)

    def owner(self, event: WireEvent | Stage) -> Exchange | None:
        """The exchange an event belongs to; others than the two sides may know it by either id."""
        if not event.wire_id:
            return self.strays.get("")
        if event.side == GATEWAY:
            return self.by_wire_id.get(event.wire_id)
        if event.side == CLIENT:
            return self.by_client_id.get(event.wire_id)
        known = self.by_client_id.get(event.wire_id) or self.by_wire_id.get(event.wire_id)
        return known or self.strays.get(event.wire_id)


def join(events: Iterable[WireEvent], stages: Iterable[Stage], links: Iterable[WireLink]) -> Exchanges:
    """Put exchanges together. What a client recorded under an id that several exchanges name goes to the last one."""
    found = Exchanges([], {}, {}, {}, {})
    for link in links:
        _follow(found, link)
    events, stages = list(events), list(stages)
    for event in sorted((*events, *stages), key=lambda e: e.side not in (CLIENT, GATEWAY)):
        _ensure(found, event)
    for event in events:
        found.owner(event).events.append(event)
    for stage in stages:
        found.owner(stage).stages.append(stage)
    exchanges = {id(exchange): exchange for exchange in (*found.by_wire_id.values(), *found.by_client_id.values())}
    for exchange in exchanges.values():  # a side may record its request after the answer to it
        exchange.events.sort(key=lambda event: event.t_ns)
    recorded = [exchange for exchange in exchanges.values() if exchange.events or exchange.stages]
    found.all.extend(sorted(recorded, key=lambda exchange: exchange.start_ns))
    return found


def _follow(found: Exchanges, link: WireLink) -> None:
    exchange = found.by_wire_id.setdefault(link.wire_id, Exchange(wire_id=link.wire_id))
    if link.relation == "client":
        exchange.client_id = link.other_id
        found.by_client_id[link.other_id] = exchange
    elif link.relation == "engine" and link.other_id not in exchange.request_ids:
        exchange.request_ids += (link.other_id,)
        found.by_request_id.setdefault(link.other_id, exchange)


def _ensure(found: Exchanges, event: WireEvent | Stage) -> None:
    """Make the exchange of an event, if there is none; that of a proxy's event only when no side has it."""
    if found.owner(event) is not None:
        return
    if event.wire_id and event.side == GATEWAY:
        found.by_wire_id[event.wire_id] = Exchange(wire_id=event.wire_id)
    elif event.wire_id and event.side == CLIENT:
        found.by_client_id[event.wire_id] = Exchange(client_id=event.wire_id)
    else:
        found.strays[event.wire_id] = Exchange(wire_id=event.wire_id)
