"""Looking back: a slider over the recorded steps, for a trace and for a running engine."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from llmlab.errors import LabError
from llmlab.widgets.canvas import Scrubber
from llmlab.widgets.desk import Desk
from llmlab.widgets.feed import Feed
from llmlab.widgets.part import Part


class Scrub(Part):
    """The slider of a ``desk``: every panel shows the recording as it stood after the chosen step."""

    kind = Scrubber

    def __init__(self, desk: Desk) -> None:
        super().__init__(desk)
        self._state: dict[str, Any] = {}
        self.attach()

    def prepare(self, feed: Feed) -> int | None:
        """See :class:`llmlab.widgets.pump.Sink`."""
        first, last = feed.steps() or (None, None)
        state = {"first": first, "last": last, "now": feed.until, "live": feed.is_live}
        if state == self.widget.state:
            return None
        self._state = state
        return len(str(state))

    def send(self) -> None:
        """Tell the page the steps there are and the one being looked at."""
        self.widget.state = self._state

    def seek(self, step: int | None) -> None:
        """Look at the moment after ``step``, ``None``: the end. Raises ``InvalidParameter``."""
        self.desk.feed.seek(step)
        self.desk.selection.pick({"step": step})
        self.desk.pump.hurry()

    def receive(self, message: Any) -> None:
        """A step to look at, or what any part is told."""
        match message:
            case {"type": "seek", "step": int() | None as step}:
                with suppress(LabError):  # the step has left the window meanwhile
                    self.seek(step)
            case _:
                super().receive(message)

    def close(self) -> None:
        """Close the comm, and look at the end again."""
        if not self.is_closed:
            self.desk.feed.seek(None)
        super().close()
