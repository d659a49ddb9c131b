"""The drawing of a server's metrics: curves over one clock, then the histogram of first tokens."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pandas as pd

from llmlab.views.glyphs import fit
from llmlab.views.scene import Line, Mark, Rect, Scene, Text

LEFT, RIGHT, PLOT, ROW, SMALL = 190.0, 16.0, 44.0, 62.0, 10.0


@dataclass(frozen=True, slots=True)
class Curve:
    """One column of the table on its own scale; ``percent`` for a share of 1, ``least`` the smallest full scale."""

    name: str
    title: str
    role: str
    unit: str = ""
    percent: bool = False
    least: float = 1.0

    def written(self, value: float) -> str:
        """A value as it is read."""
        if math.isnan(value):
            return "not told"
        return f"{100 * value:.1f} %" if self.percent else f"{value:,.4g}{self.unit}"


CURVES = (
    Curve("running", "requests running", "c0"),
    Curve("waiting", "requests waiting", "c5"),
    Curve("kv_usage", "K/V blocks in use", "c2", percent=True),
    Curve("hit_share", "prefix cache hits", "c4", percent=True),
    Curve("output_tokens_per_s", "output tokens", "c3", unit=" /s"),
)


def draw_scene(table: pd.DataFrame, ttft: list[tuple[float, float]], width: float) -> Scene:
    """All curves that have a number, then the histogram."""
    marks: list[Mark] = []
    y = 0.0
    times = table["time_s"].to_numpy()
    for curve in CURVES:
        marks += _curve(curve, times, table[curve.name].to_numpy(), y, width)
        y += ROW
    marks += _clock(times, y - ROW + PLOT + 6, width)
    y += 30
    if ttft:
        marks += _histogram(ttft, y, width)
        y += 104
    return Scene(width, y, tuple(marks))


def _x(times: np.ndarray, width: float) -> np.ndarray:
    span = times[-1] - times[0] or 1.0
    return LEFT + (times - times[0]) / span * (width - LEFT - RIGHT)


def _curve(curve: Curve, times: np.ndarray, values: np.ndarray, y: float, width: float) -> Iterator[Mark]:
    known = values[~np.isnan(values)]
    # of a share or a speed the last reading may have none, as when nothing was looked up
    last = float(known[-1]) if len(known) else math.nan
    yield Text(0, y + 18, fit(curve.title, LEFT - 60, 12), bold=True)
    yield Text(0, y + 34, curve.written(last) if len(known) else _absent(curve, times), 12, "muted")
    yield Line(((LEFT, y + PLOT), (width - RIGHT, y + PLOT)))
    if not len(known):
        return
    top = max(curve.least, float(known.max()))
    yield Text(LEFT - 6, y + 12, curve.written(top).replace(".0 %", " %"), SMALL, "muted", anchor="end")
    yield Text(LEFT - 6, y + PLOT, "0", SMALL, "muted", anchor="end")
    yield from _points(curve, times, values, top, y, width)


def _absent(curve: Curve, times: np.ndarray) -> str:
    needs_two = curve.name in ("hit_share", "output_tokens_per_s")
    return "needs two readings" if needs_two and len(times) < 2 else "not told"


def _points(curve: Curve, times: np.ndarray, values: np.ndarray, top: float, y: float, width: float) -> Iterator[Mark]:
    """Stretches without a gap as lines, and every reading as a dot with its numbers while they are few."""
    xs, ys = _x(times, width), y + PLOT - np.nan_to_num(values) / top * (PLOT - 6)
    for stretch in np.split(np.arange(len(values)), np.flatnonzero(np.isnan(values))):
        points = tuple((float(xs[i]), float(ys[i])) for i in stretch if not math.isnan(values[i]))
        if len(points) > 1:
            yield Line(points, curve.role, 2, tip=f"{curve.title}: {len(points)} readings")
    if len(values) > 80:
        return
    for x, top_y, seconds, value in zip(xs, ys, times, values, strict=True):
        if not math.isnan(value):
            tip = f"{curve.title}: {curve.written(float(value))} at {seconds:.3f} s"
            yield Rect(float(x) - 2, float(top_y) - 2, 4, 4, curve.role, tip=tip)


def _clock(times: np.ndarray, y: float, width: float) -> Iterator[Mark]:
    yield Text(LEFT, y + 12, "0 s", SMALL, "muted")
    if len(times) > 1:
        span = float(times[-1] - times[0])
        yield Text(width - RIGHT, y + 12, f"{span:,.1f} s since the first reading", SMALL, "muted", anchor="end")


def _histogram(ttft: list[tuple[float, float]], y: float, width: float) -> Iterator[Mark]:
    """A bar per bucket that holds requests, and the empty ones between them."""
    total = sum(number for _, number in ttft)
    yield Text(0, y + 18, "time to first token", bold=True)
    yield Text(0, y + 34, fit(f"{total:,.0f} first token{'' if total == 1 else 's'}", LEFT - 20, 12), 12, "muted")
    yield Line(((LEFT, y + 64), (width - RIGHT, y + 64)))
    held = [i for i, (_, number) in enumerate(ttft) if number > 0]
    if not held:
        return
    buckets = list(enumerate(ttft))[held[0] : held[-1] + 1]
    step = min((width - LEFT - RIGHT) / len(buckets), 90.0)
    most = max(number for _, (_, number) in buckets)
    for place, (i, (bound, number)) in enumerate(buckets):
        x, h = LEFT + place * step, 44 * number / most
        low = ttft[i - 1][0] if i else 0.0
        tip = f"{number:,.0f} first tokens after more than {low:g} s, at most {bound:g} s"
        if number > 0:
            yield Rect(x + 2, y + 64 - h, step - 4, h, "mark", tip=tip)
            yield Text(x + step / 2, y + 60 - h, fit(f"{number:,.0f}", step, SMALL), SMALL, "muted", anchor="middle")
        label = "more" if math.isinf(bound) else f"≤ {bound:g} s"
        yield Text(x + step / 2, y + 78, fit(label, step - 2, SMALL), SMALL, "muted", anchor="middle", tip=tip)
    yield Text(LEFT, y + 94, "buckets of the server's histogram", SMALL, "muted")
