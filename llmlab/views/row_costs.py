"""What a pass takes, by the number of rows in it and by how its weights are multiplied: measured times as curves."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import pandas as pd

from llmlab.errors import InvalidParameter
from llmlab.views.glyphs import fit
from llmlab.views.palette import hue
from llmlab.views.scene import Line, Mark, Rect, Scene, Text
from llmlab.views.view import View

LEFT, TOP, HEIGHT, FOOT, BESIDE = 58, 26, 250, 40, 130
MAX_ROWS, MAX_WAYS = 24, 8


@dataclass(frozen=True, slots=True)
class _Axis:
    """A logarithmic axis between two pixels."""

    low: float
    high: float
    start: float
    end: float

    def at(self, value: float) -> float:
        if self.high == self.low:
            return self.start
        return self.start + math.log(value / self.low) / math.log(self.high / self.low) * (self.end - self.start)


def row_costs(times: Mapping[int, Mapping[str, float]], *, width: float = 900) -> View:
    """Curves of milliseconds over rows, both logarithmic: ``times[rows][name]``, as they were measured.

    Times are in picture and table only. Raises ``InvalidParameter`` where a way has no time for some number of rows, or
    there is nothing to draw.
    """
    rows, names = sorted(times), list(next(iter(times.values()), {}))
    if not (1 <= len(rows) <= MAX_ROWS and 1 <= len(names) <= MAX_WAYS):
        raise InvalidParameter(f"give 1 to {MAX_ROWS} numbers of rows and 1 to {MAX_WAYS} ways to compute them")
    complete = all(set(found) == set(names) and all(v > 0 for v in found.values()) for found in times.values())
    if not complete or rows[0] < 1:
        raise InvalidParameter("every number of rows needs a time above 0 for each way")
    alt = f"Measured time of a pass for {rows[0]} to {rows[-1]} rows: {', '.join(names)}."
    frame = pd.DataFrame.from_dict(times, orient="index").sort_index().rename_axis("rows")
    scene = _scene(rows, names, times, width)
    note = "Both axes are logarithmic. Times were measured here, one after the other, and are not repeated exactly."
    return View("row_costs", "time of one pass, by rows", alt, alt, scene, frame.add_suffix(" (ms)"), (note,))


def _scene(rows: list[int], names: list[str], times: Mapping[int, Mapping[str, float]], width: float) -> Scene:
    values = [value for found in times.values() for value in found.values()]
    x = _Axis(rows[0], rows[-1], LEFT, width - BESIDE)
    y = _Axis(min(values) / 1.3, max(values) * 1.3, TOP + HEIGHT, TOP)
    marks = [*_axes(x, y, rows)]
    ends = _apart([y.at(times[rows[-1]][name]) for name in names])
    for number, name in enumerate(names):
        points = [(x.at(count), y.at(times[count][name])) for count in rows]
        marks.append(Line(tuple(points), hue(number), 2, dash=number % 2 == 1))
        for count, (left, top) in zip(rows, points, strict=True):
            tip = f"{name}, {count} rows: {times[count][name]:.1f} ms"
            marks.append(Rect(left - 3, top - 3, 6, 6, hue(number), tip=tip))
        marks.append(Rect(x.end + 12, ends[number] - 5, 8, 8, hue(number)))
        marks.append(Text(x.end + 25, ends[number] + 3, fit(name, BESIDE - 25, 11), 11))
    return Scene(width, TOP + HEIGHT + FOOT, tuple(marks))


def _apart(tops: list[float], least: float = 16) -> list[float]:
    """The same heights, moved down where two labels would overlap."""
    placed: dict[int, float] = {}
    last = -math.inf
    for index in sorted(range(len(tops)), key=tops.__getitem__):
        last = max(tops[index], last + least)
        placed[index] = last
    over = max(last - (TOP + HEIGHT), 0)
    return [placed[index] - over for index in range(len(tops))]


def _axes(x: _Axis, y: _Axis, rows: list[int]) -> Iterator[Mark]:
    yield Text(0, 12, "milliseconds a pass", 11, "muted")
    for value in _ticks(y.low, y.high):
        yield Line(((x.start, y.at(value)), (x.end, y.at(value))), "faint")
        yield Text(x.start - 8, y.at(value) + 4, f"{value:g}", 11, "muted", anchor="end")
    yield Line(((x.start, y.start), (x.end, y.start)), "line")
    for count in rows:
        yield Line(((x.at(count), y.start), (x.at(count), y.start + 4)), "line")
        yield Text(x.at(count), y.start + 17, str(count), 11, "muted", anchor="middle")
    yield Text(x.end, y.start + 34, "rows in the pass", 11, "muted", anchor="end")


def _ticks(low: float, high: float) -> list[float]:
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    steps = (1, 2, 5) if high / low < 200 else (1,)
    return [step * 10.0**power for power in powers for step in steps if low <= step * 10.0**power <= high]
