"""A few weights of one output channel before and after rounding: which levels there are, and how far each one moved."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pandas as pd

from llmlab.errors import InvalidParameter
from llmlab.views.glyphs import text_width
from llmlab.views.scene import Line, Mark, Rect, Scene, Text
from llmlab.views.view import View

LEVELS, MIDDLE = 16, 8
LEFT, TOP, HEIGHT, GAP = 58, 34, 250, 16
MAX_WEIGHTS = 160


@dataclass(frozen=True, slots=True)
class _Group:
    """Weights that share a scale and a zero."""

    number: int
    original: np.ndarray
    rounded: np.ndarray
    scale: float
    zero: float

    @property
    def levels(self) -> np.ndarray:
        return (np.arange(LEVELS) - MIDDLE) * self.scale + self.zero

    @property
    def used(self) -> int:
        return len(np.unique(self.rounded))

    @property
    def error(self) -> float:
        """Mean absolute error."""
        return float(np.abs(self.rounded - self.original).mean())


def rounding(original, codes, scales, zeros, *, what: str = "one output channel", width: float = 900) -> View:
    """Four-bit weights beside what they were: ``original`` and ``codes`` ``(n,)``, ``scales`` and ``zeros`` one for
    each of the equal groups that ``n`` is divided into.

    A weight is ``(code - 8) x scale + zero``. Anything numpy can read is taken. Raises ``InvalidParameter`` for shapes
    that do not go together, or more than 160 weights.
    """
    groups = _groups(*(np.asarray(values, dtype=np.float64) for values in (original, codes, scales, zeros)))
    count = sum(len(group.original) for group in groups)
    lines = [_line(group) for group in groups]
    alt = (
        f"{count} weights of {what} in {len(groups)} groups: each moved to the nearest of its group's {LEVELS} levels."
    )
    note = "Blue squares are the weights, orange bars what they are rounded to, faint lines the levels of the group."
    return View(
        "rounding", f"four bits a weight: {what}", alt, "\n".join([alt, *lines]), _scene(groups, width), _frame(groups),
        (note,),
    )  # fmt: skip


def _groups(original: np.ndarray, codes: np.ndarray, scales: np.ndarray, zeros: np.ndarray) -> list[_Group]:
    count = len(scales)
    if original.ndim != 1 or codes.shape != original.shape or zeros.shape != scales.shape or scales.ndim != 1:
        raise InvalidParameter("give original and codes of one length, and scales and zeros of one length")
    if not count or not 1 <= len(original) <= MAX_WEIGHTS or len(original) % count:
        raise InvalidParameter(f"{len(original)} weights in {count} groups: give 1 to {MAX_WEIGHTS} in equal groups")
    parts = zip(np.split(original, count), np.split(codes, count), scales, zeros, strict=True)
    return [
        _Group(i, part, (code - MIDDLE) * scale + zero, float(scale), float(zero))
        for i, (part, code, scale, zero) in enumerate(parts)
    ]


def _line(group: _Group) -> str:
    low, high = group.original.min(), group.original.max()
    return (
        f"group {group.number}: from {low:.3f} to {high:.3f}, {group.scale:.4f} between levels, "
        f"{group.used} of {LEVELS} levels used, mean error {group.error:.4f}"
    )


def _frame(groups: list[_Group]) -> pd.DataFrame:
    parts = [
        pd.DataFrame({"group": group.number, "weight": group.original, "rounded": group.rounded}) for group in groups
    ]
    frame = pd.concat(parts, ignore_index=True).rename_axis("input feature")
    return frame.assign(error=frame.rounded - frame.weight)


def _scene(groups: list[_Group], width: float) -> Scene:
    values = np.concatenate([np.concatenate((group.original, group.levels)) for group in groups])
    low, high = values.min(), values.max()
    scale = HEIGHT / ((high - low) or 1)

    def y(value: float) -> float:
        return TOP + (high - value) * scale

    room = (width - LEFT - GAP * (len(groups) - 1)) / len(groups)
    marks = [*_axis(low, high, y, width)]
    for group in groups:
        marks += _group(group, LEFT + group.number * (room + GAP), room, y)
    return Scene(width, TOP + HEIGHT + 12, tuple(marks))


def _axis(low: float, high: float, y, width: float) -> Iterator[Mark]:
    for value in (low, high):
        yield Text(LEFT - 8, y(value) + 4, f"{value:.2f}", 11, "muted", anchor="end")
    if low < 0 < high:
        yield Text(LEFT - 8, y(0) + 4, "0", 11, "muted", anchor="end")
        yield Line(((LEFT, y(0)), (width, y(0))), "line", dash=True)


def _group(group: _Group, left: float, room: float, y) -> Iterator[Mark]:
    tip = _line(group)
    name, used = f"group {group.number}", f"{group.used} of {LEVELS} levels used"
    yield Text(left, 14, name, 11, bold=True, tip=tip)
    if text_width(name, 11) + text_width(used, 11) + 16 < room:
        yield Text(left + room, 14, used, 11, "muted", anchor="end", tip=tip)
    for level in group.levels:
        yield Line(((left, y(level)), (left + room, y(level))), "faint")
    pitch = room / len(group.original)
    for i, (before, after) in enumerate(zip(group.original, group.rounded, strict=True)):
        x = left + (i + 0.5) * pitch
        about = f"weight {before:.4f}, rounded to {after:.4f}"
        yield Line(((x, y(before)), (x, y(after))), "muted")
        yield Rect(x - min(4, pitch / 2.5), y(after) - 1.5, 2 * min(4, pitch / 2.5), 3, "c1", tip=about)
        yield Rect(x - 2, y(before) - 2, 4, 4, "c0", tip=about)
