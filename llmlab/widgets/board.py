"""All panels of a lab or a trace on one page, linked by one selection."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import ipywidgets as w

from llmlab.trace.trace import Trace
from llmlab.widgets.asking import RequestPanel
from llmlab.widgets.container import Container
from llmlab.widgets.desk import desk_of
from llmlab.widgets.panel import Panel
from llmlab.widgets.scrub import Scrub

MAIN = ("waterfall", "step_timeline", "batch_lanes", "block_map", "token_strip", "draft_rounds", "usage_ledger")
# folded up until there is something in them: heading, views, and how to tell
FOLDED: tuple[tuple[str, tuple[str, ...], Callable[[Trace], bool]], ...] = (
    (
        "Inside the model",
        ("distribution", "attention", "attention_heads", "lens"),
        lambda trace: bool(trace.index.captured),
    ),
    ("On the wire", ("wire_view", "anatomy"), lambda trace: bool(trace.index.wire)),
)

View = str | Callable[..., Any]


class Dashboard(Container):
    """Panels under each other. A trace gets a slider over its steps, a lab a form for requests.

    ``panels`` are views of :mod:`llmlab.views` or their names; by default all that belong on one page, those on the
    inside of the model and on the wire folded up while there is nothing in them.
    """

    def __init__(self, source: Any, panels: Iterable[View] | None = None, *, key: str = "dashboard") -> None:
        super().__init__(desk_of(source), key)
        self.scrub = Scrub(self.desk)
        self._parts.append(self.scrub)
        rows = [*self._top(source), self.scrub.widget, *self._rows(panels)]
        self.widget = self._own(w.VBox(rows))

    def _top(self, source: Any) -> list[w.Widget]:
        self.form = RequestPanel(source, key=f"{id(self)} form") if hasattr(source, "submit") else None
        if self.form is None:
            return []
        self._parts.append(self.form)
        return [self.form.widget]

    def _rows(self, panels: Iterable[View] | None) -> list[w.Widget]:
        if panels is not None:
            return self._added(tuple(panels))
        self.desk.feed.read()
        trace = self.desk.feed.whole()
        return [*self._added(MAIN), self._folded(trace)]

    def _added(self, views: Sequence[View]) -> list[w.Widget]:
        made = [Panel(view, self.desk, register=False) for view in views]
        self.panels += tuple(made)
        return [panel.widget for panel in made]

    def _folded(self, trace: Trace) -> w.Widget:
        groups = [self._own(w.VBox(self._added(views))) for _, views, _ in FOLDED]
        titles = tuple(title for title, _, _ in FOLDED)
        full = next((i for i, (_, _, has_any) in enumerate(FOLDED) if has_any(trace)), None)
        return self._own(w.Accordion(groups, titles=titles, selected_index=full))


def dashboard(source: Any, panels: Iterable[View] | None = None, *, key: str = "dashboard") -> Dashboard:
    """All panels of a lab, engine, client with a recorder, or trace; see :class:`Dashboard`.

    Raises ``InvalidParameter`` for a source or view that is none.
    """
    return Dashboard(source, panels, key=key)
