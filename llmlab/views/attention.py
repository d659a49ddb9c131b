"""One head's attention weights, or the largest over all heads, as a matrix of queries by keys.

What softmax(QK^T / sqrt(d)) gave for every computed position; article B, "Attention and FFN, 32 times".
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial

import numpy as np
import pandas as pd

from llmlab.errors import InvalidParameter
from llmlab.trace.captures import Captures
from llmlab.trace.trace import Trace
from llmlab.views import looked
from llmlab.views.attention_scene import Matrix, matrix_scene
from llmlab.views.heatmap import heatmap
from llmlab.views.looked import Axis
from llmlab.views.view import View

CELLS, TOP = 48, 10
SUM_TOLERANCE = {"float32": 1e-3, "float16": 1e-2}


@dataclass(frozen=True, slots=True)
class Sums:
    """How many rows, over all heads, sum to 1 within ``tolerance``."""

    rows: int
    whole: int
    tolerance: float

    def __str__(self) -> str:
        if self.whole == self.rows:
            return f"every row of every head sums to 1 (within {self.tolerance:g})"
        return (
            f"{self.rows - self.whole} of {self.rows} rows (queries x heads) do not sum to 1, as with attention sinks"
        )


def attention(
    trace: Trace,
    request_id: str | None = None,
    *,
    layer: int | None = None,
    head: int | None = None,
    queries: int | slice | Iterable[int] | None = None,
    selected: int | None = None,
    cells: int = CELLS,
    shade: str | None = None,
    width: float = 960,
) -> View:
    """Attention weights of a request in one layer (default: the last recorded): queries down, keys across.

    ``head`` is a query head; for ``None`` a cell is the largest weight over the recorded heads. ``queries`` restricts
    the rows (positions of the sequence), ``selected`` is the one whose keys are listed (default: the last). More than
    ``cells`` rows or columns are pooled by their largest weight; a still stays small with the default. ``shade`` is
    ``"weight"`` or ``"root"`` (its square root); by default root where keys are pooled, whose weights are small.

    Raises ``UnknownRequest`` and ``InvalidParameter`` (what was not recorded, sizes that cannot be drawn).
    """
    looked.check_size("width", width, looked.MIN_WIDTH, 4_000)
    looked.check_size("cells", cells, 2, 2_048)
    if shade not in (None, "weight", "root"):
        raise InvalidParameter(f"shade={shade!r} is none: choose 'weight' or 'root'")
    request_id = looked.looked_at(trace, request_id, "attention")
    captures = looked.captures_of(trace, request_id, ("attention",)) if request_id else None
    if captures is None or not captures.events:
        return looked.missing(trace, "attention", request_id, "attention", "attention", width)
    layers = sorted({event.layer for event in captures.events})
    layer = looked.one_of("layer", layer, layers, trace.info.num_layers if trace.info else layers[-1] + 1)
    loaded, sums = _load(trace, looked.captures_of(trace, request_id, ("attention",), layer), head, queries, cells)
    matrix = _drawn(loaded, selected, trace, sums, shade)
    return _view(matrix, sums, layers, width)


def _load(trace: Trace, captures: Captures, head: int | None, queries, cells: int) -> tuple[_Loaded, Sums]:
    weights = captures.array("attention").sel(layer=captures.events[0].layer)
    heads, known = weights.labels["head"], weights.labels["query"]
    wanted = looked.some_of("queries", queries, known)
    shown = heads if head is None else (looked.one_of("head", head, heads, heads[-1] + 1),)
    rows = weights.sel(query=list(wanted))
    maps = rows.sel(head=list(shown)).values.astype(np.float32)
    last = max(wanted)
    maps = np.where(np.arange(maps.shape[-1]) > np.array(wanted)[:, None], np.nan, maps)[..., : last + 1]
    axes = [Axis(tuple(p), max(1, -(-len(p) // int(cells)))) for p in (wanted, range(last + 1))]
    loaded = _Loaded(captures.request_id, captures.events[0].layer, head, shown, maps, *axes, captures)
    return loaded, _sums(rows.values, captures.events[0].dtype)


@dataclass(frozen=True, slots=True)
class _Loaded:
    """``maps`` are ``(heads, queries, keys)``, NaN for keys in a query's future."""

    request_id: str
    layer: int
    head: int | None
    heads: tuple[int, ...]
    maps: np.ndarray
    rows: Axis
    columns: Axis
    captures: Captures


def _sums(weights: np.ndarray, dtype: str) -> Sums:
    tolerance = SUM_TOLERANCE.get(dtype, 1e-2)
    sums = np.nansum(weights, axis=-1, dtype=np.float64)
    return Sums(sums.size, int((np.abs(sums - 1) <= tolerance).sum()), tolerance)


def _drawn(loaded: _Loaded, selected: int | None, trace: Trace, sums: Sums, shade: str | None) -> Matrix:
    """The matrix as it is drawn: pooled, with the keys that the selected query looks at."""
    pooled = np.nan_to_num(looked.pool(loaded.maps, loaded.rows, loaded.columns), nan=-1.0)
    best = pooled.argmax(axis=0)
    values = pooled.max(axis=0)
    selected = looked.one_of("selected", selected, loaded.rows.positions, loaded.rows.positions[-1] + 1)
    line = np.nan_to_num(loaded.maps[:, loaded.rows.positions.index(selected)], nan=-1.0)
    order = np.argsort(-line.max(axis=0), kind="stable")[:TOP]
    top = [(int(k), float(line[:, k].max()), loaded.heads[int(line[:, k].argmax())]) for k in order if k <= selected]
    named = {*loaded.rows.firsts, *loaded.columns.firsts, *(k for k, _, _ in top), selected}
    return Matrix(
        request_id=loaded.request_id,
        layer=loaded.layer,
        head=loaded.head,
        heads=loaded.heads,
        values=np.where(values < 0, np.nan, values),
        best_heads=np.array(loaded.heads)[best],
        rows=loaded.rows,
        columns=loaded.columns,
        tokens=looked.labels_at(trace, loaded.request_id, named),
        num_cached=min(looked.num_cached(loaded.captures), loaded.columns.positions[-1] + 1),
        not_computed=_not_computed(loaded),
        selected=selected,
        top=tuple(top),
        has_sink=sums.whole < sums.rows,
        is_root=loaded.columns.factor > 1 if shade is None else shade == "root",
    )


def _not_computed(loaded: _Loaded) -> int:
    """Leading positions that the cache served and that have no row."""
    served = looked.num_cached(loaded.captures)
    return min(served, loaded.rows.positions[0])


def _view(matrix: Matrix, sums: Sums, layers: list[int], width: float) -> View:
    what = f"head {matrix.head}" if matrix.head is not None else f"the largest of {len(matrix.heads)} heads"
    title = f"Attention of {matrix.request_id}, layer {matrix.layer}, {what}"
    queries, keys = looked.spans(matrix.rows.positions), looked.spans(matrix.columns.positions)
    alt = f"{title}: {len(matrix.rows.positions)} queries ({queries}) by {len(matrix.columns.positions)} keys ({keys})."
    listed = ", ".join(f"{key} ({matrix.tokens[key]})" for key, _, _ in matrix.top[:3])
    facts = [
        f"queries {queries}, keys {keys}; layers recorded: {looked.spans(layers)}; heads: {looked.spans(matrix.heads)}",
        f"query {matrix.selected} ({matrix.tokens[matrix.selected]}) gives its largest weights to keys {listed}",
        str(sums),
    ]
    if matrix.num_cached:
        facts.append(f"keys 0-{matrix.num_cached - 1} were served from cache; their queries were not computed")
    return View(
        name="attention",
        title=title,
        alt=alt,
        text="\n".join(facts),
        scene=matrix_scene(matrix, str(sums), width),
        frame=_table(matrix),
        notes=_notes(matrix, width),
        plot=partial(_plot, matrix, title),
    )


def _notes(matrix: Matrix, width: float) -> tuple[str, ...]:
    notes = []
    if matrix.head is None and len(matrix.heads) > 1:
        notes.append(
            "A cell is the largest weight over all recorded heads, so rows here do not sum to 1; head=N is one."
        )
    if matrix.rows.factor > 1 or matrix.columns.factor > 1:
        size = f"{matrix.rows.factor} queries x {matrix.columns.factor} keys"
        notes.append(f"Pooled: a cell is the largest weight among {size}; cells=N draws more of them.")
    if matrix.is_root:
        notes.append("Shade is the square root of the weight, so that small weights show; shade='weight' is even.")
    return looked.notes_for(notes, width)


def _table(matrix: Matrix) -> pd.DataFrame:
    """One row per drawn cell."""
    row, column = np.nonzero(~np.isnan(matrix.values))
    sides = {}
    for name, axis, places in (("query", matrix.rows, row), ("key", matrix.columns, column)):
        sides[name] = np.array(axis.firsts)[places]
        sides[f"{name}_last"] = np.array(axis.lasts)[places]
        sides[f"{name}_token"] = np.array([matrix.tokens[p] for p in axis.firsts], dtype=object)[places]
    return pd.DataFrame(
        {
            **sides,
            "weight": matrix.values[row, column],
            "head": matrix.best_heads[row, column],
            "key_from_cache": sides["key_last"] < matrix.num_cached,
        }
    )


def _plot(matrix: Matrix, title: str):
    names = [axis.names(matrix.tokens) for axis in (matrix.rows, matrix.columns)]
    top = float(np.nanmax(matrix.values))
    return heatmap(
        matrix.values,
        names[0],
        names[1],
        title=title,
        axes=("query", "key"),
        unit="weight",
        zmax=top if math.isfinite(top) and top > 0 else 1.0,
        extra=np.char.add("head ", matrix.best_heads.astype(str)),
    )
