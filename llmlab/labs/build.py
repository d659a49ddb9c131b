"""Build the notebooks from their sources: ``python -m llmlab.labs.build [NN ...]``.

Each ``labs/src/NN_slug.py`` is converted, run from its first cell to its last in a kernel of this environment, stripped
of what a second run would change, checked and written to ``labs/NN_slug.ipynb``.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from llmlab.errors import LabError, MissingExtra
from llmlab.labs.audit import audit
from llmlab.labs.normalise import normalise
from llmlab.labs.sources import LABS, built_path, convert, sources

if TYPE_CHECKING:
    from nbclient import NotebookClient
    from nbformat import NotebookNode

CELL_SECONDS = 600


def build(source: Path) -> Path:
    """Build and write one notebook. Raises ``LabError`` when a cell fails or :func:`~llmlab.labs.audit.audit` objects.

    Nothing is written then.
    """
    import nbformat

    notebook = normalise(execute(convert(source)))
    problems = audit(notebook)
    if problems:
        raise LabError(f"{source.name}: {'; '.join(problems)}")
    target = built_path(source)
    nbformat.write(notebook, target)
    return target


def execute(notebook: NotebookNode) -> NotebookNode:
    """The notebook with the outputs of a run in a kernel of this environment. Raises ``LabError`` when a cell fails."""
    client = kernel_client(notebook, CELL_SECONDS)
    from nbclient.exceptions import CellExecutionError, CellTimeoutError

    try:
        return client.execute()
    except (CellExecutionError, CellTimeoutError) as error:
        raise LabError(f"a cell failed: {error}") from error


def kernel_client(notebook: NotebookNode, cell_seconds: float, **options: Any) -> NotebookClient:
    """What runs a notebook in a kernel of this environment, in the folder of the labs. Raises ``MissingExtra``."""
    try:
        from nbclient import NotebookClient
    except ImportError:
        raise MissingExtra("notebooks are run by nbclient: pip install 'llmlab[test]'") from None
    return NotebookClient(
        notebook,
        timeout=cell_seconds,
        kernel_name="python3",
        store_widget_state=False,
        record_timing=False,
        resources={"metadata": {"path": str(LABS)}},
        **options,
    )


def main(numbers: Annotated[list[str] | None, typer.Argument(metavar="[NN]...", help="Default: all.")] = None) -> None:
    """Build the notebooks of these numbers from labs/src."""
    try:
        for source in sources(*(numbers or ())):
            target = build(source)
            typer.echo(f"{target.relative_to(LABS.parent)}: {target.stat().st_size:,} bytes")
    except LabError as error:
        typer.echo(str(error), err=True)
        raise typer.Exit(1) from error


if __name__ == "__main__":
    typer.run(main)
