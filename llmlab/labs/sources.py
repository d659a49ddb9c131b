"""From the percent source of a notebook to the notebook: cells, tags, ids; nothing is run."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from llmlab.errors import InvalidParameter, LabError, MissingExtra

if TYPE_CHECKING:
    from nbformat import NotebookNode

LABS = Path(__file__).parents[2] / "labs"
SOURCES = LABS / "src"
NAME = re.compile(r"(\d\d)_[a-z0-9_]+\.py")
SOLUTION = "solution"
METADATA = {
    "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
    "language_info": {"name": "python"},
}


def sources(*numbers: str) -> list[Path]:
    """The percent sources of these lab numbers, all of them when none is given.

    Raises ``LabError`` outside a checkout, ``InvalidParameter`` for a number that none has.
    """
    found = sorted(path for path in SOURCES.glob("*.py") if NAME.fullmatch(path.name))
    if not found:
        raise LabError(f"no notebook sources at {SOURCES}: they are in the repository, not in the installed package")
    unknown = sorted(set(numbers) - {path.name[:2] for path in found})
    if unknown:
        raise InvalidParameter(f"no lab {', '.join(unknown)}: there are {', '.join(path.name for path in found)}")
    return [path for path in found if not numbers or path.name[:2] in numbers]


def built_path(source: Path) -> Path:
    """Where the notebook of a source is kept."""
    return source.parents[1] / f"{source.stem}.ipynb"


def convert(source: Path) -> NotebookNode:
    """The notebook of a source, without outputs. Solutions are collapsed; ids depend on name and place only."""
    try:
        import jupytext
    except ImportError:
        raise MissingExtra("notebooks are converted by jupytext: pip install 'llmlab[test]'") from None
    from nbformat import from_dict

    notebook = jupytext.read(source, fmt="py:percent")
    notebook.nbformat, notebook.nbformat_minor = 4, 5
    notebook.metadata.clear()
    notebook.metadata.update(METADATA)
    for number, cell in enumerate(notebook.cells, 1):
        cell.id = f"{source.stem.replace('_', '-')}-{number:02d}"
        cell.metadata = from_dict(_metadata(list(cell.metadata.get("tags", ()))))
    return notebook


def _metadata(tags: list[str]) -> dict[str, Any]:
    """A cell's metadata: its tags; what the source's blank lines left there is dropped."""
    kept: dict[str, Any] = {"tags": tags} if tags else {}
    if SOLUTION in tags:
        kept["jupyter"] = {"source_hidden": True, "outputs_hidden": True}
    return kept
