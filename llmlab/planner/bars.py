"""Stacked horizontal bars on one scale: the layout that the planner's pictures share."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from llmlab.views.glyphs import fit, text_width
from llmlab.views.scene import Line, Mark, Rect, Scene, Text

TOP, ROW, BAR, FOOT = 30, 58, 24, 34


@dataclass(frozen=True, slots=True)
class Segment:
    """A piece of a bar: ``role`` of the palette, or empty for an outline only; ``hatch`` and ``dash`` as of a Rect."""

    name: str
    value: float
    role: str
    hatch: bool = False
    dash: bool = False


@dataclass(frozen=True, slots=True)
class Bar:
    """One row: what it is about, what comes out, its segments, and a limit to draw across it (0 for none)."""

    label: str
    result: str
    segments: tuple[Segment, ...]
    limit: float = 0


def stacked(bars: Sequence[Bar], unit: str, scale: float, width: float) -> Scene:
    """All bars on one axis in ``unit``, of which one is ``scale`` of the segments' values."""
    most = max(max(sum(part.value for part in bar.segments), bar.limit) for bar in bars) or 1
    per_pixel = most / width
    marks = [*_legend(bars, width)]
    for number, bar in enumerate(bars):
        marks += _row(bar, TOP + ROW * number, per_pixel, unit, scale, width)
    bottom = TOP + ROW * len(bars)
    marks += _axis(bottom, most, unit, scale, width)
    return Scene(width, bottom + FOOT, tuple(marks))


def _legend(bars: Sequence[Bar], width: float) -> Iterator[Mark]:
    used = {part.name for bar in bars for part in bar.segments if part.value}
    kinds = {part.name: part for bar in bars for part in bar.segments}
    left = 0.0
    for part in (part for name, part in kinds.items() if name in used):
        yield Rect(
            left, 3, 14, 12, part.role, "line" if part.role in ("", "faint") else part.role, 1, part.hatch, part.dash
        )
        yield Text(left + 20, 13, part.name, 11, "muted")
        left += 20 + text_width(part.name, 11) + 22


def _row(bar: Bar, top: float, per_pixel: float, unit: str, scale: float, width: float) -> Iterator[Mark]:
    room = width - text_width(bar.result, 12) * 1.08 - 16
    yield Text(0, top + 15, fit(bar.label, room, 12), 12, tip=bar.label)
    yield Text(width, top + 15, bar.result, 12, "muted", anchor="end")
    left, y = 0.0, top + 22
    for part in bar.segments:
        length = part.value / per_pixel
        if length:
            tip = f"{bar.label}: {part.name} {figure(part.value / scale)} {unit}"
            edge = "muted" if part.role in ("", "faint") else part.role
            yield Rect(left, y, length, BAR, part.role, edge, 1, part.hatch, part.dash, tip=tip)
            yield from _inside(part, left, y, length, unit, scale)
            left += length
    if bar.limit:
        x = min(bar.limit / per_pixel, width - 1)
        yield Line(((x, y - 4), (x, y + BAR + 4)), "alarm" if left > x + 1 else "ink", 2, tip="all there is")


def _inside(part: Segment, left: float, y: float, length: float, unit: str, scale: float) -> Iterator[Mark]:
    words = f"{figure(part.value / scale)} {unit}"
    if text_width(words, 11) + 10 <= length and not part.hatch:
        on = part.role if part.role not in ("", "faint") else ""
        yield Text(left + length / 2, y + BAR / 2 + 4, words, 11, "ink", on, anchor="middle")


def _axis(y: float, most: float, unit: str, scale: float, width: float) -> Iterator[Mark]:
    step = nice_step(most / scale, 8)
    yield Line(((0, y + 4), (width, y + 4)), "line")
    for number in range(math.floor(most / scale / step + 1e-9) + 1):
        value = number * step
        x = value * scale / most * width
        if width - x < 46 and x < width - 1:
            continue  # the unit stands there
        anchor = "start" if number == 0 else "end" if x > width - 20 else "middle"
        yield Line(((x, y + 4), (x, y + 9)), "line")
        yield Text(x, y + 22, f"{value:,.10g}", 10.5, "muted", anchor=anchor)
    yield Text(width, y + 22, unit, 10.5, "muted", anchor="end")


def nice_step(most: float, ticks: int) -> float:
    """The smallest of 1, 2, 5 times a power of ten that divides ``most`` into at most ``ticks`` steps."""
    power = 10.0 ** math.floor(math.log10(most / ticks))
    return next(digit * power for digit in (1, 2, 5, 10) if most / (digit * power) <= ticks)


def figure(value: float) -> str:
    """Three significant digits, plain: 0.0123, 4.56, 141, 1,340."""
    if value == 0:
        return "0"
    digits = max(0, 2 - math.floor(math.log10(abs(value))))
    return f"{value:,.{digits}f}"
