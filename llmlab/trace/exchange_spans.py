"""The tree of an HTTP exchange: what was going on in every moment, on one clock over client, gateway and engine.

The root ``exchange`` reaches from the first to the last thing recorded on either side. At each moment the innermost
stage is shown: an engine request (with its whole tree below it) before a gateway's stage, that before a client's, a
later one before an earlier one. Engine requests that overlap an earlier one of their exchange, such as the samples of
an ``n > 1`` group, cannot tile it with the others and stay trees of their own. Moments in which nothing was recorded
are ``streaming`` once a streamed answer has begun; before that ``between stages`` while the gateway has the request or
the client has not sent it, else ``network and waiting``.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from heapq import heappop, heappush
from itertools import groupby, pairwise

from llmlab.trace.events import Stage
from llmlab.trace.exchange import CLIENT, GATEWAY, Exchange
from llmlab.trace.index import Index
from llmlab.trace.span_table import NO_REQUEST, NO_STEP, Places, SpanTable

ENGINE = "engine"
IDLE = "gateway between its stages"
LEVELS = {CLIENT: 1, IDLE: 2, GATEWAY: 3, ENGINE: 4}
SEND, WAIT = "send", "wait"
BETWEEN, NETWORK, STREAMING = "between stages", "network and waiting", "streaming"


@dataclass(frozen=True, slots=True)
class Piece:
    """A stretch of time under one name (ns); ``request`` is the code of an engine request, or ``NO_REQUEST``."""

    start: int
    end: int
    side: str
    name: str
    request: int = NO_REQUEST


def add_exchanges(built: SpanTable, index: Index, bounds: Sequence[tuple[int, int]], places: Places) -> None:
    """Append every exchange's root and pieces, and hang the requests that fit under the roots.

    ``bounds`` are beginning and end (ns) of every request; ``places`` is filled in for the requests that fit.
    """
    parts: list[tuple[int, int, int, int, int]] = []
    for code, exchange in enumerate(index.exchanges.all):
        served = _served(index, exchange, bounds)
        start = min([exchange.start_ns, *(piece.start for piece in served)])
        end = max([exchange.end_ns, *(piece.end for piece in served)])
        (root,) = built.add(NO_REQUEST, NO_STEP, built.name("exchange"), start, end, exchange=code)
        for piece in served:
            places.parent[piece.request], places.depth[piece.request] = root, 1
            places.exchange[piece.request] = code
        for piece in tiles(exchange, served, start, end):
            if piece.request == NO_REQUEST:
                parts.append((built.name(piece.name), piece.start, piece.end, root, code))
    if parts:
        name, start, end, parent, exchange = zip(*parts, strict=True)
        built.add(NO_REQUEST, NO_STEP, name, start, end, parent=parent, depth=1, exchange=exchange)


def _served(index: Index, exchange: Exchange, bounds: Sequence[tuple[int, int]]) -> list[Piece]:
    """The exchange's engine requests that follow each other, in order."""
    found: list[Piece] = []
    for request_id in exchange.request_ids:
        submitted, code = index.submitted.get(request_id), index.code.get(request_id)
        is_sample = submitted is not None and submitted.parent_id is not None
        if code is not None and not is_sample and index.exchanges.by_request_id[request_id] is exchange:
            found.append(Piece(*bounds[code], ENGINE, "request", code))
    fitting: list[Piece] = []
    for piece in sorted(found, key=lambda p: (p.start, p.request)):
        if not fitting or piece.start >= fitting[-1].end:
            fitting.append(piece)
    return fitting


# -- tiling --------------------------------------------------------------------------------------------------


def tiles(exchange: Exchange, served: list[Piece], start: int, end: int) -> list[Piece]:
    """Pieces that follow each other from ``start`` to ``end`` without holes."""
    sides = exchange.sides
    pieces = [
        Piece(stage.t_ns, stage.end_ns, stage.side, stage.name)
        for stage in exchange.stages
        if not _is_waiting_for_the_other(stage, sides)
    ]
    if GATEWAY in sides:
        pieces += _idle(exchange.seen_by(GATEWAY))
    sent, answered = _sent(exchange, start), min((e.t_ns for e in exchange.events if e.kind == "frame"), default=end)
    found, cursor = [], start
    for piece in innermost([*pieces, *served]):
        found += [*_gap(cursor, piece.start, sent, answered), piece]
        cursor = piece.end
    return _joined([*found, *_gap(cursor, end, sent, answered)])


def _joined(pieces: list[Piece]) -> list[Piece]:
    """Neighbours without a stage made one, whether they lie in the gateway's time or outside it."""
    found: list[Piece] = []
    for piece in pieces:
        if found and piece.name == found[-1].name in (BETWEEN, NETWORK, STREAMING):
            piece = replace(piece, start=found.pop().start)
        found.append(piece)
    return found


def _is_waiting_for_the_other(stage: Stage, sides: set[str]) -> bool:
    """A client's wait is the sum of what the gateway did, where that is known."""
    return stage.side == CLIENT and stage.name == WAIT and GATEWAY in sides


def _idle(gateway: Exchange) -> list[Piece]:
    """The time in which the gateway has the request, to be shown where no stage of it is going on."""
    begin, end = gateway.start_ns, gateway.end_ns
    answered = min((event.t_ns for event in gateway.events if event.kind == "frame"), default=end)
    return [Piece(begin, answered, IDLE, BETWEEN), Piece(answered, end, IDLE, STREAMING)]


def _sent(exchange: Exchange, start: int) -> int:
    """When the request had left the client."""
    sent = [s.end_ns for s in exchange.stages if (s.side, s.name) == (CLIENT, SEND)]
    sent += [e.t_ns for e in exchange.events if (e.side, e.kind) == (CLIENT, "request")]
    return next(iter(sent), start)


def _gap(start: int, end: int, sent: int, answered: int) -> Iterator[Piece]:
    answered = max(sent, answered)
    for name, begin, until in ((BETWEEN, start, sent), (NETWORK, sent, answered), (STREAMING, answered, end)):
        begin, until = max(begin, start), min(until, end)
        if begin < until:
            yield Piece(begin, until, "", name)


def innermost(pieces: Sequence[Piece]) -> Iterator[Piece]:
    """For every moment the piece of the highest level that is going on, the latest begun of those; in order."""
    for _, stretches in groupby(_stretches(pieces), key=lambda stretch: id(stretch[0])):
        (piece, start, end), *rest = stretches
        if piece is not None:
            yield replace(piece, start=start, end=rest[-1][2] if rest else end)


def _stretches(pieces: Sequence[Piece]) -> Iterator[tuple[Piece | None, int, int]]:
    """``(innermost piece, from, to)`` between any two neighbouring beginnings or ends; ``None``: nothing going on."""
    ordered = sorted((p for p in pieces if p.end > p.start), key=lambda p: p.start)
    moments = sorted({moment for piece in ordered for moment in (piece.start, piece.end)})
    going_on: list[tuple[int, int]] = []
    arrived = 0
    for start, end in pairwise(moments):
        while arrived < len(ordered) and ordered[arrived].start <= start:
            heappush(going_on, (-LEVELS.get(ordered[arrived].side, 0), -arrived))
            arrived += 1
        while going_on and ordered[-going_on[0][1]].end <= start:
            heappop(going_on)
        yield ordered[-going_on[0][1]] if going_on else None, start, end
