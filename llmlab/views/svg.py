"""A scene as SVG made of attributes only: no style, class, id, script, link or image.

GitHub, nbviewer and JupyterLab put such a picture into the page as it is, and nothing of the page reaches into it. The
tree is built and serialised by the standard library, which escapes all text.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from xml.etree.ElementTree import Element, SubElement, tostring

import numpy as np

from llmlab.views.glyphs import fit, visible, wrap
from llmlab.views.palette import blend, readable_on, theme
from llmlab.views.scene import Grid, Line, Mark, Rect, Scene, Text

SANS = "system-ui, -apple-system, Segoe UI, Helvetica, Arial, sans-serif"
MONO = "ui-monospace, SFMono-Regular, Menlo, Consolas, monospace"
LEVELS = 24  # shades of a grid: cells of one shade are one path, which keeps a matrix small
MARGIN, HEADER, NOTE = 14, 34, 17
BOLD = 0.88  # bold letters are wider


def draw(scene: Scene, title: str, alt: str, notes: tuple[str, ...] = (), name: str = "light") -> str:
    """The picture with its title above and its notes below, on the theme's panel."""
    colours, lines = theme(name), [line for note in notes for line in wrap(note, scene.width, 11)]
    width, height = scene.width + 2 * MARGIN, HEADER + scene.height + NOTE * len(lines) + MARGIN
    root = Element("svg", _sizes(width, height) | {"role": "img", "aria-label": visible(alt)})
    SubElement(root, "title").text = visible(alt)
    _frame(root, width, height, colours)
    _write(root, Text(MARGIN, 22, fit(title, scene.width * BOLD, 14), size=14, bold=True), colours)
    content = SubElement(root, "g", {"transform": f"translate({MARGIN} {HEADER})"})
    for mark in scene.marks:
        _mark(content, mark, colours)
    for i, line in enumerate(lines):
        _write(root, Text(MARGIN, HEADER + scene.height + NOTE * (i + 1) - 3, line, 11, "muted"), colours)
    return tostring(root, encoding="unicode")


def _sizes(width: float, height: float) -> dict[str, str]:
    return {
        "xmlns": "http://www.w3.org/2000/svg",
        "width": _n(width),
        "height": _n(height),
        "viewBox": f"0 0 {_n(width)} {_n(height)}",
        "font-family": SANS,
    }


def _frame(root: Element, width: float, height: float, colours: Mapping[str, str]) -> None:
    box = {"x": "0.5", "y": "0.5", "width": _n(width - 1), "height": _n(height - 1), "rx": "6"}
    SubElement(root, "rect", box | {"fill": colours["panel"], "stroke": colours["line"]})


def _mark(parent: Element, mark: Mark, colours: Mapping[str, str]) -> None:
    match mark:
        case Rect():
            _rect(parent, mark, colours)
        case Text():
            _write(parent, mark, colours)
        case Line():
            _line(parent, mark, colours)
        case Grid():
            _grid(parent, mark, colours)


def _rect(parent: Element, mark: Rect, colours: Mapping[str, str]) -> None:
    inset = mark.width / 2 if mark.stroke else 0
    box = {
        "x": _n(mark.x + inset),
        "y": _n(mark.y + inset),
        "width": _n(max(mark.w - 2 * inset, 0.4)),
        "height": _n(max(mark.h - 2 * inset, 0.4)),
        "fill": colours[mark.fill] if mark.fill else "none",
    }
    if mark.stroke:
        box |= {"stroke": colours[mark.stroke], "stroke-width": _n(mark.width)}
    if mark.dash:
        box["stroke-dasharray"] = "3 2"
    if mark.opacity != 1:
        box["opacity"] = _n(mark.opacity)
    _tip(SubElement(parent, "rect", box), mark.tip)
    if mark.hatch:
        ink = readable_on(colours[mark.fill]) if mark.fill else colours["muted"]
        ends = {"x1": _n(mark.x), "y1": _n(mark.y + mark.h), "x2": _n(mark.x + mark.w), "y2": _n(mark.y)}
        SubElement(parent, "line", ends | {"stroke": ink, "stroke-width": "1"})


def _write(parent: Element, mark: Text, colours: Mapping[str, str]) -> None:
    attributes = {"x": _n(mark.x), "y": _n(mark.y), "font-size": _n(mark.size)}
    attributes["fill"] = readable_on(colours[mark.on]) if mark.on else colours[mark.fill]
    if mark.anchor != "start":
        attributes["text-anchor"] = mark.anchor
    if mark.mono:
        attributes["font-family"] = MONO
    if mark.bold:
        attributes["font-weight"] = "600"
    written = SubElement(parent, "text", attributes)
    written.text = visible(mark.text)
    _tip(written, mark.tip)


def _line(parent: Element, mark: Line, colours: Mapping[str, str]) -> None:
    points = " ".join(f"{_n(x)},{_n(y)}" for x, y in mark.points)
    attributes = {"points": points, "fill": "none", "stroke": colours[mark.stroke], "stroke-width": _n(mark.width)}
    if mark.dash:
        attributes["stroke-dasharray"] = "4 3"
    _tip(SubElement(parent, "polyline", attributes), mark.tip)


def _grid(parent: Element, mark: Grid, colours: Mapping[str, str]) -> None:
    for level, path in _paths(mark):
        shade = blend(colours["panel"], colours[mark.hue], level / (LEVELS - 1))
        SubElement(parent, "path", {"d": path, "stroke": shade, "stroke-width": _n(mark.cell_h)})


def _paths(mark: Grid) -> Iterator[tuple[int, str]]:
    """A path per shade; neighbours of one shade in a row are one stroke, as thick as the row is high."""
    values = np.asarray(mark.values, dtype=float)
    levels = np.where(np.isnan(values), -1, np.rint(np.nan_to_num(values).clip(0, 1) * (LEVELS - 1))).astype(int)
    strokes: dict[int, list[str]] = {}
    for row, line in enumerate(levels):
        starts = np.flatnonzero(np.diff(line, prepend=-2))
        for start, end in zip(starts, [*starts[1:], len(line)], strict=True):
            if line[start] >= 0:
                x, y = mark.x + start * mark.cell_w, mark.y + (row + 0.5) * mark.cell_h
                stroke = f"M{_n(x)} {_n(y)}h{_n((end - start) * mark.cell_w)}"
                strokes.setdefault(int(line[start]), []).append(stroke)
    return ((level, "".join(parts)) for level, parts in sorted(strokes.items()))


def _tip(element: Element, tip: str) -> None:
    if tip:
        SubElement(element, "title").text = visible(tip)


def _n(number: float) -> str:
    """A number with at most one decimal."""
    return f"{number:.1f}".rstrip("0").rstrip(".") if number % 1 else str(int(number))
