"""Requests as whoever sent them saw them: when the first and each further token came, and what was counted."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pandas as pd

from llmlab.trace.exchange import CLIENT, GATEWAY, Exchange
from llmlab.trace.trace import Trace
from llmlab.trace.wire import Moments, moments
from llmlab.views.exchange_choice import choose_exchange
from llmlab.views.glyphs import fit, visible
from llmlab.views.looked import check_size
from llmlab.views.missing import missing_view
from llmlab.views.phrases import count
from llmlab.views.scene import Line, Mark, Rect, Scene, Text
from llmlab.views.timeaxis import duration
from llmlab.views.usage_counts import said_on_the_wire
from llmlab.views.view import View

MAX_ROWS, MAX_TICKS = 16, 240
ROW, TOP, BAR = 46, 46, 14
COLUMNS = {
    "exchange": "number, in the order in which they began",
    "id": "the gateway's id, or the client's when no gateway recorded it",
    "side": "who recorded the times",
    "name": "method and path",
    "status": "HTTP status",
    "outcome": "complete, disconnected, error or open",
    "ttft_ms": "milliseconds from sending to the first fragment",
    "fragments": "pieces of text or arguments that arrived",
    "itl_ms": "median milliseconds between two fragments",
    "total_ms": "milliseconds from sending to the end",
    "prompt_tokens": "as the server counted them on the wire",
    "output_tokens": "as the server counted them on the wire",
}


@dataclass(frozen=True, slots=True)
class Row:
    """One exchange; times in nanoseconds since it was sent, ``None`` for what was not recorded."""

    number: int
    exchange: Exchange
    side: str
    seen: Moments
    fragments: np.ndarray
    tokens: tuple[int, int] | None

    @property
    def total(self) -> int | None:
        """Until the end."""
        return None if self.seen.end is None or self.seen.sent is None else self.seen.end - self.seen.sent

    @property
    def last(self) -> int:
        """The last moment there is."""
        return max(self.total or 0, int(self.fragments[-1]) if len(self.fragments) else 0)

    @property
    def itl(self) -> float | None:
        """Median time between two fragments."""
        return float(np.median(np.diff(self.fragments))) if len(self.fragments) > 1 else None

    @property
    def outcome(self) -> str:
        """How it ended."""
        return self.seen.outcome or "open"


def exchanges(trace: Trace, wire_id: str | None = None, *, width: float = 960) -> View:
    """A bar for each exchange from sending to its end: the wait for the first fragment (TTFT), then a line for each.

    All bars begin at the left, so that their times compare. The latest are drawn, or those up to ``wire_id`` (any id
    of an exchange), which is outlined. Usage is what the server said on the wire; what it did not say is absent.
    Raises ``UnknownRequest``, and ``InvalidParameter`` for a width that cannot be drawn.
    """
    check_size("width", width, 480, 4_000)
    rows = [_row(i, each) for i, each in enumerate(trace.index.exchanges.all, 1)]
    if not rows and wire_id is None:
        what = "There is no exchange in this trace: lab.client().send({...}), or llmlab.connect(url), records one."
        return missing_view("exchanges", "Exchanges", what, list(COLUMNS), width)
    place = choose_exchange(trace, wire_id)[0]
    shown = rows[max(place + 1 - MAX_ROWS, 0) : max(place + 1, MAX_ROWS)]
    chosen = None if wire_id is None else rows[place]
    frame = pd.DataFrame(list(map(_facts, rows)), columns=list(COLUMNS))
    frame.attrs["columns"] = dict(COLUMNS)
    done = sum(row.outcome == "complete" for row in rows)
    alt = f"{count(len(rows), 'exchange')}, {done} complete, with the arrival of each fragment."
    notes = () if len(shown) == len(rows) else (f"{len(shown)} of {len(rows)} exchanges are drawn: see table().",)
    scene = Scene(width, TOP + ROW * len(shown) + 6, tuple(_marks(shown, chosen, width)))
    return View("exchanges", "Exchanges as they were seen", alt, "\n".join(map(_said, rows[-64:])), scene, frame, notes)


def _row(number: int, exchange: Exchange) -> Row:
    side = CLIENT if CLIENT in exchange.sides else GATEWAY
    seen = moments(exchange, side)
    sent = seen.sent if seen.sent is not None else exchange.start_ns
    # a request sent again begins anew: fragments of an earlier attempt are not this one's
    times = [event.t_ns for event in exchange.of(side) if event.kind == "delta"]
    first = seen.first_delta if seen.first_delta is not None else 0
    fragments = np.array([t - sent for t in times if first and t >= first], dtype=np.int64)
    said = said_on_the_wire(exchange)
    usage = said.usage if said else None
    return Row(number, exchange, side, seen, fragments, (usage.prompt, usage.output) if usage else None)


def _facts(row: Row) -> tuple:
    prompt, output = row.tokens or (None, None)
    ttft = row.fragments[0] / 1e6 if len(row.fragments) else None
    itl, total = (None if t is None else t / 1e6 for t in (row.itl, row.total))
    name = (row.number, row.exchange.id, row.side, row.seen.name, row.seen.status, row.outcome)
    return (*name, ttft, len(row.fragments), itl, total, prompt, output)


def _said(row: Row) -> str:
    status = "no answer" if row.seen.status is None else f"status {row.seen.status}"
    counted = "no usage" if row.tokens is None else f"usage: {row.tokens[0]} in, {row.tokens[1]} out"
    pieces = count(len(row.fragments), "fragment")
    return f"{row.number}. {visible(row.seen.name, limit=80)}: {status}, {row.outcome}, {pieces}, {counted}"


# -- picture --------------------------------------------------------------------------------------------------


def _marks(rows: list[Row], chosen: Row | None, width: float) -> Iterator[Mark]:
    yield Text(0, 12, "each bar begins when the request was sent", 11, "muted")
    yield Rect(0, 22, 18, 10, "faint", "muted")
    yield Text(24, 31, "waiting for the first fragment (TTFT), or for an answer in one piece", 11, "muted")
    yield Rect(430, 22, 18, 10, "c2")
    yield Text(454, 31, "fragments arriving, a line for each", 11, "muted")
    longest = max(max(row.last for row in rows), 1)
    for i, row in enumerate(rows):
        if row is chosen:
            yield Rect(0, TOP + ROW * i - 2, width, ROW - 4, stroke="mark", width=2)
        yield from _lane(row, TOP + ROW * i, width, (width - 12) / longest)


def _lane(row: Row, y: float, width: float, per_ns: float) -> Iterator[Mark]:
    key, tip = {"wire": row.exchange.id}, _tip(row)
    right = _times(row)
    room = width - 20 - len(right) * 6.4
    name = f"{row.number}  {row.seen.name}  {row.seen.status or 'no answer'}, {row.outcome}"
    fill = "ink" if row.outcome in ("complete", "open") else "alarm"
    yield Text(6, y + 12, fit(name, max(room, 80), 12), 12, fill, tip=tip, key=key)
    yield Text(width - 6, y + 12, right, 11, "muted", anchor="end", tip=tip, key=key)
    end, top = row.last * per_ns, y + 19
    first = float(row.fragments[0]) * per_ns if len(row.fragments) else end
    yield Rect(6, top, max(first, 1), BAR, "faint", "muted", tip=tip, key=key)
    if len(row.fragments):
        yield Rect(6 + first, top, max(end - first, 1), BAR, "c2", tip=tip, key=key)
        places = row.fragments[:: -(-len(row.fragments) // MAX_TICKS)] * per_ns
        for x in np.unique(np.rint(places)).tolist():
            yield Line(((6 + x, top - 2), (6 + x, top + BAR + 2)), "ink", 0.6)


def _times(row: Row) -> str:
    parts = [f"TTFT {duration(row.fragments[0])}"] if len(row.fragments) else []
    parts += [] if row.itl is None else [f"ITL {duration(row.itl)} (median)"]
    parts += [] if row.total is None else [f"total {duration(row.total)}"]
    parts += [] if row.tokens is None else [f"{row.tokens[0]:,} tokens in, {row.tokens[1]:,} out"]
    return " · ".join(parts)


def _tip(row: Row) -> str:
    return f"exchange {row.number}, recorded by the {row.side}: {_times(row) or 'no times'}"
