"""Run notebooks against a server of another make: ``python -m llmlab.labs.against URL [NN ...]``.

Each is run unchanged, from its first cell to its last, with ``LLMLAB_UPSTREAM`` set, so that what its labs serve is the
server at ``URL``. A cell that fails does not end the run. Nothing is written.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from llmlab.errors import LabError
from llmlab.gateway.stand_in import UPSTREAM
from llmlab.labs.audit import UNCOMPARED
from llmlab.labs.build import kernel_client
from llmlab.labs.normalise import normalise
from llmlab.labs.sources import built_path, convert, sources

if TYPE_CHECKING:
    from nbformat import NotebookNode

CELL_SECONDS = 300
STUB = "exercise"


@dataclass(frozen=True, slots=True)
class CellResult:
    """How one code cell did. ``outcome``: ``same`` (as stored, or nothing to compare), ``other`` (ran, and showed
    something else) or ``failed``, with the error in ``reason``."""

    cell: str
    outcome: str
    reason: str = ""


def run_against(url: str, source: Path) -> list[CellResult]:
    """Every code cell of a lab, run with the server at ``url`` in the place of its engine.

    Raises ``LabError`` for a kernel that dies, a cell that does not end, and a notebook that is out of step.
    """
    import nbformat

    notebook, stored = convert(source), nbformat.read(built_path(source), as_version=4)
    if [cell.source for cell in notebook.cells] != [cell.source for cell in stored.cells]:
        raise LabError(f"{built_path(source).name} is out of step with {source.name}: build it first")
    with upstream_variable(url):
        ran = normalise(_execute(notebook))
    pairs = zip(ran.cells, stored.cells, strict=True)
    return [_result(cell, before) for cell, before in pairs if cell.cell_type == "code" and not _is_stub(cell)]


@contextmanager
def upstream_variable(url: str) -> Iterator[None]:
    """The environment with the variable set to ``url``."""
    before = os.environ.get(UPSTREAM)
    os.environ[UPSTREAM] = url
    try:
        yield
    finally:
        os.environ.pop(UPSTREAM)
        if before is not None:
            os.environ[UPSTREAM] = before


def _execute(notebook: NotebookNode) -> NotebookNode:
    client = kernel_client(notebook, CELL_SECONDS, allow_errors=True)
    from nbclient.exceptions import CellTimeoutError, DeadKernelError

    try:
        return client.execute()
    except (CellTimeoutError, DeadKernelError) as error:
        raise LabError(f"the notebook did not run to its end: {error}") from error


def _is_stub(cell: NotebookNode) -> bool:
    return STUB in cell.metadata.get("tags", ())


def _result(cell: NotebookNode, stored: NotebookNode) -> CellResult:
    for output in cell.outputs:
        if output.output_type == "error":
            return CellResult(cell.id, "failed", f"{output.ename}: {output.evalue}".partition("\n")[0][:160])
    is_compared = UNCOMPARED not in cell.metadata.get("tags", ())
    is_same = not is_compared or _texts(cell) == _texts(stored)
    return CellResult(cell.id, "same" if is_same else "other")


def _texts(cell: NotebookNode) -> list[str]:
    return [
        output.text if "text" in output else output.get("data", {}).get("text/plain", "") for output in cell.outputs
    ]


def main(url: str, numbers: Annotated[list[str] | None, typer.Argument(metavar="[NN]...")] = None) -> None:
    """Run the labs of these numbers (default: 01 02 03 13 14 20) against the server at URL."""
    try:
        for source in sources(*(numbers or ("01", "02", "03", "13", "14", "20"))):
            results = run_against(url, source)
            counts = Counter(result.outcome for result in results)
            told = ", ".join(f"{counts[name]} {name}" for name in ("same", "other", "failed"))
            typer.echo(f"{source.stem}: {len(results)} cells, {told}")
            for result in results:
                if result.outcome != "same":
                    typer.echo(f"    {result.cell} {result.outcome} {result.reason}".rstrip())
    except LabError as error:
        typer.echo(str(error), err=True)
        raise typer.Exit(1) from error


if __name__ == "__main__":
    typer.run(main)
