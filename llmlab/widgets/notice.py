"""One line of text beside the controls: what went wrong, or what was done last."""

from __future__ import annotations

from typing import Any

from llmlab.views.glyphs import visible
from llmlab.widgets.canvas import Note
from llmlab.widgets.desk import Desk
from llmlab.widgets.feed import Feed
from llmlab.widgets.part import Part


class Notice(Part):
    """Shows what :meth:`say` was told last. Any thread may say; the pump writes."""

    kind = Note

    def __init__(self, desk: Desk) -> None:
        super().__init__(desk)
        self.state: dict[str, Any] = {"text": "", "error": False}
        self.attach()

    def say(self, text: str, error: bool = False) -> None:
        """Show ``text``; ``error`` for a mistake."""
        self.state = {"text": visible(text, limit=400), "error": error}

    def prepare(self, feed: Feed) -> int | None:
        """See :class:`llmlab.widgets.pump.Sink`."""
        return len(str(self.state)) if self.state != self.widget.state else None

    def send(self) -> None:
        """Write it."""
        self.widget.state = self.state
