"""Two recordings side by side: what was set differently, what was counted, how long it took, where tokens part."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from llmlab.errors import InvalidParameter
from llmlab.views.compare_scene import Comparison, compare_scene
from llmlab.views.compared import Metric, Pair, Side, Source, counts, pairs, params, settings, side
from llmlab.views.glyphs import visible
from llmlab.views.phrases import count
from llmlab.views.view import View

if TYPE_CHECKING:
    import plotly.graph_objects as go

COLUMNS = ("scope", "metric", "unit", "a", "b", "ratio", "note")
DTYPES = {"a": object, "b": object, "ratio": "float64"}  # a count stays an integer beside a mean
SHOWN = 200  # pairs and parameters of the text; the table has all


def compare(a: Source, b: Source, *, labels: Sequence[str] = ("a", "b"), width: float = 960) -> View:
    """What changed from ``a`` to ``b``: two traces, or one request of each as ``(trace, request_id)``.

    Requests are matched by their order. ``labels`` name the two sides. Times are in the picture and the table only.
    The figure draws computed tokens over time. Raises ``InvalidParameter`` and ``UnknownRequest``.
    """
    labels = tuple(labels)
    if len(labels) != 2 or labels[0] == labels[1] or not all(isinstance(label, str) for label in labels):
        raise InvalidParameter(f"labels={labels!r}: give two different names, as in labels=('before', 'after')")
    labels = tuple(visible(label, limit=60) for label in labels)
    one, other = side(a, labels[0]), side(b, labels[1])
    found = Comparison(
        one, other, settings(one, other), list(params(one, other)), counts(one, other), pairs(one, other)
    )
    return View(
        name="compare",
        title=f"{labels[0]} and {labels[1]}",
        alt=_alt(found),
        text="\n".join(_facts(found)),
        scene=compare_scene(found, width),
        frame=_table(found),
        notes=_notes(found),
        plot=lambda: _plot(found),
    )


# -- text ----------------------------------------------------------------------------------------------------


def _alt(found: Comparison) -> str:
    same = sum(pair.tokens.startswith("same tokens") for pair in found.pairs)
    matched = sum(None not in (pair.a, pair.b) for pair in found.pairs)
    changed = count(len(found.settings), "setting")
    return f"Two recordings with {changed} changed; {same} of {matched} matched requests have the same tokens."


def _facts(found: Comparison) -> list[str]:
    a, b = found.a.label, found.b.label
    facts = [f"{label}: {_what(each)}" for label, each in ((a, found.a), (b, found.b))]
    facts += [f"setting {_change(metric)}" for metric in found.settings] or ["settings: no difference"]
    facts += [f"{visible(m.scope, limit=60)}: {_change(m)}" for m in found.params[:SHOWN]] or ["params: no difference"]
    facts += [f"{metric.name}: {_change_of_count(metric)}" for metric in found.counts]
    facts += [_pair_fact(pair) for pair in found.pairs[:SHOWN]]
    return facts


def _what(side: Side) -> str:
    model = side.trace.info.model if side.trace.info is not None else "unknown model"
    one = f"request {visible(side.only, limit=60)}" if side.only is not None else count(len(side.ids), "request")
    return f"{one} on {visible(model, limit=60)}"


def _change(metric: Metric) -> str:
    return f"{visible(metric.name, limit=60)} {visible(str(metric.a), limit=60)} -> {visible(str(metric.b), limit=60)}"


def _change_of_count(metric: Metric) -> str:
    values = " -> ".join("not recorded" if value is None else number(value) for value in (metric.a, metric.b))
    if metric.a == metric.b:
        return f"{number(metric.a)} on both"
    return values if metric.ratio is None else f"{values} (x {metric.ratio:.3g})"


def _pair_fact(pair: Pair) -> str:
    said = "; ".join(filter(None, (pair.tokens, pair.prompt)))
    return f"{visible(pair.name, limit=80)}: {said}"


def number(value: float) -> str:
    """A count as it is, a mean with two decimals."""
    return f"{value:,}" if isinstance(value, int) else f"{value:,.2f}"


def _notes(found: Comparison) -> tuple[str, ...]:
    notes = list(found.left_out)
    for each in (found.a, found.b):
        if each.trace.index.gaps:
            notes.append(f"Events were dropped from the record of {each.label}: its counts may be too low.")
        if not each.trace.index.steps:
            notes.append(f"No steps are recorded in {each.label}: open a lab with record=True and ask it something.")
    return tuple(notes)


# -- table and figure ----------------------------------------------------------------------------------------


def _table(found: Comparison) -> pd.DataFrame:
    """Tidy: a row per metric, with ``b / a`` where both are numbers."""
    metrics = [*found.settings, *found.params, *found.counts]
    rows = [_cells(metric) for metric in metrics]
    for pair in found.pairs:
        lengths = [len(s.outputs.get(i, ())) if i else None for s, i in ((found.a, pair.a), (found.b, pair.b))]
        note = "; ".join(filter(None, (pair.tokens, pair.prompt)))
        rows.append(_cells(Metric(pair.name, "output tokens", "tokens", *lengths), note))
        rows += [_cells(metric) for metric in pair.times]
    columns = zip(COLUMNS, zip(*rows, strict=True) if rows else [()] * len(COLUMNS), strict=True)
    frame = pd.DataFrame({name: pd.Series(values, dtype=DTYPES.get(name)) for name, values in columns})
    frame.attrs["labels"] = (found.a.label, found.b.label)
    return frame


def _cells(metric: Metric, note: str = "") -> tuple[Any, ...]:
    ratio = float("nan") if metric.ratio is None else metric.ratio
    return metric.scope, metric.name, metric.unit, metric.a, metric.b, ratio, note


def _plot(found: Comparison) -> go.Figure:
    """Computed tokens, added up over the steps, against seconds since the first of them."""
    import plotly.graph_objects as go

    figure = go.Figure()
    for each, dash in ((found.a, "solid"), (found.b, "dash")):
        seconds, tokens = _progress(each)
        figure.add_scatter(x=seconds, y=tokens, name=each.label, line={"shape": "hv", "dash": dash})
    grid = {"gridcolor": "rgba(128,128,128,.25)", "zerolinecolor": "rgba(128,128,128,.25)"}
    figure.update_layout(
        paper_bgcolor="rgba(0,0,0,0)",
        plot_bgcolor="rgba(0,0,0,0)",
        font={"color": "#808080"},
        xaxis={"title": "seconds since the first step began", **grid},
        yaxis={"title": "tokens computed so far", **grid},
        margin={"l": 60, "r": 20, "t": 20, "b": 50},
    )
    return figure


def _progress(side: Side) -> tuple[list[float], list[int]]:
    """Ends of its steps in seconds after the first began, and the tokens computed up to there."""
    index, places = side.trace.index, side.step_places
    if not len(places):
        return [], []
    rows, mask = index.rows, side.row_mask
    per_step = np.bincount(rows.step[mask], weights=rows.num_tokens[mask], minlength=len(index.steps))[places]
    begin = int(index.marks[places[0], 0])
    seconds = (index.marks[places, -1] - begin) / 1e9
    return [0.0, *seconds.tolist()], [0, *per_step.cumsum().astype(int).tolist()]
