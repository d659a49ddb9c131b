"""How long the hidden states are, after every layer and at every position."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

import numpy as np
import pandas as pd

from llmlab.trace.captures import Captures
from llmlab.trace.trace import Trace
from llmlab.views import looked
from llmlab.views.glyphs import fit, visible
from llmlab.views.heatmap import heatmap
from llmlab.views.looked import Axis
from llmlab.views.scene import Grid, Mark, Rect, Scene, Text
from llmlab.views.view import View

GUTTER, HEAD, SHADES = 72, 40, 9
CELLS, TALL = 48, 560


@dataclass(frozen=True, slots=True, eq=False)
class _Norms:
    """``values`` ``(layers, cells)`` are Euclidean lengths, the largest of every cell; NaN where none was kept."""

    request_id: str
    layers: tuple[int, ...]
    columns: Axis
    values: np.ndarray
    tokens: dict[int, str]
    num_cached: int

    @property
    def shares(self) -> np.ndarray:
        """0 for the shortest, 1 for the longest, even steps of the logarithm between."""
        low, high = self.range
        logs = np.log(np.maximum(self.values, 1e-30))
        return (logs - np.log(low)) / ((np.log(high) - np.log(low)) or 1.0)

    @property
    def range(self) -> tuple[float, float]:
        """The shortest and the longest."""
        return max(float(np.nanmin(self.values)), 1e-30), max(float(np.nanmax(self.values)), 1e-30)

    def key(self, **at: int) -> dict[str, int | str]:
        """The selection that a mark stands for."""
        return {"request": self.request_id, **at}


def hidden(trace: Trace, request_id: str | None = None, *, cells: int = CELLS, width: float = 960) -> View:
    """Euclidean lengths of a request's hidden states: layers down, positions across.

    More than ``cells`` positions are pooled by the largest length; shades are even steps of the logarithm, because
    the states of a first token are often a hundred times longer than the others'.

    Raises ``UnknownRequest`` and ``InvalidParameter`` (sizes that cannot be drawn).
    """
    looked.check_size("width", width, looked.MIN_WIDTH, 4_000)
    looked.check_size("cells", cells, 2, 2_048)
    request_id = looked.looked_at(trace, request_id, "hidden")
    captures = looked.captures_of(trace, request_id, ("hidden",)) if request_id else None
    if captures is None or not captures.events:
        return looked.missing(trace, "hidden", request_id, "hidden", "hidden", width)
    norms = _norms(trace, captures, int(cells))
    shape = f"{len(norms.layers)} layers ({looked.spans(norms.layers)})"
    where = f"{len(norms.columns.positions)} positions ({looked.spans(norms.columns.positions)})"
    title = f"Hidden states of {request_id}: length after every layer"
    longest = np.unravel_index(np.nanargmax(norms.values), norms.values.shape)
    position = visible(norms.columns.names(norms.tokens)[longest[1]], limit=40)
    text = f"{shape} at {where}\nthe longest is after layer {norms.layers[longest[0]]} at position {position}"
    plot = partial(_plot, norms, title)
    return View(
        "hidden",
        title,
        f"{title}, {shape} at {where}.",
        text,
        _scene(norms, width),
        _table(norms),
        _notes(norms, width),
        plot,
    )


def _norms(trace: Trace, captures: Captures, cells: int) -> _Norms:
    """Lengths piece by piece: the states themselves are never put together."""
    layers = tuple(sorted({event.layer for event in captures.events}))
    positions = tuple(sorted({p for event in captures.events for p in event.positions}))
    place = {p: i for i, p in enumerate(positions)}
    values = np.full((len(layers), len(positions)), np.nan)
    for event in captures.events:
        states = trace.arrays[event.array_id].astype(np.float64)
        values[layers.index(event.layer), [place[p] for p in event.positions]] = np.linalg.norm(states, axis=-1)
    columns = Axis(positions, max(1, -(-len(positions) // cells)))
    tokens = looked.labels_at(trace, captures.request_id, columns.firsts)
    pooled = looked.pool(values, Axis(layers, 1), columns)
    return _Norms(captures.request_id, layers, columns, pooled, tokens, looked.num_cached(captures))


def _scene(norms: _Norms, width: float) -> Scene:
    columns, rows = len(norms.columns), len(norms.layers)
    wide = float(int(min(46, (width - GUTTER) / columns))) or (width - GUTTER) / columns
    high = float(int(min(18, TALL / rows))) or TALL / rows
    bottom = HEAD + high * rows
    marks = [*_columns(norms, wide), *_rows(norms, high), *_cells(norms, wide, high), *_legend(norms, bottom + 24)]
    return Scene(width, bottom + 34, tuple(marks))


def _columns(norms: _Norms, wide: float) -> Iterator[Mark]:
    yield Text(GUTTER - 10, 14, "position", 10, "muted", anchor="end")
    every = max(1, -(-30 // int(max(wide, 1))))
    names = norms.columns.names(norms.tokens)
    for i, first in enumerate(norms.columns.firsts):
        x, key = GUTTER + i * wide, norms.key(position=first)
        if i % every == 0 and i * wide + 24 <= wide * len(names) + 12:
            yield Text(x, 14, str(first), 10, "muted", tip=names[i], key=key)
        if wide >= 26:
            yield Text(x, 30, fit(norms.tokens[first], wide - 4, 10), 10, tip=names[i], key=key)


def _rows(norms: _Norms, high: float) -> Iterator[Mark]:
    yield Text(GUTTER - 10, 30, "layer ↓", 10, "muted", anchor="end")
    every = max(1, -(-11 // int(max(high, 1))))
    for i, layer in enumerate(norms.layers):
        if i % every == 0:
            y = HEAD + (i + 0.5) * high + 3.5
            yield Text(GUTTER - 10, y, str(layer), 10, "muted", anchor="end", key=norms.key(layer=layer))


def _cells(norms: _Norms, wide: float, high: float) -> Iterator[Mark]:
    yield Rect(GUTTER - 1, HEAD - 1, wide * len(norms.columns) + 2, high * len(norms.layers) + 2, stroke="line")
    yield Grid(
        GUTTER,
        HEAD,
        wide,
        high,
        norms.shares,
        row_keys=tuple(norms.key(layer=layer) for layer in norms.layers),
        column_keys=tuple({"position": p} for p in norms.columns.firsts),
    )


def _legend(norms: _Norms, y: float) -> Iterator[Mark]:
    low, high = norms.range
    yield Text(GUTTER - 10, y, f"{low:.3g}", 10, "muted", anchor="end")
    yield Grid(GUTTER, y - 9, 14, 11, np.linspace(0, 1, SHADES)[None])
    yield Rect(GUTTER - 1, y - 10, 14 * SHADES + 2, 13, stroke="line")
    yield Text(GUTTER + 14 * SHADES + 8, y, f"{high:,.0f}   length, even steps of its logarithm", 10, "muted")


def _notes(norms: _Norms, width: float) -> tuple[str, ...]:
    notes = []
    if norms.columns.factor > 1:
        notes.append(f"Pooled: a cell is the longest of {norms.columns.factor} positions; cells=N draws more of them.")
    if norms.num_cached:
        notes.append(f"Positions 0-{norms.num_cached - 1} have no column: served from cache, not computed.")
    return looked.notes_for(notes, width)


def _table(norms: _Norms) -> pd.DataFrame:
    """One row per layer and drawn cell."""
    row, column = np.nonzero(~np.isnan(norms.values))
    firsts, lasts = np.array(norms.columns.firsts), np.array(norms.columns.lasts)
    return pd.DataFrame(
        {
            "layer": np.array(norms.layers)[row],
            "position": firsts[column],
            "position_last": lasts[column],
            "token": np.array([norms.tokens[p] for p in norms.columns.firsts], dtype=object)[column],
            "length": norms.values[row, column],
        }
    )


def _plot(norms: _Norms, title: str):
    extra = np.vectorize(lambda v: f"length {v:.4g}", otypes=[object])(norms.values)
    return heatmap(
        norms.shares,
        [str(layer) for layer in norms.layers],
        norms.columns.names(norms.tokens),
        title=title,
        axes=("layer", "position"),
        unit="shade",
        zmax=1.0,
        extra=extra,
    )
