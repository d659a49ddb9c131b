"""What a view draws, before anything is drawn: marks in pixels, with colours by role.

The SVG of a still and the canvas of a live panel are both drawn from a scene, so they show the same. The origin is
the top left corner of the picture's content; title, notes and frame are added by whoever draws.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

# What a mark stands for, as the shared selection names it: request, step, position, layer, head, block, wire.
Key = Mapping[str, int | str]

MAX_MARKS = 6_000  # more are neither seen nor drawn in time: a view pools what is long and says so in its notes


@dataclass(frozen=True, slots=True)
class Rect:
    """A box. ``fill`` and ``stroke`` are roles of the palette, empty for none; ``hatch`` strikes it through from
    corner to corner and ``dash`` breaks its outline: the channels besides colour. ``tip`` is shown on hover."""

    x: float
    y: float
    w: float
    h: float
    fill: str = ""
    stroke: str = ""
    width: float = 1
    hatch: bool = False
    dash: bool = False
    opacity: float = 1
    tip: str = ""
    key: Key = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Text:
    """A line of text with its baseline at ``y``; ``anchor`` is ``start``, ``middle`` or ``end``.

    ``fill`` is one of ``palette.TEXT_ROLES``; on a filled box name the box's role in ``on`` instead, and black or white
    is chosen so that it reads. ``text`` may be anything: whoever draws shows controls and odd spaces as glyphs.
    """

    x: float
    y: float
    text: str
    size: float = 12
    fill: str = "ink"
    on: str = ""
    anchor: str = "start"
    mono: bool = False
    bold: bool = False
    tip: str = ""
    key: Key = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Line:
    """A line through ``points`` (x, y)."""

    points: tuple[tuple[float, float], ...]
    stroke: str = "line"
    width: float = 1
    dash: bool = False
    tip: str = ""
    key: Key = field(default_factory=dict)


@dataclass(frozen=True, slots=True, eq=False)
class Grid:
    """A matrix of shares: ``values`` (rows, columns) from 0 (the panel's colour) to 1 (``hue``), NaN where there is
    nothing (left empty). ``row_keys`` and ``column_keys`` (as many as rows, columns, or none) join to a cell's key;
    ``row_labels`` and ``column_labels`` to its tip."""

    x: float
    y: float
    cell_w: float
    cell_h: float
    values: np.ndarray
    hue: str = "mark"
    row_keys: tuple[Key, ...] = ()
    column_keys: tuple[Key, ...] = ()
    row_labels: tuple[str, ...] = ()
    column_labels: tuple[str, ...] = ()


Mark = Rect | Text | Line | Grid


@dataclass(frozen=True, slots=True)
class Scene:
    """A picture of ``width`` x ``height`` pixels; later marks lie on earlier ones."""

    width: float
    height: float
    marks: tuple[Mark, ...]
