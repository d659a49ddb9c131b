"""Checks of lab 07, prefill against decode, and the chart it draws of what it measured."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import ceil
from typing import Any

import pandas as pd

from llmlab.checks.judge import judge_function
from llmlab.checks.verdict import Verdict
from llmlab.errors import InvalidParameter
from llmlab.views.palette import hue
from llmlab.views.scene import Line, Mark, Rect, Scene, Text
from llmlab.views.view import View

CHUNK_CASES = ((512, 64, 1), (512, 64, 8), (100, 512, 1), (63, 64, 1), (64, 64, 1), (1000, 256, 0), (10_000, 512, 32))
CROSSING_CASES = ((106_202_880, 576, 30), (6_979_321_856, 4096, 32), (68_451_041_280, 8192, 80), (9_000, 10, 3))
FLIP_CASES = ((312e12, 2.04e12, 2), (989e12, 3.35e12, 2), (989e12, 4.8e12, 2), (1_979e12, 3.35e12, 1), (100e9, 10e9, 4))

# -- the exercises ------------------------------------------------------------------------------------------


def q1(function: Any) -> Verdict:
    """In how many steps is a prompt computed, when each running stream takes one token of every step's budget?"""
    mistakes = [
        (lambda n, budget, streams: ceil(n / budget), "nearly: each stream's token comes out of the same budget."),
        (lambda n, budget, streams: n // (budget - streams), "the last chunk is a step too, even if it is not full."),
        (lambda n, budget, streams: ceil(n / (budget - streams)) + streams, "streams run in the same steps, not more."),
        (lambda n, budget, streams: ceil((n + streams) / budget), "the streams take their tokens in every step."),
        (lambda n, budget, streams: n, "that is a step per token; a step takes as many as the budget has left."),
        (lambda n, budget, streams: 1, "only if the whole prompt fits into what the streams leave of the budget."),
    ]
    because = "running streams take one token each and the prompt gets the rest of the budget; the last chunk is short."
    return judge_function(function, chunked_steps, CHUNK_CASES, mistakes, because=because)


def chunked_steps(num_prompt_tokens: int, budget: int, num_streams: int) -> int:
    """Steps until the prompt is computed."""
    return ceil(num_prompt_tokens / (budget - num_streams))


def q2(function: Any) -> Verdict:
    """At which length does attention, with the causal mask, cost as many operations as the layers' matrices?"""
    mistakes = [
        (lambda p, width, layers: p // (2 * width * layers), "that is without the causal mask: half of the pairs go."),
        (lambda p, width, layers: 2 * p // (width * layers), "multiplications and additions count on both sides."),
        (lambda p, width, layers: p // width, "every layer has attention: divide by the number of layers too."),
        (lambda p, width, layers: p // layers, "a score is a product over the width: divide by the width too."),
        (lambda p, width, layers: p, "that is the number of parameters; compare 2 x P x n with 2 x n x n x width x L."),
    ]
    because = "2 x P x n = 2 x n x n x width x layers, so n = P / (width x layers)."
    return judge_function(function, crossing, CROSSING_CASES, mistakes, because=because)


def crossing(layer_parameters: int, width: int, layers: int) -> int:
    """The length (tokens, rounded down) at which both terms are equal."""
    return layer_parameters // (width * layers)


def q3(function: Any) -> Verdict:
    """How many tokens in a step make it take as long to compute as to read the weights?"""
    mistakes = [
        (
            lambda flops, bandwidth, size: round(flops / bandwidth),
            "that is operations per byte; a weight has several bytes and serves two operations a token.",
        ),
        (
            lambda flops, bandwidth, size: round(flops * size / bandwidth),
            "each weight is used for a multiplication and an addition: two operations a token.",
        ),
        (
            lambda flops, bandwidth, size: round(flops / bandwidth / size / 2),
            "more bytes per weight make reading slower, so more tokens are needed, not fewer.",
        ),
        (
            lambda flops, bandwidth, size: round(bandwidth / flops * 2 / size),
            "that is upside down: divide the operations per second by the bytes per second.",
        ),
        (lambda flops, bandwidth, size: 1, "one token uses each weight it reads for two operations only."),
    ]
    because = "n tokens: 2 x n operations for every weight of so many bytes; both take equally long at this n."
    return judge_function(function, flip, FLIP_CASES, mistakes, because=because)


def flip(flops_per_s: float, bytes_per_s: float, bytes_per_weight: int) -> int:
    """Tokens per step (rounded) at which reading and computing take equally long."""
    return round(flops_per_s / bytes_per_s * bytes_per_weight / 2)


# -- the chart ----------------------------------------------------------------------------------------------

LEFT, TOP, RIGHT, HEIGHT, FOOT = 64, 34, 200, 250, 44


@dataclass(frozen=True, slots=True)
class Series:
    """Points ``(x, y)``, drawn as a line or as marks; ``labels`` name the marks."""

    name: str
    points: Sequence[tuple[float, float]]
    is_line: bool = False
    dash: bool = False
    labels: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class Axis:
    """Values from ``low`` to ``high`` on pixels from ``start`` to ``end``, even steps of the logarithm if ``log``."""

    low: float
    high: float
    start: float
    end: float
    log: bool

    def at(self, value: float) -> float:
        """The pixel of a value."""
        low, high, here = (math.log(v) if self.log else v for v in (self.low, self.high, value))
        return self.start + (self.end - self.start) * (here - low) / (high - low)

    def ticks(self) -> list[float]:
        """Round values to write at the axis."""
        if self.log:
            return _powers(self.low, self.high)
        step = next(s for s in _steps() if (self.high - self.low) / s <= 6)
        return [i * step for i in range(math.ceil(self.low / step), math.floor(self.high / step) + 1)]


def chart(title: str, alt: str, axes: tuple[str, str], series: Sequence[Series], *, log: bool = False) -> View:
    """Measured values over another quantity. ``axes`` name both with their units; ``alt`` must hold no measured number.

    Raises ``InvalidParameter`` for fewer than two points, and for values of 0 or less on a logarithmic axis.
    """
    points = [point for each in series for point in each.points]
    if len(points) < 2 or (log and min(map(min, points)) <= 0):
        raise InvalidParameter("a chart needs two points, and values above 0 for a logarithmic scale")
    width = 820.0
    x = _axis((p[0] for p in points), LEFT, width - RIGHT, log)
    y = _axis((p[1] for p in points), TOP + HEIGHT, TOP, log)
    marks = [*_frame(x, y, axes)]
    for number, each in enumerate(series):
        marks += [*_drawn(each, hue(number), x, y), *_legend(each, hue(number), number, width - RIGHT + 18)]
    rows = [(each.name, *point) for each in series for point in each.points]
    frame = pd.DataFrame(rows, columns=["series", *axes])
    return View("chart", title, alt, alt, Scene(width, TOP + HEIGHT + FOOT, tuple(marks)), frame)


def _axis(values: Iterable[float], start: float, end: float, log: bool) -> Axis:
    values = list(values)
    low, high = (min(values) / 1.5, max(values) * 1.5) if log else (0.0, max(values) * 1.05)
    return Axis(low, high, start, end, log)


def _steps() -> Iterable[float]:
    return (digit * 10.0**power for power in range(-6, 13) for digit in (1, 2, 5))


def _powers(low: float, high: float) -> list[float]:
    exponents = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    digits = (1,) if math.log10(high / low) > 3 else (1, 3)
    return [v for e in exponents for d in digits if low <= (v := d * 10.0**e) <= high]


def _frame(x: Axis, y: Axis, axes: tuple[str, str]) -> Iterable[Mark]:
    for value in y.ticks():
        yield Line(((x.start, y.at(value)), (x.end, y.at(value))))
        yield Text(x.start - 8, y.at(value) + 4, f"{value:,.6g}", 11, "muted", anchor="end")
    for value in x.ticks():
        yield Line(((x.at(value), y.start), (x.at(value), y.start + 5)))
        yield Text(x.at(value), y.start + 19, f"{value:,.6g}", 11, "muted", anchor="middle")
    yield Line(((x.start, y.start), (x.end, y.start)), "muted")
    yield Text(0, 14, axes[1], 12, "muted")
    yield Text(x.end, y.start + 37, axes[0], 12, "muted", anchor="end")


def _drawn(each: Series, colour: str, x: Axis, y: Axis) -> Iterable[Mark]:
    places = [(x.at(a), y.at(b)) for a, b in each.points]
    if each.is_line:
        yield Line(tuple(places), colour, 2, each.dash)
        return
    labels = each.labels or [""] * len(places)
    for (left, top), label in zip(places, labels, strict=True):
        yield Rect(left - 4, top - 4, 8, 8, colour, "ink")
        yield Text(left + 8, top + 14, label, 11, "ink")


def _legend(each: Series, colour: str, number: int, left: float) -> Iterable[Mark]:
    top = TOP + 10 + 20 * number
    if each.is_line:
        yield Line(((left, top - 4), (left + 22, top - 4)), colour, 2, each.dash)
    else:
        yield Rect(left + 7, top - 8, 8, 8, colour, "ink")
    yield Text(left + 30, top, each.name, 11.5)
