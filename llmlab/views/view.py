"""What a view function returns: one set of facts as text, picture, table and, where numbers are explored, a figure."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd

from llmlab.errors import InvalidParameter
from llmlab.views.scene import Scene
from llmlab.views.svg import draw

if TYPE_CHECKING:
    import plotly.graph_objects as go


@dataclass(frozen=True)
class View:
    """A picture of recorded events.

    ``text`` and ``alt`` hold facts that a second run of the same seeded requests repeats: ids, counts, orders, reasons;
    never a measured time. ``alt`` is one sentence that says what there is to see. ``notes`` say what was left out or
    pooled, and why; they are part of picture and text. A ``simulated`` view says so in its title and its text.
    """

    name: str
    title: str
    alt: str
    text: str
    scene: Scene
    frame: pd.DataFrame
    notes: tuple[str, ...] = ()
    plot: Callable[[], go.Figure] | None = None
    simulated: bool = False

    @cached_property
    def svg(self) -> str:
        """The picture in the light theme, for a file or a page that knows no theme."""
        return self.draw()

    def draw(self, theme: str = "light") -> str:
        """The picture as SVG; ``theme`` is ``light`` or ``dark``. Raises ``InvalidParameter`` for another."""
        return draw(self.scene, self._marked(self.title), self.alt, self.notes, theme)

    def table(self) -> pd.DataFrame:
        """The facts of the picture as a table."""
        return self.frame.copy()

    def figure(self) -> go.Figure:
        """An interactive plotly figure. Raises ``InvalidParameter`` for a view that has none."""
        if self.plot is None:
            raise InvalidParameter(f"the view {self.name!r} has no plotly figure: use .svg, .text or .table()")
        return self.plot()

    def save(self, path: str | os.PathLike, theme: str = "light") -> Path:
        """Write ``.svg`` (the picture), ``.txt`` (the text) or ``.csv`` (the table), by the path's ending.

        Raises ``InvalidParameter`` for another ending.
        """
        path = Path(path)
        writers = {".svg": lambda: self.draw(theme), ".txt": lambda: str(self), ".csv": self.frame.to_csv}
        if path.suffix not in writers:
            raise InvalidParameter(f"{path.name!r} ends in {path.suffix!r}: a view is saved as {', '.join(writers)}")
        path.write_text(writers[path.suffix](), encoding="utf-8")
        return path

    def __str__(self) -> str:
        return "\n".join([self._marked(self.title), self.text, *self.notes])

    __repr__ = __str__

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, str]:
        return {"text/plain": str(self), "image/svg+xml": self.svg}

    def _marked(self, title: str) -> str:
        return f"SIMULATED: {title}" if self.simulated else title
