"""A plotly heat map over places with names: repeated names stay separate rows and columns."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import TYPE_CHECKING

import numpy as np

from llmlab.views.glyphs import visible

if TYPE_CHECKING:
    import plotly.graph_objects as go

GREY, QUIET = "#808080", "rgba(128,128,128,.25)"
SCALE = ((0.0, "rgba(0,114,178,0.03)"), (1.0, "rgba(0,114,178,1)"))
MAX_TICKS = 40


def plain(text: str, limit: int = 60) -> str:
    """Text that plotly shows as it is: plotly reads some markup in labels."""
    return escape(visible(text, limit=limit), quote=False)


def heatmap(
    values: np.ndarray,
    rows: Sequence[str],
    columns: Sequence[str],
    *,
    title: str,
    axes: tuple[str, str],
    unit: str,
    zmax: float,
    extra: np.ndarray | None = None,
    cell_text: np.ndarray | None = None,
) -> go.Figure:
    """``values`` (rows, columns), NaN left empty; ``extra`` and ``cell_text`` are strings of the same shape, shown on
    hover and in the cells. They and the names may be anything."""
    import plotly.graph_objects as go

    hover = np.array([[f"{axes[0]} {plain(r)}<br>{axes[1]} {plain(c)}" for c in columns] for r in rows], dtype=object)
    if extra is not None:
        hover = hover + "<br>" + np.vectorize(lambda text: plain(text, 400), otypes=[object])(extra)
    cells = None if cell_text is None else np.vectorize(plain, otypes=[object])(cell_text)
    trace = go.Heatmap(
        z=[[None if np.isnan(v) else round(float(v), 4) for v in line] for line in values],
        customdata=hover.tolist(),
        text=None if cells is None else cells.tolist(),
        texttemplate=None if cells is None else "%{text}",
        hovertemplate="%{customdata}<br>" + unit + " %{z}<extra></extra>",
        colorscale=SCALE,
        zmin=0,
        zmax=zmax,
        colorbar={"title": {"text": unit}, "outlinewidth": 0},
        hoverongaps=False,
    )
    figure = go.Figure(trace)
    figure.update_layout(
        title={"text": plain(title, 200)},
        paper_bgcolor="rgba(0,0,0,0)",
        plot_bgcolor="rgba(0,0,0,0)",
        font={"color": GREY},
        height=max(320, min(900, 120 + 18 * len(rows))),
        xaxis=_axis(columns, axes[1]),
        yaxis=_axis(rows, axes[0]) | {"autorange": "reversed"},
    )
    return figure


def _axis(names: Sequence[str], title: str) -> dict:
    places = list(range(0, len(names), max(1, -(-len(names) // MAX_TICKS))))
    return {
        "title": {"text": title},
        "tickvals": places,
        "ticktext": [plain(names[i], 20) for i in places],
        "gridcolor": QUIET,
        "zeroline": False,
    }
