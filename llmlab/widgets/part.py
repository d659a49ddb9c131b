"""A display that the pump paints: what panels, sliders and lines of text have in common."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

from llmlab.trace.events import Event
from llmlab.widgets.canvas import Display
from llmlab.widgets.desk import Desk
from llmlab.widgets.feed import Feed
from llmlab.widgets.sight import Sight


class Part(ABC):
    """A widget of the class ``kind`` on a ``desk``; see :class:`llmlab.widgets.pump.Sink`.

    A subclass has :meth:`prepare` and :meth:`send`, and calls :meth:`attach` when these can be called.
    """

    kind: type[Display]

    def __init__(self, desk: Desk) -> None:
        self.desk = desk
        self.sight = Sight(desk.pump.wake)
        self.widget = self.kind(code=desk.take_code(), group=desk.group)
        self.widget.on_msg(lambda _, message, __: self.receive(message))
        self.is_closed = False

    def attach(self) -> None:
        """From now on the pump paints it."""
        self.desk.pump.add(self)

    @property
    def is_visible(self) -> bool:
        """Whether somebody can see it, as far as the page told."""
        return self.sight.is_visible

    def note(self, events: Sequence[Event]) -> None:
        """New events; nothing is done with them here."""
        return

    @abstractmethod
    def prepare(self, feed: Feed) -> int | None:
        """Draw what changed; the bytes to send, ``None`` for nothing."""

    @abstractmethod
    def send(self) -> None:
        """Send it."""

    def receive(self, message: Any) -> None:
        """A message of the page. It may come on any thread, so it only changes what the pump looks at."""
        if isinstance(message, Mapping) and message.get("type") == "visible":
            self.sight.receive(message)

    def close(self) -> None:
        """Close the comms; what is on the page stays as it was. More than once does no harm."""
        with self.desk.pump.lock:
            if self.is_closed:
                return
            self.is_closed = True
            self.desk.pump.discard(self)
            self.widget.close()
            self.desk.give_code()
