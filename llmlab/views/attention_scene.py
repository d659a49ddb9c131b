"""The picture of an attention matrix: axes, cached keys, the cells, and what one query looks at."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from llmlab.views.glyphs import fit, text_width
from llmlab.views.looked import Axis, wrapped
from llmlab.views.palette import hue
from llmlab.views.scene import Grid, Mark, Rect, Scene, Text

GUTTER, SIDE, GAP = 116, 236, 28
TALL, WIDE, HIGH, TOKENS, NARROW = 560, 46, 22, 26, 760
SHADES = 9


@dataclass(frozen=True, slots=True)
class Matrix:
    """What is drawn. ``values`` ``(rows, columns)`` are weights, NaN in a query's future; ``best_heads`` the head each
    is of. ``tokens`` are the texts of the positions that are named; ``top`` are ``(key, weight, head)`` of the selected
    query. The first ``num_cached`` keys were served from the prefix cache; queries below ``not_computed`` have no row.
    """

    request_id: str
    layer: int
    head: int | None
    heads: tuple[int, ...]
    values: np.ndarray
    best_heads: np.ndarray
    rows: Axis
    columns: Axis
    tokens: dict[int, str]
    num_cached: int
    not_computed: int
    selected: int
    top: tuple[tuple[int, float, int], ...]
    has_sink: bool
    is_root: bool

    @property
    def hue(self) -> str:
        """One hue per head; the palette's first mark colour for all together."""
        return "mark" if self.head is None else hue(self.head)

    def key(self, position: int | None = None) -> dict[str, int | str]:
        """The selection that a mark stands for."""
        at = {} if position is None else {"position": position}
        return (
            {"request": self.request_id, "layer": self.layer} | at | ({} if self.head is None else {"head": self.head})
        )


@dataclass(frozen=True, slots=True)
class _Frame:
    """Where the cells lie."""

    x: float
    y: float
    cell_w: float
    cell_h: float
    columns: int
    rows: int

    @property
    def right(self) -> float:
        return self.x + self.columns * self.cell_w

    @property
    def bottom(self) -> float:
        return self.y + self.rows * self.cell_h


def matrix_scene(matrix: Matrix, sums: str, width: float) -> Scene:
    """Matrix left, the selected query's keys beside it (below in a narrow picture), the scale of shades last."""
    is_narrow = width < NARROW
    room = width - GUTTER - (0 if is_narrow else GAP + SIDE)
    columns, rows = len(matrix.columns), len(matrix.rows)
    wide, high = (min(most, whole(space / n)) for most, space, n in ((WIDE, room, columns), (HIGH, TALL, rows)))
    wide = wide if wide > 24 else min(wide, max(high, 4))
    top = 34 + 10 * (wide >= TOKENS) + (10 if matrix.num_cached else 0) + (26 if matrix.not_computed else 0)
    frame = _Frame(GUTTER, top, wide, high, columns, rows)
    if is_narrow:
        side = list(_side(matrix, sums, GUTTER, frame.bottom + 18, width))
    else:
        side = list(_side(matrix, sums, max(frame.right + GAP, GUTTER + 200, _absent_end(matrix)), 0, width))
    bottom = max(frame.bottom, max(mark.y for mark in side if isinstance(mark, Text)) + 4)
    legend = list(_legend(matrix, bottom + 22, is_narrow))
    marks = [*_columns(matrix, frame), *_cells(matrix, frame), *_rows(matrix, frame), *side, *legend]
    return Scene(width, max(mark.y for mark in legend if isinstance(mark, Text)) + 12, tuple(marks))


def _absent_end(matrix: Matrix) -> float:
    """Where the words about absent queries end, with a gap; 0 without."""
    return GUTTER + text_width(_absent(matrix), 11) + 16 + GAP if matrix.not_computed else 0


def _absent(matrix: Matrix) -> str:
    return f"queries 0-{matrix.not_computed - 1}: served from cache, not computed"


def shown(weight: float) -> str:
    """A weight in three digits, never a zero that is none."""
    return "<0.001" if 0 < weight < 0.0005 else f"{weight:.3f}"


def whole(size: float) -> float:
    """A whole number of pixels where there is at least one: neighbours meet exactly, and the file stays small."""
    return float(int(size)) if size >= 1 else size


def _cells(matrix: Matrix, frame: _Frame) -> Iterator[Mark]:
    if matrix.not_computed:
        words = _absent(matrix)
        wide = max(frame.right - frame.x, text_width(words, 11) + 16)
        yield Rect(frame.x, frame.y - 26, wide, 20, stroke="muted", dash=True, tip=words, key=matrix.key())
        yield Text(frame.x + 8, frame.y - 12, words, 11, "muted")
    yield Rect(frame.x - 1, frame.y - 1, frame.right - frame.x + 2, frame.bottom - frame.y + 2, stroke="line")
    yield Grid(
        frame.x,
        frame.y,
        frame.cell_w,
        frame.cell_h,
        np.sqrt(matrix.values) if matrix.is_root else matrix.values,
        matrix.hue,
        row_keys=tuple(matrix.key(p) for p in matrix.rows.firsts),
        row_labels=tuple(f"query {name}" for name in matrix.rows.names(matrix.tokens)),
        column_labels=tuple(f"key {name}" for name in matrix.columns.names(matrix.tokens)),
    )
    chosen = frame.y + matrix.rows.cell_of(matrix.selected) * frame.cell_h
    height = max(frame.cell_h, 3)
    box = Rect(frame.x - 1, chosen - 1, frame.right - frame.x + 2, height + 2, stroke="ink", width=1.5)
    yield box


def _columns(matrix: Matrix, frame: _Frame) -> Iterator[Mark]:
    """Positions, tokens where a cell is wide enough, and a hatched strip over keys that came from the cache."""
    yield Text(frame.x, 12, "keys: positions looked at →", 11, "muted")
    has_tokens = frame.cell_w >= TOKENS
    every = 1 if has_tokens else max(1, -(-30 // int(max(frame.cell_w, 1))))
    for i, (first, name) in enumerate(zip(matrix.columns.firsts, matrix.columns.names(matrix.tokens), strict=True)):
        x, tip = frame.x + (i + 0.5) * frame.cell_w, f"key {name}"
        if i % every == 0 and x + 12 <= frame.right + 8:
            yield Text(x, 27, str(first), 10, "muted", anchor="middle", tip=tip, key=matrix.key(first))
        if has_tokens:
            word = fit(matrix.tokens[first], frame.cell_w - 8, 10)
            yield Text(x, 39, word, 10, anchor="middle", tip=tip, key=matrix.key(first))
    top = 43 if has_tokens else 33
    yield from _cached_strip(matrix, frame, top)


def _cached_strip(matrix: Matrix, frame: _Frame, y: float) -> Iterator[Mark]:
    """Hatched boxes above the cached keys, of several columns where these are narrow."""
    step = max(1, -(-8 // int(max(frame.cell_w, 1))))
    names, cached = matrix.columns.names(matrix.tokens), matrix.num_cached / matrix.columns.factor
    for i in range(0, math.ceil(cached), step):
        wide = frame.cell_w * min(step, cached - i)
        tip = f"key {names[i]}: served from the prefix cache" if step == 1 else "keys served from the prefix cache"
        key = matrix.key(matrix.columns.firsts[i])
        yield Rect(frame.x + i * frame.cell_w, y, wide, 8, stroke="muted", hatch=True, tip=tip, key=key)


def _rows(matrix: Matrix, frame: _Frame) -> Iterator[Mark]:
    yield Text(0, frame.y - 5, "queries ↓", 11, "muted")
    every = max(1, -(-11 // int(max(frame.cell_h, 1))))
    names = matrix.rows.names(matrix.tokens)
    for i, (first, last) in enumerate(zip(matrix.rows.firsts, matrix.rows.lasts, strict=True)):
        y = frame.y + (i + 0.5) * frame.cell_h + 3.5
        if i % every:
            continue
        bold = first <= matrix.selected <= last
        key, tip = matrix.key(first), f"query {names[i]}"
        number = str(first) if first == last else f"{first}-{last}"
        yield Text(30 if first == last else 70, y, number, 10, "muted", anchor="end", bold=bold, tip=tip, key=key)
        if first == last:
            word = fit(matrix.tokens[first], GUTTER - 46, 10, mono=True)
            yield Text(38, y, word, 10, mono=True, bold=bold, tip=tip, key=key)


def _side(matrix: Matrix, sums: str, x: float, top: float, width: float) -> Iterator[Mark]:
    """The selected query's largest weights, as bars with numbers."""
    room = min(width - x, SIDE)
    token = fit(matrix.tokens[matrix.selected], 90, 12)
    yield Text(x, top + 14, fit(f"query {matrix.selected} {token} looks at", room, 12), 12, bold=True)
    how = "largest weight over heads (h)" if matrix.head is None and len(matrix.heads) > 1 else "share of its attention"
    yield Text(x, top + 30, how, 11, "muted")
    y = top + 50.0
    for key, weight, head in matrix.top:
        by = f", head {head}" if matrix.head is None else ""
        tip = f"query {matrix.selected}, key {key} {matrix.tokens[key]}: weight {weight:.4f}{by}"
        yield Text(x + 26, y, str(key), 10, "muted", anchor="end", tip=tip, key=matrix.key(key))
        yield Text(x + 32, y, fit(matrix.tokens[key], 72, 10, mono=True), 10, mono=True, tip=tip, key=matrix.key(key))
        bar = room - 112 - 74
        yield Rect(x + 110, y - 9, max(bar * min(weight, 1), 1), 11, matrix.hue, tip=tip, key=matrix.key(key))
        said = shown(weight) + (f"  h{head}" if matrix.head is None else "")
        yield Text(x + room, y, said, 10, anchor="end", tip=tip, key=matrix.key(key))
        y += 18
    if len(matrix.heads) == 1 and matrix.selected + 1 > len(matrix.top):
        what = "keys and sink" if matrix.has_sink else "keys"
        rest = 1 - sum(weight for _, weight, _ in matrix.top)
        yield Text(x, y, f"{matrix.selected + 1 - len(matrix.top)} other {what}: {shown(max(rest, 0))}", 10, "muted")
        y += 18
    for line in wrapped(sums, room, 10):
        y += 2
        yield Text(x, y, line, 10, "muted")
        y += 12


def _legend(matrix: Matrix, y: float, is_narrow: bool) -> Iterator[Mark]:
    x, shades = GUTTER + 48, np.linspace(0, 1, SHADES)[None]
    yield Text(GUTTER, y, "weight 0", 10, "muted")
    yield Grid(x, y - 9, 14, 11, shades, matrix.hue)
    yield Rect(x - 1, y - 10, 14 * SHADES + 2, 13, stroke="line")
    if matrix.is_root:  # the middle shade stands for a quarter
        yield Text(x + 14 * SHADES / 2, y + 14, "0.25", 10, "muted", anchor="middle")
    yield Text(x + 14 * SHADES + 6, y, "1", 10, "muted")
    x += 14 * SHADES + 30
    yield Rect(x, y - 9, 14, 11, stroke="ink", width=1.5)
    yield Text(x + 20, y, "listed query", 10, "muted")
    if matrix.num_cached:
        x, y = (GUTTER, y + 32) if is_narrow else (x + 96, y)
        yield Rect(x, y - 9, 14, 11, stroke="muted", hatch=True)
        yield Text(x + 20, y, "key served from the prefix cache", 10, "muted")
