"""What is asked of a picture whatever it shows: inside its frame, readable, nothing over another label."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from xml.etree import ElementTree

import numpy as np

from llmlab.views.glyphs import text_width, visible
from llmlab.views.palette import THEMES, blend, contrast, readable_on
from llmlab.views.scene import Grid, Line, Mark, Rect, Scene, Text

SLACK = 3  # pixels: widths of text are estimates
TAGS = {"svg", "title", "g", "rect", "text", "line", "polyline", "path"}


@dataclass(frozen=True)
class Box:
    left: float
    top: float
    right: float
    bottom: float

    def holds(self, x: float, y: float) -> bool:
        return self.left <= x <= self.right and self.top <= y <= self.bottom


def box_of(mark: Mark) -> Box:
    match mark:
        case Rect():
            return Box(mark.x, mark.y, mark.x + mark.w, mark.y + mark.h)
        case Line():
            x, y = zip(*mark.points, strict=True)
            return Box(min(x), min(y), max(x), max(y))
        case Grid():
            rows, columns = np.shape(mark.values)
            return Box(mark.x, mark.y, mark.x + columns * mark.cell_w, mark.y + rows * mark.cell_h)
        case Text():
            w = text_width(visible(mark.text), mark.size, mark.mono)
            left = mark.x - {"start": 0, "middle": w / 2, "end": w}[mark.anchor]
            return Box(left, mark.y - mark.size * 0.72, left + w, mark.y + mark.size * 0.1)


def outside(scene: Scene) -> list[Mark]:
    """Marks that leave the picture."""
    boxes = [(mark, box_of(mark)) for mark in scene.marks]
    return [
        mark
        for mark, box in boxes
        if min(box.left, box.top) < -SLACK or box.right > scene.width + SLACK or box.bottom > scene.height + SLACK
    ]


def overlapping(scene: Scene) -> list[tuple[str, str]]:
    """Pairs of labels that lie on each other."""
    texts = sorted(((box_of(m), m.text) for m in scene.marks if isinstance(m, Text) and m.text), key=lambda t: t[0].top)
    found = []
    for i, (box, text) in enumerate(texts):
        for other, words in texts[i + 1 :]:
            if other.top >= box.bottom - 1:
                break
            shared = min(box.right, other.right) - max(box.left, other.left)
            if shared > SLACK + 0.05 * min(box.right - box.left, other.right - other.left):
                found.append((text, words))
    return found


def least_contrast(scene: Scene, theme: str) -> tuple[float, str]:
    """The hardest label to read: its contrast with what is drawn beneath it, and its text."""
    below: list[tuple[Box, Mark]] = []
    worst = (21.0, "")
    for mark in scene.marks:
        if isinstance(mark, Rect | Grid):
            below.append((box_of(mark), mark))
        elif isinstance(mark, Text) and mark.text.strip():
            colours = THEMES[theme]
            ink = readable_on(colours[mark.on]) if mark.on else colours[mark.fill]
            worst = min(worst, *((contrast(ink, under), mark.text) for under in _under(mark, below, theme)))
    return worst


def _under(mark: Text, below: list[tuple[Box, Mark]], theme: str) -> Iterator[str]:
    """The colours under a label's beginning, middle and end."""
    box = box_of(mark)
    y = (box.top + box.bottom) / 2
    for share in (0.1, 0.5, 0.9):
        x, colour = box.left + (box.right - box.left) * share, THEMES[theme]["panel"]
        for area, under in below:
            if area.holds(x, y):
                colour = _painted(under, x, y, colour, theme)
        yield colour


def _painted(mark: Mark, x: float, y: float, colour: str, theme: str) -> str:
    colours = THEMES[theme]
    if isinstance(mark, Rect):
        return blend(colour, colours[mark.fill], mark.opacity) if mark.fill else colour
    rows, columns = np.shape(mark.values)
    value = np.asarray(mark.values, dtype=float)[
        min(int((y - mark.y) / mark.cell_h), rows - 1), min(int((x - mark.x) / mark.cell_w), columns - 1)
    ]
    return colour if np.isnan(value) else blend(colours["panel"], colours[mark.hue], float(np.clip(value, 0, 1)))


def unsafe(svg: str) -> list[str]:
    """Elements and attributes that a page may strip, or that may do something in it."""
    root = ElementTree.fromstring(svg)
    found = []
    for element in root.iter():
        tag = element.tag.removeprefix("{http://www.w3.org/2000/svg}")
        found += [] if tag in TAGS else [tag]
        found += [
            f"{tag} {name}"
            for name in element.attrib
            if name in ("style", "class", "id") or name.startswith("on") or "href" in name
        ]
    return found
