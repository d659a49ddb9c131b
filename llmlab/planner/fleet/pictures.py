"""Pictures of simulated fleets; each says SIMULATED in its title and where its step times come from in its notes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd

from llmlab.errors import InvalidParameter
from llmlab.planner.fleet.chart import Chart, Series
from llmlab.planner.fleet.result import FleetResult
from llmlab.views.glyphs import fit
from llmlab.views.phrases import count
from llmlab.views.scene import Grid, Line, Mark, Rect, Scene, Text
from llmlab.views.view import View

LEFT, ROW, BUCKETS = 150.0, 34.0, 120
BAR, GROUP = 20.0, 30.0
FIGURES = {
    "requests_per_s": ("requests a second", ""),
    "ttft_p50_ms": ("first token, median", " ms"),
    "ttft_p90_ms": ("first token, 90 %", " ms"),
    "itl_p50_ms": ("between tokens, median", " ms"),
    "itl_p99_ms": ("between tokens, 99 %", " ms"),
    "hit_rate": ("prompt tokens from the cache", " %"),
    "slots_used": ("places in the batch used", " %"),
    "preemptions": ("preemptions", ""),
}


def load_latency(runs: Mapping[float, FleetResult], *, width: float = 900) -> View:
    """Time to first token, median and 90 %, over the rate of arrivals; beneath, the share of the batch in use.

    ``runs``: requests a second -> what came of it, at least two. Raises ``InvalidParameter`` for fewer.
    """
    if len(runs) < 2:
        raise InvalidParameter("a curve needs the runs of at least two rates")
    frame = pd.DataFrame([{"rate_per_s": rate} | _figures(run) for rate, run in sorted(runs.items())])
    rates = frame.rate_per_s.to_numpy()
    latency = Chart("time to first token", "ms", "requests a second", logarithmic=True)
    curves = [Series("90 %", frame.ttft_p90_ms.to_numpy(), "c5"), Series("median", frame.ttft_p50_ms.to_numpy(), "c0")]
    shares = Chart("places in the batch used", "%", "requests a second", top=100.0)
    used = [Series("used", 100 * frame.slots_used.to_numpy(), "c2")]
    marks = [*latency.draw(rates, curves, 0, 190, width), *shares.draw(rates, used, 256, 70, width)]
    text = "\n".join(
        f"{row.rate_per_s:g} a second: first token {row.ttft_p50_ms:,.0f} ms (median), {row.ttft_p90_ms:,.0f} ms "
        f"(90 %), {row.slots_used:.0%} of the batch used"
        for row in frame.itertuples()
    )
    alt = f"Time to first token of one fleet at {count(len(frame), 'rate')} of arrivals."
    lowest = runs[min(runs)].workload
    scene, title = Scene(width, 386, tuple(marks)), "latency under load"
    return _view(
        "load_latency", title, alt, text, scene, frame, [*runs.values()], f"Work at the lowest rate: {lowest}."
    )


def replica_lanes(result: FleetResult, *, width: float = 900) -> View:
    """A lane for each replica: how many unfinished requests it had, over time, and what it did in all."""
    table, frame = result.requests, _lane_frame(result)
    start, end = float(table.arrived_s.min()), float(table.ended_s.max())
    edges = np.linspace(start, end, BUCKETS + 1)
    present = np.array([_present(table[table.replica == name], edges) for name in frame.replica])
    most = float(present.max()) or 1.0
    cell = (width - LEFT - 10) / BUCKETS
    marks: list[Mark] = []
    for row, lane in enumerate(frame.itertuples()):
        y = row * ROW
        facts = f"{lane.requests} requests, {lane.hit_rate:.0%} cached"
        marks += [Text(0, y + 13, fit(lane.replica, LEFT - 10, 12), bold=True)]
        marks += [Text(0, y + 26, fit(facts, LEFT - 8, 10), 10, "muted", tip=facts)]
        marks.append(Grid(LEFT, y + 2, cell, ROW - 8, present[row : row + 1] / most, "c0", row_labels=(lane.replica,)))
        marks.append(Rect(LEFT, y + 2, cell * BUCKETS, ROW - 8, stroke="line"))
    y = len(frame) * ROW
    marks += [
        Text(LEFT, y + 12, f"{start:,.0f} s", 10, "muted"),
        Text(width - 10, y + 12, f"{end:,.0f} s", 10, "muted", anchor="end"),
        Text(width / 2, y + 12, f"unfinished requests: empty 0, full {most:.0f}", 10, "muted", anchor="middle"),
    ]
    text = "\n".join(
        f"{lane.replica}: {lane.requests} requests, {lane.hit_rate:.1%} of prompt tokens from the cache"
        for lane in frame.itertuples()
    )
    alt = f"{count(len(frame), 'replica')} and the requests each had to do over time."
    return _view("replica_lanes", "replicas", alt, text, Scene(width, y + 18, tuple(marks)), frame, [result])


def _present(table: pd.DataFrame, edges: np.ndarray) -> np.ndarray:
    """Mean number of unfinished requests in each stretch of time."""
    arrived, ended = table.arrived_s.to_numpy()[:, None], table.ended_s.to_numpy()[:, None]
    overlap = np.minimum(ended, edges[1:]) - np.maximum(arrived, edges[:-1])
    return overlap.clip(min=0).sum(axis=0) / np.diff(edges).clip(min=1e-12)


def _lane_frame(result: FleetResult) -> pd.DataFrame:
    by = result.requests.groupby("replica", observed=False)
    prompt = by.num_prompt_tokens.sum()
    found = pd.DataFrame(
        {
            "requests": by.size(),
            "hit_rate": by.num_cached_tokens.sum() / prompt.where(prompt > 0),
            "ttft_p90_ms": by.ttft_ms.quantile(0.9),
        }
    )
    frame = result.replicas.merge(found, left_on="replica", right_index=True)
    return frame.fillna({"hit_rate": 0.0})


def compared(
    runs: Mapping[str, FleetResult],
    figures: Sequence[str] = ("ttft_p50_ms", "ttft_p90_ms", "itl_p50_ms", "itl_p99_ms", "hit_rate"),
    *,
    width: float = 900,
) -> View:
    """Runs side by side: a group of bars for each figure, a bar a run, on the figure's own scale.

    ``figures`` are fields of :class:`~llmlab.planner.fleet.result.FleetSummary`. Raises ``InvalidParameter`` for a
    figure that is not known and for fewer than two runs.
    """
    unknown = [name for name in figures if name not in FIGURES]
    if unknown or len(runs) < 2:
        raise InvalidParameter(
            f"figure {unknown[0]!r} is none of {', '.join(FIGURES)}" if unknown else "compare at least two runs"
        )
    frame = pd.DataFrame([{"run": name} | _figures(run) for name, run in runs.items()])
    marks, y = [], 0.0
    for name in figures:
        marks += _group(name, frame, y, width)
        y += 22 + BAR * len(frame) + 8
    text = "\n".join(
        f"{FIGURES[name][0]}: "
        + ", ".join(f"{row.run} {_said(name, getattr(row, name))}" for row in frame.itertuples())
        for name in figures
    )
    alt = f"{count(len(figures), 'figure')} of {count(len(frame), 'simulated run')} side by side."
    scene = Scene(width, y, tuple(marks))
    return _view("compared", "runs compared", alt, text, scene, frame, list(runs.values()))


def _group(name: str, frame: pd.DataFrame, y: float, width: float) -> list[Mark]:
    marks: list[Mark] = [Text(0, y + 14, FIGURES[name][0], 12, bold=True)]
    largest = float(frame[name].max()) or 1.0
    room = width - LEFT - 90
    for place, row in enumerate(frame.itertuples()):
        top, value = y + 20 + place * BAR, float(getattr(row, name))
        said = _said(name, value)
        tip = f"{row.run}: {FIGURES[name][0]} {said}"
        marks.append(Text(LEFT - 8, top + 13, fit(row.run, LEFT - 12, 11), 11, "muted", anchor="end", tip=tip))
        length = max(room * value / largest, 0.5) if value == value else 0.5
        marks.append(Rect(LEFT, top + 3, length, BAR - 6, f"c{place % 8}", tip=tip))
        marks.append(Text(LEFT + length + 6, top + 13, said, 11, tip=tip))
    marks.append(Line(((LEFT, y + 20), (LEFT, y + 20 + BAR * len(frame)))))
    return marks


def _said(name: str, value: float) -> str:
    unit = FIGURES[name][1]
    if value != value:
        return "none"
    if unit == " %":
        return f"{100 * value:.0f} %"
    return f"{value:,.0f}{unit}" if value >= 100 or (unit == "" and value == int(value)) else f"{value:,.3g}{unit}"


def _figures(run: FleetResult) -> dict[str, float]:
    summary = run.summary
    return {name: float(getattr(summary, name)) for name in FIGURES}


def _view(
    name: str,
    title: str,
    alt: str,
    text: str,
    scene: Scene,
    frame: pd.DataFrame,
    runs: list[FleetResult],
    *more: str,
) -> View:
    sources = dict.fromkeys(run.fleet.times.source for run in runs)
    workloads = dict.fromkeys(run.workload for run in runs)
    notes = [f"Step times: {'; '.join(sources)}."]
    notes += [f"Work: {next(iter(workloads))}."] if len(workloads) == 1 else []
    return View(name, title, alt, text, scene, frame, (*notes, *more), simulated=True)
