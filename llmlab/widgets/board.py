"""All panels of a lab or a trace on one page, linked by one selection."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import ipywidgets as w

from llmlab.client.client import Client
from llmlab.trace.events import Captured, Event, WireEvent
from llmlab.trace.trace import Trace
from llmlab.widgets.asking import RequestPanel
from llmlab.widgets.client_form import ClientForm
from llmlab.widgets.container import Container
from llmlab.widgets.desk import desk_of
from llmlab.widgets.folded import Folded
from llmlab.widgets.metrics_panel import MetricsPanel
from llmlab.widgets.panel import Panel
from llmlab.widgets.scrub import Scrub

MAIN = ("waterfall", "step_timeline", "batch_lanes", "block_map", "token_strip", "draft_rounds", "usage_ledger")
OF_A_CLIENT = ("exchanges", "wire_view", "anatomy")  # the half that does not need the server's engine
# folded up until there is something in them: heading, views, the event that brings something, and how to tell
FOLDED: tuple[tuple[str, tuple[str, ...], type[Event], Callable[[Trace], bool]], ...] = (
    (
        "Inside the model",
        ("distribution", "attention", "attention_heads", "lens"),
        Captured,
        lambda trace: bool(trace.index.captured),
    ),
    ("On the wire", ("exchanges", "wire_view", "anatomy"), WireEvent, lambda trace: bool(trace.index.wire)),
)

View = str | Callable[..., Any]


class Dashboard(Container):
    """Panels under each other. A trace gets a slider over its steps, a lab or client a form for requests.

    ``panels`` are views of :mod:`llmlab.views` or their names; by default all that belong on one page, those on the
    inside of the model and on the wire folded up while there is nothing in them. A client of a server elsewhere gets
    its half of each exchange, and what the server's ``/metrics`` say, asked every second.
    """

    def __init__(self, source: Any, panels: Iterable[View] | None = None, *, key: str = "dashboard") -> None:
        super().__init__(desk_of(source), key)
        self.scrub = Scrub(self.desk)
        self._parts.append(self.scrub)
        top = self._top(source)
        steps = [] if self._is_half() else [self.scrub.widget]
        rows = [*top, *steps, *self._rows(panels)]
        self.widget = self._own(w.VBox(rows))

    def _top(self, source: Any) -> list[w.Widget]:
        self.form: RequestPanel | ClientForm | None = None
        self._url = source.url if isinstance(source, Client) else None
        kind = ClientForm if self._url else RequestPanel if hasattr(source, "submit") else None
        if kind is None:
            return []
        self.form = kind(source, key=f"{id(self)} form")
        self._parts.append(self.form)
        return [self.form.widget]

    def _rows(self, panels: Iterable[View] | None) -> list[w.Widget]:
        if panels is not None:
            return self._added(tuple(panels))
        if self._is_half():
            return [self._metrics(self._url), *self._added(OF_A_CLIENT)]
        return [*self._added(MAIN), self._folded(self._recorded())]

    def _recorded(self) -> Trace:
        self.desk.feed.read()
        return self.desk.feed.whole()

    def _is_half(self) -> bool:
        """Whether only the client's half is recorded: then there are no steps of an engine."""
        return self._url is not None and self._recorded().index.info is None

    def _added(self, views: Sequence[View]) -> list[w.Widget]:
        made = [Panel(view, self.desk, register=False) for view in views]
        self.panels += tuple(made)
        return [panel.widget for panel in made]

    def _metrics(self, url: str) -> w.Widget:
        panel = MetricsPanel(url, self.desk, register=False)
        self.panels += (panel,)
        return panel.widget

    def _folded(self, trace: Trace) -> w.Widget:
        groups = [self._own(w.VBox(self._added(views))) for _, views, _, _ in FOLDED]
        titles = tuple(title for title, *_ in FOLDED)
        full = [i for i, (_, _, _, has_any) in enumerate(FOLDED) if has_any(trace)]
        accordion = self._own(w.Accordion(groups, titles=titles, selected_index=full[0] if full else None))
        self._parts.append(Folded(self.desk, accordion, [kind for _, _, kind, _ in FOLDED], full))
        return accordion


def dashboard(source: Any, panels: Iterable[View] | None = None, *, key: str = "dashboard") -> Dashboard:
    """All panels of a lab, engine, client, or trace; see :class:`Dashboard`.

    A client speaks the Messages API. For a server that speaks the Chat Completions API, put ``llmlab serve --no-engine
    --upstream URL`` before it and connect to that.

    Raises ``InvalidParameter`` for a source or view that is none.
    """
    return Dashboard(source, panels, key=key)
