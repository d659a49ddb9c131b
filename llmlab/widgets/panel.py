"""One view as a live panel."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from IPython.display import SVG

from llmlab.errors import LabError
from llmlab.trace.trace import Trace
from llmlab.views.glyphs import visible
from llmlab.views.view import View
from llmlab.widgets import arguments as given
from llmlab.widgets.canvas import Canvas
from llmlab.widgets.desk import desk_of
from llmlab.widgets.feed import Feed
from llmlab.widgets.part import Part
from llmlab.widgets.registry import registry_for, running_cell
from llmlab.widgets.scene_json import encode
from llmlab.widgets.selection import FIELDS, Selection
from llmlab.widgets.shown import Shown

MIN_WIDTH, MAX_WIDTH = 480, 1400
FRAME = 4  # pixels by which a still's frame is wider than a panel's


class Panel(Shown, Part):
    """Draws ``view``, a function of :mod:`llmlab.views` or its name, whenever what it shows changes.

    ``source`` is a lab, an engine, a client with a recorder, or a trace. ``selection`` (the source's own unless given)
    is followed: a view that takes ``request_id``, ``step``, ``layer`` and so on gets what was clicked, on whichever
    panel. ``arguments`` are given to the view and stay. A panel of the same ``key``, or from an earlier run of this
    cell, is replaced.

    Raises ``InvalidParameter`` for a view, source or argument that is none.
    """

    kind = Canvas

    def __init__(
        self,
        view: str | given.ViewFunction,
        source: Any,
        selection: Selection | None = None,
        *,
        key: str | None = None,
        register: bool = True,
        **arguments: Any,
    ) -> None:
        self.function = given.view_function(view)
        given.check(self.function, arguments)
        super().__init__(desk_of(source))
        self.selection = selection or self.desk.selection
        self.arguments = arguments
        cell, run = running_cell()
        self.key = key or f"{self.name}{arguments or ''}" + ("" if cell is None else f" {next(self.desk.numbers)}")
        self.view: View | None = None
        self._width: int | None = None
        self._drawn: tuple | None = None
        self._wanted: dict[str, Any] = {}  # the widget's traits as they should be, and as they were last sent
        self._painted: dict[str, Any] = {}
        self._error = ""
        if register:
            registry_for(self.desk.owner).enter(self, self.key, cell, run)
        self.attach()

    @property
    def name(self) -> str:
        """The view's name."""
        return self.function.__name__

    # -- painted by the pump --------------------------------------------------------------------------------

    def prepare(self, feed: Feed) -> int | None:
        """Draw if the events, the selection or the width changed; see :class:`llmlab.widgets.pump.Sink`."""
        drawn = self._drawn_from(feed)
        if drawn != self._drawn:
            self._drawn = drawn
            self._error = self._draw(feed)
        self._wanted["selection"] = self.selection.point.key()
        self._wanted["status"] = {"state": self.desk.state, "error": self._error, "lost": feed.lost}
        changed = self._changed()
        return _size(changed) if changed else None

    def _drawn_from(self, feed: Feed) -> tuple:
        """What the picture depends on besides the arguments."""
        return feed.version, self.selection.version, self._width

    def send(self) -> None:
        """Send what the page does not have yet."""
        changed = self._changed()
        self._painted |= changed
        self.widget.show(**changed)

    def _changed(self) -> dict[str, Any]:
        return {name: value for name, value in self._wanted.items() if value != self._painted.get(name)}

    def _draw(self, feed: Feed) -> str:
        """Draw the view as it is now; what went wrong, empty for nothing. The last good picture stays."""
        try:
            view, problem = self._view(feed.trace(), self._width)
            self._wanted["scene"] = encode(view)
            self.view = view
        except Exception as error:  # a view's mistake is shown in its panel and stops no other
            problem = visible(
                str(error) if isinstance(error, LabError) else f"{type(error).__name__}: {error}", limit=300
            )
        return problem

    def _view(self, trace: Trace, width: int | None) -> tuple[View, str]:
        """The view of the selection, or without it when the view cannot show that; then also why."""
        fixed = dict(self.arguments)
        if width is not None and "width" in given.accepted(self.function):
            fixed.setdefault("width", width)
        chosen = given.followed(self.function, self.selection.point, trace)
        problem = ""
        for attempt in given.attempts({name: value for name, value in chosen.items() if name not in fixed}):
            try:
                return self.function(trace, **attempt, **fixed), problem
            except LabError as error:
                if not attempt:
                    raise
                problem = problem or f"the selection is not shown here: {visible(str(error), limit=240)}"
        raise AssertionError("the last attempt returns or raises")

    # -- told by the page -----------------------------------------------------------------------------------

    def receive(self, message: Any) -> None:
        """What was clicked, how wide the panel is, or what any part is told."""
        match message:
            case {"type": "pick", "key": dict(key)}:
                with suppress(LabError):  # the page sent nonsense: nothing is selected
                    self.selection.pick({name: value for name, value in key.items() if name in FIELDS})
            case {"type": "clear"}:
                self.selection.clear()
            case {"type": "width", "width": int(width)}:
                self._width = self.desk.width = min(max(width, MIN_WIDTH), MAX_WIDTH)
            case _:
                super().receive(message)
        if isinstance(message, Mapping) and message.get("type") != "visible":
            self.desk.pump.hurry()

    # -- for the reader -------------------------------------------------------------------------------------

    def picture(self) -> SVG:
        """The panel as a still, which also shows where there is no kernel. Raises what the view raises."""
        return SVG(self.still().svg)

    def still(self) -> View:
        """The view as it is now, as wide as the page."""
        with self.desk.pump.lock:
            self.desk.feed.read()
            width = self.desk.width and max(self.desk.width - FRAME, MIN_WIDTH)
            return self._view(self.desk.feed.trace(), width)[0]

    def close(self) -> None:
        """Close the panel's comms; what is on the page stays as it was. More than once does no harm."""
        super().close()
        registry_for(self.desk.owner).forget(self)

    def __repr__(self) -> str:
        return f"Panel({self.name!r})"


def _size(traits: dict[str, Any]) -> int:
    return sum(len(value) if isinstance(value, bytes) else len(str(value)) for value in traits.values())
