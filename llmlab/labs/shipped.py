"""The notebooks that come with this installation."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path

from llmlab.errors import InvalidParameter, LabError

SUFFIX = ".ipynb"


@dataclass(frozen=True, slots=True)
class Notebook:
    """One shipped notebook: ``name`` is its file name, ``NN_slug.ipynb``."""

    name: str
    content: bytes

    @property
    def number(self) -> str:
        """The two digits its name begins with."""
        return self.name.partition("_")[0]

    @property
    def title(self) -> str:
        """Its first heading."""
        return next((line[2:].strip() for line in _markdown(self.content) if line.startswith("# ")), self.name)


def shipped() -> tuple[Notebook, ...]:
    """All notebooks, in order. Raises ``LabError`` when the installation has none."""
    package = files("llmlab")
    places: list[Traversable] = [package / "data" / "labs", Path(str(package)).parent / "labs"]
    for place in places:
        found = _notebooks(place)
        if found:
            return found
    raise LabError(f"no notebooks at {' or '.join(map(str, places))}: reinstall llmlab")


def find(key: str, among: tuple[Notebook, ...]) -> Notebook:
    """The notebook of a number (``"3"``, ``"03"``) or a name, with or without its ending.

    Raises ``InvalidParameter`` that lists what there is.
    """
    wanted = key.zfill(2) if key.isascii() and key.isdigit() else key
    for notebook in among:
        if wanted in (notebook.number, notebook.name, notebook.name.removesuffix(SUFFIX)):
            return notebook
    raise InvalidParameter(f"there is no lab {key!r}: there are {', '.join(item.name for item in among)}")


def _notebooks(folder: Traversable) -> tuple[Notebook, ...]:
    if not folder.is_dir():
        return ()
    inside = sorted((item for item in folder.iterdir() if item.name.endswith(SUFFIX)), key=lambda item: item.name)
    return tuple(Notebook(item.name, item.read_bytes()) for item in inside)


def _markdown(content: bytes) -> Iterator[str]:
    for cell in json.loads(content)["cells"]:
        if cell["cell_type"] == "markdown":
            yield from "".join(cell["source"]).splitlines()
