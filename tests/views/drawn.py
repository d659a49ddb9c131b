"""What every picture must keep to."""

from __future__ import annotations

from itertools import combinations

from llmlab.views.glyphs import text_width
from llmlab.views.scene import MAX_MARKS, Grid, Line, Rect, Text
from llmlab.views.view import View

SLACK = 6.0  # the width of a text is an estimate


def boxes_of(view: View) -> list[tuple[object, tuple[float, float, float, float]]]:
    """Every mark with its left, top, right and bottom."""
    return [(mark, _box(mark)) for mark in view.scene.marks]


def _box(mark: object) -> tuple[float, float, float, float]:
    match mark:
        case Rect():
            return mark.x, mark.y, mark.x + mark.w, mark.y + mark.h
        case Text():
            wide = text_width(mark.text, mark.size, mark.mono)
            left = mark.x - {"start": 0, "middle": wide / 2, "end": wide}[mark.anchor]
            return left, mark.y - 0.75 * mark.size, left + wide, mark.y + 0.2 * mark.size
        case Line():
            xs, ys = zip(*mark.points, strict=True)
            return min(xs), min(ys), max(xs), max(ys)
        case Grid():
            rows, columns = mark.values.shape
            return mark.x, mark.y, mark.x + columns * mark.cell_w, mark.y + rows * mark.cell_h
    raise TypeError(mark)


def faults(view: View) -> list[str]:
    """Marks outside the picture, too many of them, texts too small or on one another."""
    width, height = view.scene.width, view.scene.height
    found = [f"{len(view.scene.marks)} marks"] if len(view.scene.marks) > MAX_MARKS else []
    for mark, (left, top, right, bottom) in boxes_of(view):
        if left < -SLACK or top < -1 or right > width + SLACK or bottom > height + 1:
            found.append(f"outside of {width} x {height}: {mark}")
        if isinstance(mark, Text) and mark.size < 10:
            found.append(f"too small: {mark}")
    texts = [(mark.text, box) for mark, box in boxes_of(view) if isinstance(mark, Text)][:400]
    found += [
        f"on one another: {a!r}, {b!r}" for (a, one), (b, other) in combinations(texts, 2) if _overlap(one, other)
    ]
    return found


def _overlap(one: tuple[float, ...], other: tuple[float, ...]) -> bool:
    wide = min(one[2], other[2]) - max(one[0], other[0])
    high = min(one[3], other[3]) - max(one[1], other[1])
    return wide > SLACK and high > 1.5
