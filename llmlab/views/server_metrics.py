"""What a server's own metrics say over time: any server that uses vLLM's names, also one we cannot look into."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from llmlab.errors import InvalidParameter
from llmlab.trace.readings import (
    HITS,
    KV_USAGE,
    OUTPUT_TOKENS,
    PREEMPTIONS,
    PROMPT_TOKENS,
    QUERIES,
    RUNNING,
    WAITING,
    Reading,
)
from llmlab.views.glyphs import fit, visible
from llmlab.views.heatmap import plain
from llmlab.views.looked import check_size
from llmlab.views.phrases import count
from llmlab.views.scene import Rect, Scene, Text
from llmlab.views.server_metrics_scene import draw_scene
from llmlab.views.view import View

if TYPE_CHECKING:
    import plotly.graph_objects as go

MAX_READINGS = 600
HOW = "llmlab.client.metrics.scrape(url) makes a reading of a server that has /metrics with vLLM's names"
NAMES = {
    "running": RUNNING,
    "waiting": WAITING,
    "kv_usage": KV_USAGE,
    "prefix_queries": QUERIES,
    "prefix_hits": HITS,
    "prompt_tokens": PROMPT_TOKENS,
    "output_tokens": OUTPUT_TOKENS,
    "preemptions": PREEMPTIONS,
}
COLUMNS = {
    "time_s": "seconds since the first reading",
    "running": "requests in the batch, over all engines",
    "waiting": "requests waiting for a place in it",
    "kv_usage": "part of the K/V blocks in use, 0 to 1; of several engines the fullest",
    "prefix_queries": "prompt tokens looked up in the prefix cache since the server began",
    "prefix_hits": "of those, found there",
    "prompt_tokens": "prompt tokens since the server began",
    "output_tokens": "output tokens since the server began",
    "preemptions": "requests preempted since the server began",
    "hit_share": "part of the tokens looked up since the reading before that were found",
    "output_tokens_per_s": "output tokens per second since the reading before",
}


def server_metrics(samples: Sequence[Reading], *, width: float = 960) -> View:
    """Requests, K/V usage, prefix hits, output speed and TTFT of a server, from readings of its ``/metrics``.

    Counters are shown as what was added between two readings. Numbers the server does not tell are absent. Raises
    ``InvalidParameter`` for readings out of order, or of several servers.
    """
    check_size("width", width, 480, 4_000)
    readings = list(samples)
    _check(readings)
    if not readings:
        return _empty(width)
    shown = readings[-MAX_READINGS:]
    table = _table(shown)
    ttft = _ttft(shown)
    source = visible(shown[-1].source, limit=120)
    return View(
        "server_metrics",
        f"What {source} says about itself",
        f"{count(len(shown), 'reading')} of a server's metrics: {_last(table)}.",
        _text(shown, table, ttft),
        draw_scene(table, ttft, width),
        table,
        _notes(readings, table),
        lambda: _figure(table, source),
    )


def _check(readings: list[Reading]) -> None:
    if any(later.t_ns <= earlier.t_ns for earlier, later in pairwise(readings)):
        raise InvalidParameter("the readings are not in the order of their times: give them as they were made")
    if len(sources := dict.fromkeys(reading.source for reading in readings)) > 1:
        raise InvalidParameter(f"the readings are of {len(sources)} servers: give those of one at a time")


def _empty(width: float) -> View:
    lines = ["There is no reading of a server's metrics.", f"{HOW}."]
    marks = [Rect(0, 0, width, 60, stroke="line", dash=True)]
    marks += [Text(16, 25 + 20 * i, fit(line, width - 32, 12), 12, "muted", tip=line) for i, line in enumerate(lines)]
    scene, table = Scene(width, 60, tuple(marks)), pd.DataFrame(columns=list(COLUMNS))
    return View("server_metrics", "Server metrics: nothing to draw", lines[0], "\n".join(lines), scene, table)


# -- numbers --------------------------------------------------------------------------------------------------


def _table(readings: list[Reading]) -> pd.DataFrame:
    first = readings[0].t_ns
    columns = {"time_s": np.array([(reading.t_ns - first) / 1e9 for reading in readings])}
    for name, metric in NAMES.items():
        told = np.array([reading.values.get(metric, np.nan) for reading in readings], dtype=np.float64)
        columns[name] = np.where(np.isfinite(told), told, np.nan)
    hits, queries, output = (added(columns[name]) for name in ("prefix_hits", "prefix_queries", "output_tokens"))
    columns["hit_share"] = np.divide(hits, queries, out=np.full(len(hits), np.nan), where=queries > 0)
    columns["output_tokens_per_s"] = output / added(columns["time_s"])
    table = pd.DataFrame(columns)
    table.attrs["columns"] = dict(COLUMNS)
    return table


def added(counter: np.ndarray) -> np.ndarray:
    """What each reading added to the one before: NaN for the first, and where the counter began again."""
    steps = np.diff(counter, prepend=np.nan)
    return np.where(steps < 0, np.nan, steps)


def _ttft(readings: list[Reading]) -> list[tuple[float, float]]:
    """``(upper bound in seconds, requests)`` per bucket, of the requests between the first and the last reading; of one
    reading, since the server began."""
    last = dict(readings[-1].ttft)
    before = dict(readings[0].ttft) if len(readings) > 1 else {}
    if any(before.get(bound, 0.0) > number for bound, number in last.items()):
        before = {}  # the server began again meanwhile
    total, result = 0.0, []
    for bound in sorted(last):
        inside = last[bound] - before.get(bound, 0.0)
        result.append((bound, max(0.0, inside - total)))
        total = max(total, inside)
    return result


# -- words ----------------------------------------------------------------------------------------------------


def _last(table: pd.DataFrame) -> str:
    row = table.iloc[-1]
    parts = [f"{whole(row[name])} {name}" for name in ("running", "waiting") if not np.isnan(row[name])]
    return ", ".join(parts) + " at the last" if parts else "it tells of no requests"


def whole(number: float) -> str:
    """A count, short also where a server tells nonsense."""
    return f"{number:,.0f}" if abs(number) < 1e15 else f"{number:.3g}"


def _text(readings: list[Reading], table: pd.DataFrame, ttft: list[tuple[float, float]]) -> str:
    lines = [f"{count(len(readings), 'reading')} of {visible(readings[-1].source, limit=120)}; {_last(table)}"]
    for name, what in (
        ("prompt_tokens", "prompt tokens"),
        ("output_tokens", "output tokens"),
        ("prefix_queries", "tokens looked up in the prefix cache"),
        ("prefix_hits", "tokens found there"),
        ("preemptions", "preemptions"),
    ):
        values = table[name].to_numpy()
        if not np.isnan(values[-1]):
            # a counter that was not there at first may have been anything
            is_known = len(values) > 1 and not np.isnan(values[0])
            between = f", {whole(np.nansum(added(values)))} of them between the readings" if is_known else ""
            lines.append(f"  {what}: {whole(values[-1])} since the server began{between}")
    absent = [name for name in NAMES if table[name].isna().all()]
    if absent:
        lines.append(f"  not told by the server: {', '.join(absent)}")
    if ttft:
        lines.append(f"  first tokens: {whole(sum(number for _, number in ttft))} in the histogram of their times")
    return "\n".join(lines)


def _notes(readings: list[Reading], table: pd.DataFrame) -> tuple[str, ...]:
    notes = []
    if (earlier := len(readings) - len(table)) > 0:
        notes.append(f"The last {len(table)} readings; {count(earlier, 'earlier one')} left out.")
    if (np.diff(table["output_tokens"].to_numpy()) < 0).any():
        notes.append("A counter fell between two readings: the server began again, and that stretch is left empty.")
    return tuple(notes)


def _figure(table: pd.DataFrame, source: str) -> go.Figure:
    from plotly.subplots import make_subplots

    names = [
        n for n in ("running", "waiting", "kv_usage", "hit_share", "output_tokens_per_s") if table[n].notna().any()
    ]
    figure = make_subplots(max(1, len(names)), 1, shared_xaxes=True, subplot_titles=names)
    for row, name in enumerate(names, 1):
        figure.add_scatter(x=table["time_s"], y=table[name], mode="lines+markers", name=name, row=row, col=1)
    figure.update_layout(
        title=plain(source),
        showlegend=False,
        paper_bgcolor="rgba(0,0,0,0)",
        plot_bgcolor="rgba(0,0,0,0)",
        font={"color": "#808080"},
        height=120 + 130 * len(names),
    )
    figure.update_xaxes(gridcolor="rgba(128,128,128,.25)")
    figure.update_yaxes(gridcolor="rgba(128,128,128,.25)", rangemode="tozero")
    figure.update_xaxes(title="seconds since the first reading", row=max(1, len(names)), col=1)
    return figure
