"""What is stored of an executed notebook: facts and pictures, nothing that a second run would change."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from llmlab.labs.sources import METADATA

if TYPE_CHECKING:
    from nbformat import NotebookNode

WIDGET_VIEW = "application/vnd.jupyter.widget-view+json"
_COLOURS = re.compile(r"\x1b\[[0-9;]*m")


def normalise(notebook: NotebookNode) -> NotebookNode:
    """The notebook, changed in place: counts 1 to N, streams in one piece, no widget state or views, no timestamps.

    A widget's output keeps its text and pictures. A traceback, which is full of paths, is reduced to its last line.
    """
    from nbformat import from_dict

    notebook.metadata = from_dict(METADATA)  # a kernel adds its versions, widgets their state
    count = 0
    for cell in notebook.cells:
        cell.metadata.pop("execution", None)
        if cell.cell_type != "code":
            continue
        count += 1
        cell.execution_count = count
        cell.outputs = [_stored(output, count) for output in _joined(cell.outputs)]
    return notebook


def _stored(output: NotebookNode, count: int) -> NotebookNode:
    if "data" in output:
        output.data.pop(WIDGET_VIEW, None)
        output.metadata = {}
    if output.output_type == "execute_result":
        output.execution_count = count
    if output.output_type == "error":
        output.traceback = [_COLOURS.sub("", f"{output.ename}: {output.evalue}")]
    return output


def _joined(outputs: list[Any]) -> list[Any]:
    """Neighbouring pieces of one stream as one: how a stream is cut depends on time."""
    joined: list[Any] = []
    for output in outputs:
        before = joined[-1] if joined else None
        if before is not None and before.output_type == output.output_type == "stream" and before.name == output.name:
            before.text += output.text
        else:
            joined.append(output)
    return joined
