"""A few lines of the code that did what a notebook shows, with where they are."""

from __future__ import annotations

import inspect
import textwrap
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from llmlab.errors import InvalidParameter


@dataclass(frozen=True, slots=True)
class Excerpt:
    """Source lines, the file's path inside the package and the number of the first line."""

    file: str
    first_line: int
    code: str

    def __repr__(self) -> str:
        return f"{self.file}, line {self.first_line}\n\n{self.code}"

    def _repr_markdown_(self) -> str:
        return f"`{self.file}`, line {self.first_line}\n\n```python\n{self.code}\n```"


def excerpt(function: Callable[..., Any], containing: str = "", lines: int = 8) -> Excerpt:
    """``lines`` lines of a function of llmlab, from the first one that contains ``containing``.

    Raises ``InvalidParameter`` when no line does.
    """
    source, start = inspect.getsourcelines(function)
    at = next((number for number, line in enumerate(source) if containing in line), None)
    if at is None:
        raise InvalidParameter(f"no line of {function.__qualname__} contains {containing!r}")
    path = Path(inspect.getsourcefile(function) or "").resolve()
    package = Path(__file__).resolve().parents[2]
    name = path.relative_to(package).as_posix() if path.is_relative_to(package) else path.name
    code = textwrap.dedent("".join(source[at : at + lines])).rstrip()
    return Excerpt(name, start + at, code)
