"""The picture of an online softmax: tiles across, and down the lanes of score, correction, sum and distance."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from llmlab.views.glyphs import text_width
from llmlab.views.scene import Line, Mark, Rect, Scene, Text

GUTTER, GAP, TOP = 118, 26, 40
SCORES, CORRECTIONS, BARS = 116, 44, 70  # heights of the lanes
MAX_TILES, MAX_DOTS, MAX_STEPS = 80, 150, 400


class Tile(Protocol):
    """A step of :func:`llmlab.probes.online.online_softmax_walk`."""

    start: int
    end: int
    maximum: float
    total: float
    correction: float
    output: np.ndarray


@dataclass(frozen=True, slots=True, eq=False)
class Walk:
    """The steps, one entry each; ``distance`` is the length of output minus last output. ``scores`` may be missing;
    ``error`` is the largest difference from the whole row's output, ``None`` where it could not be compared."""

    tiles: tuple[Tile, ...]
    maximum: np.ndarray
    total: np.ndarray
    correction: np.ndarray
    distance: np.ndarray
    scores: np.ndarray | None
    error: float | None

    @property
    def num_keys(self) -> int:
        return self.tiles[-1].end

    @property
    def raised(self) -> list[int]:
        """Tiles that raised the maximum after the first one that had any."""
        before = np.concatenate(([-np.inf], self.maximum[:-1]))
        return [int(i) for i in np.flatnonzero((self.maximum > before) & (before > -np.inf))]


def keys_of(tile: Tile) -> str:
    """The keys of a tile: ``4-7``, or ``4``."""
    return str(tile.start) if tile.end - tile.start == 1 else f"{tile.start}-{tile.end - 1}"


@dataclass(frozen=True, slots=True, eq=False)
class _Plan:
    """Which tiles are drawn, and where: ``place`` is the width of a key, ``width`` that of the picture."""

    steps: Walk
    drawn: list[int]
    place: float
    width: float

    def left(self, i: int) -> float:
        """Where drawn tile number ``i`` begins."""
        return GUTTER + self.steps.tiles[self.drawn[i]].start * self.place

    def right(self, i: int) -> float:
        """Where it ends: at the next one drawn, for its numbers hold until then as far as the picture says."""
        return self.left(i + 1) if i + 1 < len(self.drawn) else self.width

    def tip(self, tile: int) -> str:
        """The numbers after a tile."""
        steps = self.steps
        return (
            f"keys {keys_of(steps.tiles[tile])}: maximum {steps.maximum[tile]:.4f}, correction "
            f"{steps.correction[tile]:.4g}, sum {steps.total[tile]:.4f}, distance {steps.distance[tile]:.3g}"
        )


def walk_scene(steps: Walk, exact: str, width: float) -> Scene:
    """``exact`` is the sentence about the last output, written below."""
    every = max(1, -(-len(steps.tiles) // MAX_TILES))
    drawn = sorted({*range(0, len(steps.tiles), every), len(steps.tiles) - 1})
    plan = _Plan(steps, drawn, (width - GUTTER) / steps.num_keys, width)
    corrections = TOP + SCORES + GAP
    sums = corrections + CORRECTIONS + GAP
    distances = sums + BARS + GAP
    bottom = distances + BARS
    marks = [
        *_axis(plan, bottom),
        *_scores(plan, TOP),
        *_corrections(plan, corrections),
        *_bars(plan, sums, steps.total, "running sum", "of exp(score - max)"),
        *_bars(plan, distances, steps.distance, "distance", "to the last output"),
        Text(GUTTER, bottom + 22, exact, 11, "muted" if steps.error is None else "ink"),
    ]
    return Scene(width, bottom + 32, tuple(marks))


def _axis(plan: _Plan, bottom: float) -> Iterator[Mark]:
    """Keys along the top, a quiet line where every tile begins."""
    yield Text(GUTTER - 10, 14, "tile of keys", 10, "muted", anchor="end")
    free = 0.0
    for i, tile in enumerate(plan.drawn):
        x, name = plan.left(i), keys_of(plan.steps.tiles[tile])
        size = text_width(name, 10)
        if plan.right(i) - x > 14 or i == 0:
            yield Line(((x, 20), (x, bottom)), "line")
        if x >= free and x + size + 4 <= plan.width:
            yield Text(x + 4, 14, name, 10, "muted")
            free = x + size + 14


def _name(y: float, height: float, *lines: str) -> Iterator[Mark]:
    middle = y + height / 2 - 6 * (len(lines) - 1)
    for i, line in enumerate(lines):
        yield Text(GUTTER - 10, middle + 12 * i, line, 10 if i else 11, "muted" if i else "ink", anchor="end")


def _scores(plan: _Plan, y: float) -> Iterator[Mark]:
    """Scores as dots, the running maximum as a line of steps above them."""
    steps = plan.steps
    finite = steps.maximum[np.isfinite(steps.maximum)]
    shown = finite if steps.scores is None else np.concatenate((finite, steps.scores[np.isfinite(steps.scores)]))
    low, high = (float(shown.min()), float(shown.max())) if shown.size else (0.0, 1.0)
    scale = (SCORES - 22) / ((high - low) or 1.0)
    yield from _name(y, SCORES, "score", "line: running max", *(["dots: keys"] if steps.scores is not None else []))
    if steps.scores is not None:
        yield from _dots(plan, y + 18, high, scale)
    levels = [(i, y + 18 + (high - steps.maximum[i]) * scale) for i in _changes(plan) if np.isfinite(steps.maximum[i])]
    if not levels:
        yield Text(GUTTER + 6, y + SCORES / 2, "no key is seen", 10, "muted")
        return
    points = [(GUTTER + steps.tiles[levels[0][0]].start * plan.place, levels[0][1])]
    for i, level in levels:
        x = GUTTER + steps.tiles[i].start * plan.place
        points += [(x, points[-1][1]), (x, level)]
    yield Line((*points[1:], (plan.width, points[-1][1])), "c5", 2, tip="running maximum")
    first, last = f"{finite[0]:.2f}", f"{steps.maximum[-1]:.2f}"
    yield Text(plan.width, points[-1][1] - 5, last, 10, anchor="end")
    end = points[3][0] if len(points) > 3 else plan.width - text_width(last, 10)
    if points[0][0] + text_width(first, 10) + 8 < end:
        yield Text(points[0][0] + 4, points[0][1] - 5, first, 10)


def _changes(plan: _Plan) -> list[int]:
    """The first tile and those that raised the maximum; only drawn ones where these are too many."""
    maximum = plan.steps.maximum
    changed = [i for i in range(len(maximum)) if i == 0 or maximum[i] > maximum[i - 1]]
    return changed if len(changed) <= MAX_STEPS else sorted({*plan.drawn} & {*changed})


def _dots(plan: _Plan, y: float, high: float, scale: float) -> Iterator[Mark]:
    """A dot per key, or the largest score of several neighbours."""
    every = max(1, -(-plan.steps.num_keys // MAX_DOTS))
    for key in range(0, plan.steps.num_keys, every):
        part = plan.steps.scores[key : key + every]
        place = key + int(part.argmax())
        score = float(part.max())
        if np.isfinite(score):
            x, at = GUTTER + (place + 0.5) * plan.place, y + (high - score) * scale
            yield Rect(x - 1.5, at - 1.5, 3, 3, "mark", tip=f"key {place}: score {score:.4f}")


def _corrections(plan: _Plan, y: float) -> Iterator[Mark]:
    """A box where a tile raised the maximum, with the factor; nothing where the sum stayed as it was."""
    steps, bottom = plan.steps, y + CORRECTIONS
    yield from _name(y, CORRECTIONS, "correction", "of the sum so far")
    yield Line(((GUTTER, bottom), (plan.width, bottom)), "line")
    raised = steps.raised if len(steps.raised) <= MAX_TILES else [i for i in plan.drawn if i in {*steps.raised}]
    free = 0.0
    for i in raised:
        x = GUTTER + steps.tiles[i].start * plan.place
        wide = (steps.tiles[i].end - steps.tiles[i].start) * plan.place
        yield Rect(x + 1, bottom - 18, max(wide - 2, 1), 18, "c1", tip=plan.tip(i))
        word = f"× {steps.correction[i]:.3g}"
        left = min(x + 2, plan.width - text_width(word, 10))
        if left >= free:
            yield Text(left, bottom - 23, word, 10, tip=plan.tip(i))
            free = left + text_width(word, 10) + 8


def _bars(plan: _Plan, y: float, numbers: np.ndarray, *name: str) -> Iterator[Mark]:
    """A bar per tile from 0 to the largest; numbers where a bar is as wide as its number, else on the highest."""
    yield from _name(y, BARS, *name)
    yield Line(((GUTTER, y + BARS), (plan.width, y + BARS)), "line")
    shown = numbers[plan.drawn]
    most, highest = float(shown.max()) or 1.0, int(shown.argmax())
    words = [f"{number:.3g}" for number in shown]
    sizes = [text_width(word, 10) for word in words]
    roomy = all(size + 4 <= plan.right(i) - plan.left(i) for i, size in enumerate(sizes[:-1]))
    for i, number in enumerate(shown):
        x, tall, tip = plan.left(i), (BARS - 14) * number / most, plan.tip(plan.drawn[i])
        yield Rect(x + 0.5, y + BARS - tall, max(plan.right(i) - x - 1, 0.8), tall, "mark", tip=tip)
        if i == highest or (roomy and x + sizes[i] + 2 <= plan.width):
            yield Text(min(x + 2, plan.width - sizes[i]), y + BARS - tall - 3, words[i], 10, tip=tip)
