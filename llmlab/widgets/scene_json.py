"""A view as compressed JSON for the canvas: lists of numbers, colours by role, text that cannot do anything.

The layout, which ``static/scene.js`` reads: ``marks`` are lists that begin with a letter. Default values at the end
of a list are left out; a key is a place in ``keys``, plus one, and 0 for none.

- ``r``: x, y, w, h, fill, stroke, width, flags (1 hatch, 2 dash), opacity, tip, key
- ``t``: x, y, text, size, fill, on, anchor (0 start, 1 middle, 2 end), flags (1 mono, 2 bold), tip, key
- ``l``: [x, y, x, y, ...], stroke, width, flags (2 dash), tip, key
- ``g``: x, y, cell_w, cell_h, rows, columns, base64 of one byte per cell (0..254, 255 for nothing), hue, row keys,
  column keys, row labels, column labels
"""

from __future__ import annotations

import base64
import json
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from llmlab.views.glyphs import visible
from llmlab.views.palette import THEMES, readable_on
from llmlab.views.scene import MAX_MARKS, Grid, Key, Line, Mark, Rect, Text
from llmlab.views.view import View

MAX_BYTES = 400_000  # of JSON before compression; a usual scene has a tenth of it
TEXT, TIP = 200, 240  # characters
NOTHING = 255  # a grid's cell without a value
# what is left out at the end of a mark
_RECT: tuple[Any, ...] = ("", "", 1, 0, 1, "", 0)
_TEXT: tuple[Any, ...] = (12, "ink", "", 0, 0, "", 0)
_LINE: tuple[Any, ...] = ("line", 1, 0, "", 0)
ANCHORS = {"start": 0, "middle": 1, "end": 2}


def encode(view: View) -> bytes:
    """``view`` as zlib-compressed JSON. The same view gives the same bytes.

    A scene that is too large loses its tips first, then its later marks, and says so in a note.
    """
    for tip in (TIP, 60, 0):
        text = _dumps(to_json(view, tip))
        if len(text) <= MAX_BYTES:
            break
    else:
        text = _dumps(_cut(view))
    return zlib.compress(text.encode("utf-8", "backslashreplace"), 1)


def to_json(view: View, tip: int = TIP) -> dict[str, Any]:
    """The scene as lists and numbers; tips have at most ``tip`` characters."""
    writer = _Writer(tip)
    marks = [writer.mark(mark) for mark in view.scene.marks[:MAX_MARKS]]
    return {
        "name": view.name,
        "title": said(view.title, TEXT),
        "alt": said(view.alt, 1_000),
        "notes": [said(note, TEXT * 2) for note in view.notes[:8]],
        "simulated": view.simulated,
        "w": _n(view.scene.width),
        "h": _n(view.scene.height),
        "keys": writer.table,
        "marks": marks,
    }


def palette_json() -> dict[str, Any]:
    """Both themes: the colour of each role, and what reads on it."""
    return {
        name: {"colours": dict(colours), "on": {role: readable_on(c) for role, c in colours.items()}}
        for name, colours in THEMES.items()
    }


def said(text: str, limit: int) -> str:
    """:func:`~llmlab.views.glyphs.visible`; text that is harmless as it is, nearly all of it, is not gone through."""
    return text if len(text) <= limit and text.isprintable() else visible(text, limit=limit)


def _cut(view: View) -> dict[str, Any]:
    """As many marks as fit, in order."""
    scene, size, kept = to_json(view, 0), 20_000, []
    for mark in scene["marks"]:
        size += len(_dumps(mark)) + 1
        if size > MAX_BYTES // 2:
            break
        kept.append(mark)
    lost = len(view.scene.marks) - len(kept)
    scene["notes"] = [*scene["notes"][:7], f"{lost} marks are not drawn here: they would be too much for a live page"]
    used = {mark[-1] for mark in kept if mark and type(mark[-1]) is int}
    scene["keys"] = scene["keys"][: max(used, default=0)]
    return scene | {"marks": kept}


def _dumps(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)


@dataclass(slots=True)
class _Writer:
    """Marks as lists; ``table`` is filled with the keys that occur."""

    tip: int
    table: list[dict[str, Any]] = field(default_factory=list)
    places: dict[tuple, int] = field(default_factory=dict)

    def mark(self, mark: Mark) -> list[Any]:
        match mark:
            case Rect():
                flags = mark.hatch + 2 * mark.dash
                width = 1 if mark.width == 1 else _n(mark.width)
                opacity = 1 if mark.opacity == 1 else _n(mark.opacity, 2)
                tail = (mark.fill, mark.stroke, width, flags, opacity, self.said(mark.tip), self.key(mark.key))
                return ["r", *_box(mark), *_trimmed(tail, _RECT)]
            case Text():
                anchor, flags = ANCHORS[mark.anchor], mark.mono + 2 * mark.bold
                tail = (_n(mark.size), mark.fill, mark.on, anchor, flags, self.said(mark.tip), self.key(mark.key))
                place = (_n(mark.x), _n(mark.y), said(mark.text, TEXT))
                return ["t", *place, *_trimmed(tail, _TEXT)]
            case Line():
                points = [_n(number) for point in mark.points for number in point]
                tail = (mark.stroke, _n(mark.width), 2 * mark.dash, self.said(mark.tip), self.key(mark.key))
                return ["l", points, *_trimmed(tail, _LINE)]
            case Grid():
                return self.grid(mark)

    def grid(self, mark: Grid) -> list[Any]:
        values = np.atleast_2d(np.asarray(mark.values, dtype=float))
        cells = np.where(np.isnan(values), NOTHING, np.rint(np.nan_to_num(values).clip(0, 1) * (NOTHING - 1)))
        packed = base64.b64encode(cells.astype(np.uint8).tobytes()).decode("ascii")
        keys = [[self.key(key) for key in keys] for keys in (mark.row_keys, mark.column_keys)]
        labels = [[self.said(label) for label in labels] for labels in (mark.row_labels, mark.column_labels)]
        place = (_n(mark.x), _n(mark.y), _n(mark.cell_w, 3), _n(mark.cell_h, 3))
        return ["g", *place, *values.shape, packed, mark.hue, *keys, *labels]

    def said(self, tip: str) -> str:
        return said(tip, self.tip) if tip and self.tip else ""

    def key(self, key: Key) -> int:
        if not key:
            return 0
        items = tuple(key.items())
        if (place := self.places.get(items)) is None:
            self.table.append(_plain(key))
            place = self.places[items] = len(self.table)
        return place


def _plain(key: Mapping[str, Any]) -> dict[str, Any]:
    """Numpy's integers are no JSON."""
    return {name: value if isinstance(value, str) else int(value) for name, value in key.items()}


def _box(mark: Rect) -> tuple[float, ...]:
    return _n(mark.x), _n(mark.y), _n(mark.w), _n(mark.h)


def _trimmed(values: Sequence[Any], defaults: Sequence[Any]) -> Sequence[Any]:
    end = len(values)
    while end and values[end - 1] == defaults[end - 1]:
        end -= 1
    return values[:end]


def _n(number: float, digits: int = 1) -> float:
    if type(number) is int:
        return number
    rounded = round(float(number), digits)
    whole = int(rounded)
    return whole if whole == rounded else rounded
