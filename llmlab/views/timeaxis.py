"""One horizontal axis of time, and how durations are written."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from llmlab.views.glyphs import text_width
from llmlab.views.scene import Line, Mark, Rect, Text

SCALES = ((1e9, "s"), (1e6, "ms"), (1e3, "µs"))
BREAK_WIDTH = 16
TICK_SIZE = 10.5


def duration(ns: float) -> str:
    """Nanoseconds with three digits and the unit that suits them: ``12.3 ms``."""
    scale, unit = next((pair for pair in SCALES if abs(ns) >= pair[0] * 0.9995), SCALES[-1])
    value = ns / scale
    digits = 0 if abs(value) >= 99.95 else 1 if abs(value) >= 9.995 else 2
    return f"{value:,.{digits}f} {unit}"


@dataclass(frozen=True)
class TimeAxis:
    """Nanoseconds from ``start`` to ``end`` on pixels from ``x`` to ``x + width``.

    The stretches in ``breaks`` (ascending, apart) are as narrow as ``BREAK_WIDTH`` each; the rest is to scale.
    """

    start: int
    end: int
    x: float
    width: float
    breaks: tuple[tuple[int, int], ...] = ()

    def at(self, t_ns: int) -> float:
        """The pixel of a moment; what lies outside is at the nearest end."""
        times, pixels = self._scale
        # differences to the start are exact as floats, nanoseconds since boot are not
        t = min(max(int(t_ns) - self.start, 0), times[-1])
        i = bisect_right(times, t, hi=len(times) - 1) - 1
        return pixels[i] + (pixels[i + 1] - pixels[i]) * (t - times[i]) / (times[i + 1] - times[i])

    def of(self, t_ns: np.ndarray | Sequence[int]) -> np.ndarray:
        """:meth:`at` of many moments."""
        return np.interp(np.asarray(t_ns, dtype=np.int64) - self.start, *self._scale)

    @cached_property
    def _scale(self) -> tuple[list[int], list[float]]:
        """Moments since the start and their pixels, between which it is linear; moments all differ."""
        per_ns = max(self.width - BREAK_WIDTH * len(self.breaks), 1) / self._shown
        times, pixels = [0], [self.x]
        for begin, end in self.breaks:
            pixels += [pixels[-1] + (begin - self.start - times[-1]) * per_ns]
            pixels += [pixels[-1] + BREAK_WIDTH]
            times += [begin - self.start, end - self.start]
        return [*times, max(self.end - self.start, times[-1] + 1)], [*pixels, self.x + self.width]

    @property
    def _shown(self) -> int:
        return max(self.end - self.start - sum(b - a for a, b in self.breaks), 1)

    def marks(self, top: float, bottom: float) -> Iterator[Mark]:
        """Ticks with their labels above ``top`` and quiet lines down to ``bottom``, then the breaks."""
        last = -math.inf
        for t_ns, label in self._ticks():
            x = self.at(self.start + t_ns)
            half = text_width(label, TICK_SIZE) / 2
            broken = any(a < self.start + t_ns < b for a, b in self.breaks)
            if not broken and x - half > last + 6 and x + half <= self.x + self.width + half:
                last = x + half
                yield Line(((x, top), (x, bottom)), "line", 0.6)
                yield Text(x, top - 5, label, TICK_SIZE, "muted", anchor="middle")
        for begin, end in self.breaks:
            x = self.at(begin)
            yield Rect(x, top, BREAK_WIDTH, bottom - top, "faint", tip=f"nothing to do for {duration(end - begin)}")
            yield Text(x + BREAK_WIDTH / 2, top + 12, "⋯", 12, "muted", anchor="middle")

    def _ticks(self) -> Iterator[tuple[int, str]]:
        """Round moments (ns since the start) and their labels, all in one unit."""
        step = _round_up(self._shown / max(self.width / 90, 2))
        scale, unit = next((pair for pair in SCALES if step >= pair[0] / 10), SCALES[-1])
        count = int((self.end - self.start) / step)
        stride = max(count // 2_000, 1)  # long breaks hold many moments that are not drawn
        for i in range(0, count + 1, stride):
            yield round(i * step), f"{i * step / scale:,.10g} {unit}"


def _round_up(value: float) -> float:
    """The next 1, 2 or 5 times a power of ten."""
    power = 10.0 ** math.floor(math.log10(max(value, 1)))
    return next(power * m for m in (1, 2, 5, 10) if power * m >= value * (1 - 1e-9))


def quiet_stretches(busy: Sequence[tuple[int, int]], share: float = 0.06) -> tuple[tuple[int, int], ...]:
    """The holes between ``busy`` stretches (from, to; ns) that are longer than ``share`` of what is busy in all."""
    if not busy:
        return ()
    holes, total, reached = [], 0, min(start for start, _ in busy)
    for start, end in sorted(busy):
        if start > reached:
            holes.append((reached, start))
        total += max(end - max(start, reached), 0)
        reached = max(reached, end)
    return tuple(hole for hole in holes if hole[1] - hole[0] > max(total * share, 1))
