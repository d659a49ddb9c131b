"""The picture of a mixture that learns: its loss, and each layer's tokens per expert, over the updates."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np
import pandas as pd

from llmlab.errors import InvalidParameter
from llmlab.training.moe_record import MoeRecord
from llmlab.views.scene import Grid, Line, Mark, Rect, Scene, Text
from llmlab.views.view import View

LEFT, TOP, HEIGHT, GAP = 44, 26, 216, 92
ASIDE = 116
MAX_COLUMNS = 120
FULL = 4  # times an even share of the tokens: the darkest cell


def learning(records: Sequence[MoeRecord], *, title: str = "A mixture of experts learns", width: float = 960) -> View:
    """Loss (nats per byte) and the share of tokens that each expert gets, over the updates recorded so far.

    Raises ``InvalidParameter`` for no records.
    """
    if not records:
        raise InvalidParameter("there is no record yet: the first one is written before the first update")
    last, shown = records[-1], _spread(records)
    middle = (width - GAP) / 2
    marks = (*_curve(shown, middle), *_loads(shown, middle + GAP, width))
    experts = f"{len(last.load)} layers of {len(last.load[0])} experts, {last.top_k} for each token"
    even = f"an even load sends {last.top_k / len(last.load[0]):.1%} of the tokens to each"
    alt = f"Loss and load of the experts in {len(records)} records over {last.step} updates: {experts}."
    height = TOP + HEIGHT + 24
    return View("learning", title, alt, f"{alt}\n{even}", Scene(width, height, marks), _table(records), _notes(records))


def _spread(records: Sequence[MoeRecord]) -> list[MoeRecord]:
    """At most MAX_COLUMNS of them, evenly spread, the last among them."""
    every = -(-len(records) // MAX_COLUMNS)
    return list(records[::-1][::every][::-1])


def _notes(records: Sequence[MoeRecord]) -> tuple[str, ...]:
    every = -(-len(records) // MAX_COLUMNS)
    notes = [f"One of every {every} records is drawn; the table has all."] if every > 1 else []
    if lost := sum(not math.isfinite(record.loss) for record in records):
        notes.append(f"In {lost} records the loss is no number: the training went astray, at too high a rate perhaps.")
    return tuple(notes)


def _curve(records: Sequence[MoeRecord], right: float) -> Iterator[Mark]:
    """The training loss as a line, the held-out loss as boxes."""
    drawn = [r for r in records if math.isfinite(r.loss)]
    asked = [r for r in records if r.held_out is not None and math.isfinite(r.held_out)]
    top = max([1, *(math.ceil(r.loss) for r in drawn), *(math.ceil(r.held_out) for r in asked)])
    x, y = _scales(records[-1].step, right, top)
    yield Text(0, 12, "loss (nats per byte)", 11, "muted")
    for value in range(0, top + 1, -(-top // 12)):
        yield Line(((LEFT, y(value)), (right, y(value))), stroke="line" if value == 0 else "faint")
        yield Text(LEFT - 8, y(value) + 3.5, str(value), 10, "muted", anchor="end")
    yield Text(LEFT, TOP + HEIGHT + 16, "0", 10, "muted", anchor="middle")
    yield Text(right, TOP + HEIGHT + 16, f"{records[-1].step} updates", 10, "muted", anchor="end")
    if len(drawn) > 1:
        yield Line(tuple((x(r.step), y(r.loss)) for r in drawn), stroke="mark", width=2)
    for record in drawn:
        tip = f"after {record.step} updates, {record.seconds:.1f} s: loss {record.loss:.3f}"
        yield Rect(x(record.step) - 2, y(record.loss) - 2, 4, 4, fill="mark", tip=tip)
    for record in asked:
        tip = f"after {record.step} updates: {record.held_out:.3f} on held-out text"
        yield Rect(x(record.step) - 5, y(record.held_out) - 5, 10, 10, stroke="c5", width=2, tip=tip)
    yield from _legend(right)


def _legend(right: float) -> Iterator[Mark]:
    yield Line(((right - 196, 8), (right - 178, 8)), stroke="mark", width=2)
    yield Text(right - 172, 12, "training", 11)
    yield Rect(right - 108, 3, 10, 10, stroke="c5", width=2)
    yield Text(right - 92, 12, "held-out text", 11)


def _scales(last: int, right: float, top: float):
    def x(step: float) -> float:
        return LEFT + (right - LEFT) * step / max(last, 1)

    def y(value: float) -> float:
        return TOP + HEIGHT * (1 - value / top)

    return x, y


def _loads(records: Sequence[MoeRecord], left: float, width: float) -> Iterator[Mark]:
    """A band a layer, a row an expert, a column a record; the last record's busiest expert beside it."""
    load = np.array([r.load for r in records], dtype=float) / np.array([r.num_tokens for r in records])[:, None, None]
    layers, experts = load.shape[1:]
    shades = (load * experts / (FULL * records[-1].top_k)).clip(0, 1)
    band, right = (HEIGHT + 8) / layers, width - ASIDE
    yield Text(left, 12, "share of tokens per expert: ", 11, "muted")
    yield from _key(left + 164, records[-1])
    for layer in range(layers):
        y, high, wide = TOP + layer * band, (band - 8) / experts, (right - left) / len(records)
        names = tuple(f"layer {layer}, expert {i}" for i in range(experts))
        columns = tuple(f"after {r.step} updates" for r in records)
        yield Rect(left - 1, y - 1, right - left + 2, band - 6, stroke="line")
        yield Grid(left, y, wide, high, shades[:, layer].T, row_labels=names, column_labels=columns)
        yield Text(left - 8, y + (band - 8) / 2 + 3.5, f"layer {layer}", 10, "muted", anchor="end")
        busiest = f"busiest: {records[-1].busiest[layer]:.1f} x even"
        yield Text(right + 8, y + (band - 8) / 2 + 3.5, busiest, 10)
    yield Text(left, TOP + HEIGHT + 16, "0", 10, "muted", anchor="middle")
    yield Text(right, TOP + HEIGHT + 16, f"{records[-1].step} updates", 10, "muted", anchor="end")


def _key(x: float, record: MoeRecord) -> Iterator[Mark]:
    even = record.top_k / len(record.load[0])
    for shade, words in ((0.0, "none"), (1 / FULL, f"even, {even:.1%}"), (1.0, f"{FULL} x even")):
        yield Rect(x - 1, 2, 14, 12, stroke="line")
        yield Grid(x, 3, 12, 10, np.array([[shade]]))
        yield Text(x + 18, 12, words, 11)
        x += 60 if shade == 0 else 96


def _table(records: Sequence[MoeRecord]) -> pd.DataFrame:
    rows = [
        {
            "step": r.step,
            "seconds": r.seconds,
            "loss_nats": r.loss,
            "held_out_nats": r.held_out,
            "balance_loss": r.balance,
            "layer": layer,
            "expert": expert,
            "tokens": tokens,
            "share": tokens / r.num_tokens,
        }
        for r in records
        for layer, experts in enumerate(r.load)
        for expert, tokens in enumerate(experts)
    ]
    return pd.DataFrame(rows)
