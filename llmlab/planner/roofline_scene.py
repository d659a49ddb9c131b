"""The roofline chart: two limits on logarithmic axes, and numbered steps under them."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from llmlab.views.glyphs import fit
from llmlab.views.scene import Line, Mark, Rect, Scene, Text

LEFT, TOP, HEIGHT, FOOT, LIST = 66, 26, 250, 44, 290
_UNITS = ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"))


@dataclass(frozen=True, slots=True)
class Point:
    """A step: operations per byte, operations a second, and what to say about it."""

    name: str
    intensity: float
    flops_per_s: float
    note: str


@dataclass(frozen=True, slots=True)
class _Scale:
    low: float
    high: float
    start: float
    end: float

    def at(self, value: float) -> float:
        share = math.log(value / self.low) / math.log(self.high / self.low)
        return self.start + share * (self.end - self.start)

    def powers(self) -> list[float]:
        first, last = math.ceil(math.log10(self.low) - 1e-9), math.floor(math.log10(self.high) + 1e-9)
        return [10.0**power for power in range(first, last + 1)]


def roofline_scene(points: Sequence[Point], flops_per_s: float, bytes_per_s: float, width: float) -> Scene:
    """Points below ``min(peak, intensity x bandwidth)``; a list at the right tells which number is which."""
    ridge = flops_per_s / bytes_per_s
    xs = [ridge, *(point.intensity for point in points)]
    x = _Scale(min(xs) / 3, max(xs) * 6, LEFT, width - LIST)
    low = min(x.low * bytes_per_s, *(point.flops_per_s for point in points))
    y = _Scale(low, flops_per_s * 4, TOP + HEIGHT, TOP)
    marks = [*_axes(x, y), *_roof(x, y, ridge, flops_per_s, bytes_per_s)]
    for number, point in enumerate(points):
        marks += _point(number + 1, point, x, y, width)
    rows = TOP + 20 + 38 * len(points)
    return Scene(width, max(TOP + HEIGHT + FOOT, rows), tuple(marks))


def _axes(x: _Scale, y: _Scale) -> Iterator[Mark]:
    for value in y.powers():
        yield Line(((x.start, y.at(value)), (x.end, y.at(value))), "faint")
        yield Text(x.start - 8, y.at(value) + 4, _short(value), 10.5, "muted", anchor="end")
    for value in x.powers():
        yield Line(((x.at(value), y.start), (x.at(value), y.start + 5)), "line")
        yield Text(x.at(value), y.start + 18, f"{value:,.6g}", 10.5, "muted", anchor="middle")
    yield Line(((x.start, y.start), (x.end, y.start)), "line")
    yield Text(0, 12, "operations a second", 11, "muted")
    yield Text(x.end, y.start + 36, "operations per byte", 11, "muted", anchor="end")


def _roof(x: _Scale, y: _Scale, ridge: float, peak: float, bandwidth: float) -> Iterator[Mark]:
    bend = (x.at(ridge), y.at(peak))
    start = max(x.low, y.low / bandwidth)
    yield Line(((x.at(start), y.at(start * bandwidth)), bend, (x.end, y.at(peak))), "ink", 2)
    yield Line((bend, (bend[0], y.start)), "muted", 1, dash=True)
    yield Text(x.end, bend[1] - 15, f"arithmetic: {_short(peak)} a second", 11, "muted", anchor="end")
    yield Text(bend[0] - 6, y.start - 8, f"bend at {ridge:,.3g}", 11, "muted", anchor="end")


def _point(number: int, point: Point, x: _Scale, y: _Scale, width: float) -> Iterator[Mark]:
    left, top = x.at(point.intensity), y.at(point.flops_per_s)
    tip = (
        f"{point.name}: {point.intensity:,.3g} operations per byte, {_short(point.flops_per_s)} a second, {point.note}"
    )
    yield Rect(left - 8, top - 8, 16, 16, "c1", "ink", tip=tip)
    yield Text(left, top + 4, str(number), 10.5, on="c1", anchor="middle", tip=tip)
    edge, line = width - LIST + 24, TOP + 38 * (number - 1)
    yield Rect(edge, line, 16, 16, "c1", "ink")
    yield Text(edge + 8, line + 12, str(number), 10.5, on="c1", anchor="middle")
    yield Text(edge + 24, line + 12, fit(point.name, LIST - 52, 12), 12, tip=tip)
    yield Text(edge + 24, line + 27, fit(point.note, LIST - 52, 11), 11, "muted", tip=tip)


def _short(value: float) -> str:
    size, unit = next(((size, unit) for size, unit in _UNITS if value >= size), (1, ""))
    return f"{value / size:,.4g} {unit}".rstrip()
