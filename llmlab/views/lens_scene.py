"""The picture of the logit lens: a table of layers and positions, and under it what came next."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from llmlab.views.glyphs import fit
from llmlab.views.scene import Grid, Line, Mark, Rect, Scene, Text

if TYPE_CHECKING:
    from llmlab.views.lens import Numbers

MAX_LAYERS, MAX_CELLS = 32, 380
GUTTER, HEAD, ROW, WIDEST, NARROWEST = 82, 42, 18, 96, 62
WIDE_LEGEND, LEGEND_ROW = 900, 18
STRENGTH = 0.5  # a full cell has half the hue, so that words in it can be read in both themes


@dataclass(frozen=True, slots=True, eq=False)
class Sheet:
    """What is drawn. ``values`` (shares of the hue) and ``words`` are ``(layers, positions)``; ``shown`` are the layers
    drawn. ``following`` is the token that came after a position. ``last`` is the model's last layer if it was recorded;
    then ``agrees`` are the places of the first layers that say the same."""

    request_id: str
    statistic: str
    unit: str
    layers: tuple[int, ...]
    shown: tuple[int, ...]
    positions: tuple[int, ...]
    left_out: int
    is_windowed: bool
    values: np.ndarray
    words: np.ndarray
    numbers: Numbers
    tokens: dict[int, str]
    labels: dict[int, str]
    following: dict[int, str]
    num_prompt: int
    last: int | None
    agrees: np.ndarray | None
    num_cached: int

    def key(self, position: int | None = None, layer: int | None = None) -> dict[str, int | str]:
        """The selection that a mark stands for."""
        at = {"position": position, "layer": layer}
        return {"request": self.request_id} | {name: value for name, value in at.items() if value is not None}


def max_positions(width: float) -> int:
    """Columns that fit."""
    return min(int((width - GUTTER) / NARROWEST), 12 + int(max(width - 960, 0) / NARROWEST))


def sheet_scene(sheet: Sheet, width: float) -> Scene:
    """Positions across, layers down, then the token that really followed and the layer that first said so."""
    rows = [sheet.layers.index(layer) for layer in sheet.shown]
    wide = float(int(min(WIDEST, (width - GUTTER) / len(sheet.positions))))
    bottom = HEAD + ROW * len(rows)
    marks = [
        *_columns(sheet, wide),
        *_cells(sheet, rows, wide),
        *_agreement(sheet, rows, wide),
        *_following(sheet, bottom, wide),
    ]
    y = bottom + 46 + (18 if sheet.agrees is not None else 0)
    marks += _legend(sheet, y, width)
    return Scene(width, y + 10 + (0 if width >= WIDE_LEGEND else 2 * LEGEND_ROW), tuple(marks))


def _columns(sheet: Sheet, wide: float) -> Iterator[Mark]:
    yield Text(GUTTER - 10, 14, "position", 10, "muted", anchor="end")
    yield Text(GUTTER - 10, 30, "token", 10, "muted", anchor="end")
    for i, position in enumerate(sheet.positions):
        x, key = GUTTER + i * wide + 4, sheet.key(position)
        yield Text(x, 14, str(position), 10, "muted", key=key)
        tip = f"position {position}: {sheet.labels[position]}"
        yield Text(x, 30, fit(sheet.labels[position], wide - 16, 11), 11, bold=True, tip=tip, key=key)


def _cells(sheet: Sheet, rows: list[int], wide: float) -> Iterator[Mark]:
    yield Grid(
        GUTTER,
        HEAD,
        wide,
        ROW,
        sheet.values[rows] * STRENGTH,
        row_keys=tuple(sheet.key(layer=layer) for layer in sheet.shown),
        column_keys=tuple({"position": position} for position in sheet.positions),
    )
    for place, row in enumerate(rows):
        layer, y = sheet.layers[row], HEAD + place * ROW + 12.5
        is_last = layer == sheet.last
        name = f"{layer} (last)" if is_last else str(layer)
        yield Text(GUTTER - 10, y, name, 10, "ink" if is_last else "muted", anchor="end", bold=is_last, key=sheet.key(
            layer=layer
        ))  # fmt: skip
        for i, position in enumerate(sheet.positions):
            word = fit(str(sheet.words[row, i]), wide - 7, 10)
            yield Text(GUTTER + i * wide + 4, y, word, 10, tip=_tip(sheet, row, i), key=sheet.key(position, layer))
    if rows and sheet.layers[rows[-1]] == sheet.last:
        y = HEAD + (len(rows) - 1) * ROW
        yield Line(((GUTTER, y), (GUTTER + wide * len(sheet.positions), y)), "muted")


def _tip(sheet: Sheet, row: int, i: int) -> str:
    n = sheet.numbers
    top = f"{sheet.tokens[int(n.top[row, i, 0])]} {np.exp(n.logprob[row, i, 0]):.3f}"
    return f"{top}; entropy {n.entropy[row, i]:.2f}, KL {n.kl[row, i]:.2f} nats"


def _agreement(sheet: Sheet, rows: list[int], wide: float) -> Iterator[Mark]:
    """An outline where a layer first says what the last one says, if that layer is drawn."""
    for i, place in enumerate(sheet.agrees if sheet.agrees is not None else ()):
        if place in rows:
            x, y = GUTTER + i * wide, HEAD + rows.index(place) * ROW
            yield Rect(x + 0.5, y + 0.5, wide - 1, ROW - 1, stroke="ink", width=1.5)


def _following(sheet: Sheet, y: float, wide: float) -> Iterator[Mark]:
    rows = [("next token", 20)] + ([("first said by", 38)] if sheet.agrees is not None else [])
    for name, down in rows:
        yield Text(GUTTER - 10, y + down, name, 10, "muted", anchor="end")
    for i, position in enumerate(sheet.positions):
        x = GUTTER + i * wide + 4
        if position in sheet.following:
            by = "given by the prompt" if position + 1 < sheet.num_prompt else "chosen"
            word = fit(sheet.following[position], wide - 16, 11)
            tip = f"position {position + 1}: {sheet.following[position]}, {by}"
            ink = "muted" if position + 1 < sheet.num_prompt else "ink"
            key = sheet.key(position + 1)
            yield Text(x, y + 20, word, 11, ink, bold=ink == "ink", tip=tip, key=key)
        if sheet.agrees is not None:
            layer = sheet.layers[sheet.agrees[i]]
            yield Text(x, y + 38, f"layer {layer}", 10, key=sheet.key(position, layer))


def _legend(sheet: Sheet, y: float, width: float) -> Iterator[Mark]:
    """The shades, the outline, and how exact the last row is; below each other in a narrow picture."""
    yield Text(GUTTER - 10, y, "shade", 10, "muted", anchor="end")
    yield Grid(GUTTER, y - 9, 14, 11, np.linspace(0, STRENGTH, 7)[None])
    yield Rect(GUTTER - 1, y - 10, 14 * 7 + 2, 13, stroke="line")
    x = GUTTER + 108
    yield Text(x, y, fit(f"full: {sheet.unit}", 200, 10), 10, "muted")
    x, y = (x + 212, y) if width >= WIDE_LEGEND else (GUTTER, y + LEGEND_ROW)
    if sheet.agrees is not None:
        yield Rect(x, y - 10, 18, 13, stroke="ink", width=1.5)
        yield Text(x + 24, y, "first layer that says what the last says", 10, "muted")
    if sheet.numbers.error is not None:
        x, y = (width, y) if width >= WIDE_LEGEND else (x, y + LEGEND_ROW)
        said = f"last row: within {sheet.numbers.error:.2g} of the model's logits"
        yield Text(x, y, said, 10, "muted", anchor="end" if width >= WIDE_LEGEND else "start")
