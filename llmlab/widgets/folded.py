"""Groups of panels that are folded up until there is something in them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import ipywidgets as w
from IPython import get_ipython

from llmlab.trace.events import Event
from llmlab.widgets.desk import Desk
from llmlab.widgets.feed import Feed

NEWS = " · something was recorded"


class Folded:
    """Opens a group of ``accordion`` when the first event of its kind is recorded, or says so in its heading while
    another one is open. ``kinds`` has the event of each group, ``full`` the groups that had something from the start.

    See :class:`llmlab.widgets.pump.Sink`: it listens to the pump, has nothing to paint and keeps no pump running.
    """

    is_visible = False

    def __init__(self, desk: Desk, accordion: w.Accordion, kinds: Sequence[type[Event]], full: Sequence[int]) -> None:
        self.desk, self.accordion = desk, accordion
        self._waiting = {i: kind for i, kind in enumerate(kinds) if i not in full}
        desk.pump.add(self)

    def note(self, events: Sequence[Event]) -> None:
        """Look for the first event of each group."""
        if not self._waiting:
            return
        types = set(map(type, events))
        for i, kind in list(self._waiting.items()):
            if kind in types:
                del self._waiting[i]
                on_the_main_thread(lambda i=i: self.show(i))

    def show(self, group: int) -> None:
        """Open a group, unless the reader has another one open."""
        if self.accordion.selected_index is None:
            self.accordion.selected_index = group
        elif self.accordion.selected_index != group:
            titles = list(self.accordion.titles)
            titles[group] += NEWS
            self.accordion.titles = tuple(titles)

    def prepare(self, feed: Feed) -> None:
        """Nothing to paint."""

    def send(self) -> None:
        """Nothing to send."""

    def close(self) -> None:
        """Listen no more."""
        self.desk.pump.discard(self)


def on_the_main_thread(act: Callable[[], Any]) -> None:
    """Do it where the page's messages are handled: the page writes a stock widget too, and they are not safe for two
    threads. Outside of a kernel there is no page, and it is done here."""
    loop = getattr(getattr(get_ipython(), "kernel", None), "io_loop", None)
    if loop is None:
        act()
    else:
        loop.add_callback(act)
