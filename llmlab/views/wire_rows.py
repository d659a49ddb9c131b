"""The recorded events of one exchange in the order in which they happened, a row each."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass, field

from llmlab.trace.events import WireEvent
from llmlab.trace.exchange import CLIENT, GATEWAY, Exchange
from llmlab.views.assembly import Applied, Assembly, whole

NOTICES = ("fault", "warning", "retry", "error", "disconnect", "end")


@dataclass(slots=True)
class Piece:
    """Bytes as they passed the socket; ``frames`` of them ended in it. ``number`` counts from 0."""

    number: int
    event: WireEvent
    frames: int = 0


@dataclass(slots=True)
class Row:
    """One thing that happened: ``kind`` is that of its event. Times are nanoseconds on each side, ``None`` where that
    side recorded nothing of it. ``number`` counts frames from 0."""

    kind: str
    event: WireEvent
    client_ns: int | None = None
    gateway_ns: int | None = None
    number: int | None = None
    piece: Piece | None = None
    applied: Applied | None = None

    @property
    def order(self) -> int:
        """The moment by which rows are put in order: the client's where there is one."""
        return self.event.t_ns


@dataclass(slots=True)
class Record:
    """An exchange ready to be drawn. ``side`` is whose frames are shown; ``attempts`` made under its id."""

    exchange: Exchange
    side: str
    attempts: int
    request: WireEvent | None
    response: WireEvent | None
    rows: list[Row] = field(default_factory=list)
    pieces: list[Piece] = field(default_factory=list)
    assembly: Assembly = field(default_factory=Assembly)
    is_streamed: bool = False

    @property
    def frames(self) -> list[Row]:
        """The rows that are frames."""
        return [row for row in self.rows if row.kind == "frame"]

    @property
    def start_ns(self) -> int:
        """Zero of the picture: the request of the last attempt, or the first thing recorded."""
        return self.request.t_ns if self.request is not None else self.exchange.start_ns


def read(exchange: Exchange) -> Record:
    """Put the last attempt of an exchange in order; the client's frames where it recorded any."""
    per_side = {side: _last_attempt(exchange.of(side)) for side in (CLIENT, GATEWAY)}
    has_client = any(e.kind in ("frame", "bytes", "response") for e in per_side[CLIENT])
    side = CLIENT if has_client or not per_side[GATEWAY] else GATEWAY
    events = per_side[side]
    request = _first(events, "request") or _first(per_side[GATEWAY], "request")
    response = _first(events, "response") or _first(per_side[GATEWAY], "response")
    attempts = sum(e.kind == "request" for e in exchange.of(side))
    record = Record(exchange, side, max(attempts, 1), request, response)
    record.pieces = [Piece(i, e) for i, e in enumerate(e for e in events if e.kind == "bytes")]
    frames = _frames(record, events, per_side[GATEWAY if side == CLIENT else CLIENT])
    record.is_streamed = bool(frames)
    heads = _heads(record, per_side)
    silent = [_of(e) for e in _silent(record)] if record.pieces else []
    others = [_of(e) for e in exchange.events if e.kind in NOTICES and e.t_ns >= record.start_ns]
    record.rows = heads[:1] + sorted(heads[1:] + frames + silent + others, key=lambda row: row.order)
    _assemble(record)
    return record


def _last_attempt(events: list[WireEvent]) -> list[WireEvent]:
    starts = [i for i, event in enumerate(events) if event.kind == "request"]
    return events[starts[-1] :] if starts else events


def _first(events: list[WireEvent], kind: str) -> WireEvent | None:
    return next((event for event in events if event.kind == kind), None)


def _of(event: WireEvent) -> Row:
    row = Row(event.kind, event)
    if event.side == CLIENT:
        row.client_ns = event.t_ns
    elif event.side == GATEWAY:
        row.gateway_ns = event.t_ns
    return row


def _heads(record: Record, per_side: dict[str, list[WireEvent]]) -> list[Row]:
    """Request and response, with the moment of each side."""
    rows = []
    for event in (record.request, record.response):
        if event is not None:
            row = _of(event)
            there = {side: _first(events, event.kind) for side, events in per_side.items()}
            row.client_ns = there[CLIENT].t_ns if there[CLIENT] else None
            row.gateway_ns = there[GATEWAY].t_ns if there[GATEWAY] else None
            rows.append(row)
    return rows


def _frames(record: Record, events: list[WireEvent], others: list[WireEvent]) -> list[Row]:
    mine = [_of(event) for event in events if event.kind == "frame"]
    theirs = [event for event in others if event.kind == "frame" and event.name != "comment"]
    starts = [piece.event.t_ns for piece in record.pieces]
    for row in mine:
        place = bisect_right(starts, row.event.t_ns) - 1
        if place >= 0:
            row.piece = record.pieces[place]
            row.piece.frames += 1
    paired = _pair(mine, theirs)
    left = theirs[paired:] if record.side == CLIENT else []  # the gateway sent them, the client has none of it
    rows = mine + [_of(event) for event in left]
    for number, row in enumerate(rows):
        row.number = number
    return rows


def _pair(mine: list[Row], theirs: list[WireEvent]) -> int:
    """Give frames the other side's moment: a stream keeps its order, so the first is the first, as long as names agree.

    Returns how many were paired.
    """
    own = [row for row in mine if row.event.name != "comment"]
    for row, event in zip(own, theirs, strict=False):
        if not _same_name(row.event.name, event.name):
            return len(theirs)  # not the same stream: nothing further can be said
        if event.side == GATEWAY:
            row.gateway_ns = event.t_ns
        else:
            row.client_ns = event.t_ns
    return len(own) if len(own) < len(theirs) else len(theirs)


def _same_name(one: str, other: str) -> bool:
    """A frame without a name is ``message`` to a parser and ``data`` to who wrote it."""
    unnamed = ("message", "data")
    return one == other or (one in unnamed and other in unnamed)


def _silent(record: Record) -> list[WireEvent]:
    """Pieces in which no frame ended: part of a frame, or a comment."""
    return [piece.event for piece in record.pieces if not piece.frames]


def _assemble(record: Record) -> None:
    """Apply the frames that are shown, or the body of a reply in one piece."""
    if not record.is_streamed:
        record.assembly = whole(reply_body(record))
        return
    for row in record.frames:
        if row.event.side == record.side:
            row.applied = record.assembly.take(row.event.name, row.event.text)


def reply_body(record: Record) -> str:
    """The body of a reply in one piece, as recorded: beside its head, or as the bytes that came."""
    received = "".join(piece.event.text or "" for piece in record.pieces)
    if received:
        return received
    gateway = _first(record.exchange.of(GATEWAY), "response")
    event = record.response if record.side == GATEWAY or gateway is None else gateway
    return "" if event is None else (event.text or "").partition("\n\n")[2]
