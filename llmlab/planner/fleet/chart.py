"""Curves over a common axis, as marks."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from llmlab.views.scene import Line, Mark, Rect, Text

LEFT, RIGHT, SMALL = 60.0, 70.0, 10.0


@dataclass(frozen=True, slots=True)
class Series:
    """One curve, its name written at its end."""

    name: str
    values: np.ndarray
    role: str


@dataclass(frozen=True, slots=True)
class Chart:
    """``logarithmic``: the vertical axis is one of powers of ten. ``top``: its upper end, ``None`` for the largest."""

    title: str
    unit: str
    across: str
    logarithmic: bool = False
    top: float | None = None

    def draw(self, xs: np.ndarray, series: Sequence[Series], y: float, height: float, width: float) -> Iterator[Mark]:
        """The chart from ``y`` downwards: 24 pixels of title, ``height`` of curves, 32 of labels."""
        values = np.concatenate([each.values for each in series])
        low, high = self._ends(values[np.isfinite(values)])
        bottom = y + 24 + height
        yield Text(0, y + 12, f"{self.title} ({self.unit})", 12, bold=True)

        def place(value: float) -> float:
            share = (self._scale(value) - self._scale(low)) / (self._scale(high) - self._scale(low))
            return bottom - share * height

        for tick in self._ticks(low, high):
            yield Line(((LEFT, place(tick)), (width - RIGHT, place(tick))), "line")
            yield Text(LEFT - 6, place(tick) + 4, f"{tick:,.10g}", SMALL, "muted", anchor="end")
        across = LEFT + (xs - xs.min()) / (np.ptp(xs) or 1.0) * (width - LEFT - RIGHT)
        for x, value in zip(across.tolist(), xs.tolist(), strict=True):
            yield Text(x, bottom + 14, f"{value:.3g}", SMALL, "muted", anchor="middle")
        yield Text(width - RIGHT, bottom + 28, self.across, SMALL, "muted", anchor="end")
        taken: list[float] = []
        for each in series:
            heights = [place(value) for value in each.values.tolist()]
            yield Line(tuple(zip(across.tolist(), heights, strict=True)), each.role, 2, tip=each.name)
            for x, h, at, value in zip(across.tolist(), heights, xs.tolist(), each.values.tolist(), strict=True):
                tip = f"{each.name}: {value:,.4g} {self.unit} at {at:.4g} {self.across}"
                yield Rect(x - 3, h - 3, 6, 6, each.role, tip=tip)
            label = heights[-1] + 4
            while any(abs(label - other) < 13 for other in taken):
                label += 13
            taken.append(label)
            yield Text(width - RIGHT + 10, label, each.name, 11)

    def _scale(self, value: float) -> float:
        return math.log10(max(value, 1e-9)) if self.logarithmic else value

    def _ends(self, values: np.ndarray) -> tuple[float, float]:
        if self.logarithmic:
            low, high = math.floor(self._scale(values.min())), math.ceil(self._scale(values.max()))
            return 10.0**low, 10.0 ** max(high, low + 1)
        return 0.0, self.top or float(values.max()) or 1.0

    def _ticks(self, low: float, high: float) -> list[float]:
        if self.logarithmic:
            return [10.0**power for power in range(round(math.log10(low)), round(math.log10(high)) + 1)]
        return [low, (low + high) / 2, high]
