"""Showing a live display in a cell, and putting a still in its place."""

from __future__ import annotations

import asyncio
from time import monotonic
from typing import Any
from uuid import uuid4

from IPython.display import display, update_display

from llmlab.widgets.desk import Desk
from llmlab.widgets.pump import PERIOD_S

WIDGET_MIME = "application/vnd.jupyter.widget-view+json"


class Shown:
    """What a panel and a page of panels have in common towards the notebook.

    Both have a ``desk``, a ``widget``, ``picture()`` and ``close()``.
    """

    desk: Desk
    widget: Any
    _display_id: str | None = None

    def freeze(self) -> None:
        """Put the picture where the live display was, and close that."""
        picture = self.picture()
        if self._display_id is not None:
            update_display(picture, display_id=self._display_id)
        self.close()

    async def watch(self, seconds: float) -> None:
        """Paint from within the cell for ``seconds``: for front ends that show a thread's updates only after it."""
        end = monotonic() + seconds
        while monotonic() < end:
            self.desk.pump.flush()
            await asyncio.sleep(PERIOD_S)

    def _ipython_display_(self) -> None:
        """Display it with a text that has no ids in it: stored outputs are compared by their text."""
        self._display_id = self._display_id or uuid4().hex
        view = {"version_major": 2, "version_minor": 0, "model_id": self.widget.model_id}
        display({WIDGET_MIME: view, "text/plain": repr(self)}, raw=True, display_id=self._display_id)
