"""What a stored notebook must keep to: sizes, outputs worth comparing, order of headings, described pictures."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from itertools import pairwise
from typing import TYPE_CHECKING
from xml.etree.ElementTree import ParseError, fromstring

from llmlab.labs.normalise import WIDGET_VIEW

if TYPE_CHECKING:
    from nbformat import NotebookNode

NOTEBOOK_BYTES, OUTPUT_BYTES = 300_000, 64_000
MIN_COMPARED = 8
SVG = "image/svg+xml"
UNCOMPARED = "nbval-ignore-output"
_HEADING = re.compile(r"(#{1,6}) \S")
_PICTURE = re.compile(r"!\[([^\]]*)\]\(")


def audit(notebook: NotebookNode) -> list[str]:
    """What is wrong, a sentence each; empty when nothing is."""
    return [*_sizes(notebook), *_outputs(notebook), *_headings(notebook), *_pictures(notebook)]


def _code(notebook: NotebookNode) -> list[NotebookNode]:
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def _sizes(notebook: NotebookNode) -> Iterator[str]:
    total = len(json.dumps(notebook, ensure_ascii=False).encode())
    if total > NOTEBOOK_BYTES:
        yield f"the notebook has {total:,} bytes, at most {NOTEBOOK_BYTES:,} are allowed"
    for cell in _code(notebook):
        for output in cell.outputs:
            size = len(json.dumps(output, ensure_ascii=False).encode())
            if size > OUTPUT_BYTES:
                yield f"an output of cell {cell.id} has {size:,} bytes, at most {OUTPUT_BYTES:,} are allowed"


def _outputs(notebook: NotebookNode) -> Iterator[str]:
    cells = _code(notebook)
    if [cell.execution_count for cell in cells] != [*range(1, len(cells) + 1)]:
        yield "execution counts are not 1 to the number of code cells: build the notebook again"
    compared = [cell for cell in cells if cell.outputs and UNCOMPARED not in cell.metadata.get("tags", ())]
    if len(compared) < MIN_COMPARED:
        yield f"{len(compared)} cells have outputs that tests compare, at least {MIN_COMPARED} are needed"
    if "widgets" in notebook.metadata:
        yield "the notebook holds widget state"
    for cell in cells:
        if any(WIDGET_VIEW in output.get("data", {}) for output in cell.outputs):
            yield f"cell {cell.id} holds a view of a widget that will not exist"


def _headings(notebook: NotebookNode) -> Iterator[str]:
    levels = [len(match[1]) for cell in notebook.cells if cell.cell_type == "markdown" for match in _heads(cell.source)]
    if levels[:1] != [1] or levels.count(1) != 1:
        yield "the notebook needs one heading of the first level, at its beginning"
    for above, below in pairwise(levels):
        if below > above + 1:
            yield f"a heading of level {below} follows one of level {above}"


def _heads(markdown: str) -> Iterator[re.Match[str]]:
    fenced = False
    for line in markdown.splitlines():
        fenced ^= line.startswith("```")
        if not fenced and (match := _HEADING.match(line)):
            yield match


def _pictures(notebook: NotebookNode) -> Iterator[str]:
    for cell in notebook.cells:
        if cell.cell_type == "markdown" and any(not alt.strip() for alt in _PICTURE.findall(cell.source)):
            yield f"a picture in cell {cell.id} has no alternative text"
        for output in cell.get("outputs", ()):
            picture = output.get("data", {}).get(SVG)
            if picture is not None and not _described(picture):
                yield f"a picture of cell {cell.id} has no aria-label and title, or is no XML"


def _described(svg: str) -> bool:
    try:
        root = fromstring(svg)
    except ParseError:
        return False
    title = next((child.text for child in root if child.tag.endswith("title")), None)
    return bool(root.get("aria-label", "").strip() and title)
