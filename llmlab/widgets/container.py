"""Several panels as one output."""

from __future__ import annotations

from typing import Any
from xml.etree.ElementTree import Element, fromstring, register_namespace, tostring

import ipywidgets
from IPython.display import SVG

from llmlab.widgets.desk import Desk
from llmlab.widgets.panel import Panel
from llmlab.widgets.registry import registry_for, running_cell
from llmlab.widgets.selection import Selection
from llmlab.widgets.shown import Shown

SVG_NAMESPACE = "http://www.w3.org/2000/svg"
GAP = 10


class Container(Shown):
    """Panels of one ``desk`` that are shown, frozen and closed together."""

    def __init__(self, desk: Desk, key: str) -> None:
        self.desk = desk
        self.panels: tuple[Panel, ...] = ()
        self.widget: ipywidgets.Widget | None = None
        self._parts: list[Any] = []  # what has a close() of its own, besides the panels
        self._stock: list[ipywidgets.Widget] = []
        self._is_closed = False
        cell, run = running_cell()
        registry_for(desk.owner).enter(self, key if cell is None else f"{key} {next(desk.numbers)}", cell, run)

    @property
    def selection(self) -> Selection:
        """What is selected, on all panels."""
        return self.desk.selection

    def __getitem__(self, name: str) -> Panel:
        """The panel of a view, by its name."""
        return next(panel for panel in self.panels if panel.name == name)

    def _own(self, widget: Any) -> Any:
        """A stock widget that is closed with this; returns it."""
        self._stock.append(widget)
        return widget

    def picture(self) -> SVG:
        """All panels that have something to show as one still, under each other."""
        views = [panel.still() for panel in self.panels]
        return SVG(stacked([view.svg for view in [view for view in views if len(view.frame)] or views]))

    def close(self) -> None:
        """Close everything; more than once does no harm."""
        if self._is_closed:
            return
        self._is_closed = True
        for part in (*self.panels, *self._parts):
            part.close()
        for widget in self._stock:
            _close(widget)
        registry_for(self.desk.owner).forget(self)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(panel.name for panel in self.panels)})"


def _close(widget: ipywidgets.Widget) -> None:
    """Close a stock widget with the layout and style that came with it."""
    companions = [getattr(widget, name, None) for name in ("layout", "style")]
    widget.close()
    for companion in companions:
        if isinstance(companion, ipywidgets.Widget):
            companion.close()


def stacked(pictures: list[str]) -> str:
    """SVG pictures under each other as one."""
    register_namespace("", SVG_NAMESPACE)
    parts = [fromstring(picture) for picture in pictures]
    top = 0.0
    for part in parts:
        part.set("y", f"{top:g}")
        top += float(part.get("height", "0")) + GAP
    width = max((float(part.get("width", "0")) for part in parts), default=0)
    size = {"width": f"{width:g}", "height": f"{top:g}", "viewBox": f"0 0 {width:g} {top:g}"}
    root = Element(f"{{{SVG_NAMESPACE}}}svg", size)
    root.extend(parts)
    return tostring(root, encoding="unicode")
