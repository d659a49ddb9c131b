"""A table of counts as shaded cells."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np

from llmlab.views.glyphs import fit, text_width
from llmlab.views.scene import Grid, Mark, Rect, Scene, Text

CELL, TOP, STRONGEST = 34, 34, 0.42  # shades stay light enough for the ink on them


def grid_scene(
    rows: Sequence[str], columns: Sequence[str], counts: Sequence[Sequence[int | None]], title: str, width: float
) -> Scene:
    """``counts[row][column]``, None where nothing is possible at all (hatched)."""
    left = min(max(text_width(name, 12) for name in rows) + 18, width / 2)
    cell = (width - left) / len(columns)
    marks = [
        Text(0, 12, "weights", 11, "muted"),
        Text(width, 12, title, 11, "muted", anchor="end"),
        Grid(left, TOP, cell, CELL, _shades(counts), row_labels=tuple(rows), column_labels=tuple(columns)),
        *_names(rows, columns, left, cell),
        *_cells(counts, left, cell),
    ]
    return Scene(width, TOP + CELL * len(rows) + 4, tuple(marks))


def _shades(counts: Sequence[Sequence[int | None]]) -> np.ndarray:
    most = math.log1p(max((count or 0 for row in counts for count in row), default=0)) or 1
    values = [[np.nan if count is None else STRONGEST * math.log1p(count) / most for count in row] for row in counts]
    return np.array(values, dtype=float)


def _names(rows: Sequence[str], columns: Sequence[str], left: float, cell: float) -> Iterator[Mark]:
    for number, name in enumerate(rows):
        yield Text(0, TOP + CELL * number + CELL / 2 + 4, fit(name, left - 8, 12), 12, tip=name)
    for number, name in enumerate(columns):
        yield Text(left + cell * (number + 0.5), TOP - 6, fit(name, cell, 11), 11, "muted", anchor="middle", tip=name)


def _cells(counts: Sequence[Sequence[int | None]], left: float, cell: float) -> Iterator[Mark]:
    for i, row in enumerate(counts):
        for j, count in enumerate(row):
            x, y = left + cell * j, TOP + CELL * i
            if count is None:
                yield Rect(x + 2, y + 2, cell - 4, CELL - 4, stroke="line", hatch=True, tip="the weights do not fit")
            else:
                words = f"{count:,}" if count else "none"
                yield Text(x + cell / 2, y + CELL / 2 + 4, fit(words, cell - 6, 12), 12, anchor="middle", tip=words)
