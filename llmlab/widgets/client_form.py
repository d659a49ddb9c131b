"""A form that sends requests to a server through a client, and their text as it arrives."""

from __future__ import annotations

import threading
from typing import Any

import ipywidgets as w

from llmlab.client.client import Client
from llmlab.errors import InvalidParameter, LabError
from llmlab.widgets.container import Container
from llmlab.widgets.desk import desk_of
from llmlab.widgets.notice import Notice
from llmlab.widgets.over_the_wire import Sender
from llmlab.widgets.stream import Stream
from llmlab.widgets.worker import Worker


class ClientForm(Container):
    """Prompt, system prompt, limits; Send and Stop; what comes back. For a client of any server.

    The buttons only enqueue. Without a model's name the server's first one is asked for. Raises ``InvalidParameter``
    for anything but a client.
    """

    def __init__(self, client: Any, *, key: str = "request form") -> None:
        if not isinstance(client, Client):
            kind = type(client).__name__
            raise InvalidParameter(
                f"requests cannot be sent through {kind}: give a client, as llmlab.connect() returns"
            )
        super().__init__(desk_of(client), key)
        self.client = client
        self.worker = Worker(self._report)
        self.stream, self.notice = Stream(self.desk), Notice(self.desk)
        self._parts += [self.stream, self.notice]
        self._stops = threading.Event()
        self._build()

    def _build(self) -> None:
        own, wide = self._own, {"layout": w.Layout(width="auto")}
        short = {"style": {"description_width": "88px"}}
        self.model = own(w.Text(description="model", placeholder="the server's first", **wide, **short))
        self.prompt = own(w.Textarea("Say hello.", description="prompt", rows=2, **wide, **short))
        self.system = own(w.Text(description="system", placeholder="none", **wide, **short))
        self.max_tokens = own(w.BoundedIntText(60, 1, 100_000, description="max_tokens", **wide, **short))
        self.temperature = own(w.FloatText(0.0, step=0.1, description="temperature", **wide, **short))
        self.send_button = own(
            w.Button(description="Send", tooltip="over the wire", button_style="primary", icon="paper-plane")
        )
        self.stop_button = own(w.Button(description="Stop", icon="stop"))
        for name in ("prompt", "send_button", "stop_button"):
            getattr(self, name).add_class(f"llmlab-{name.split('_')[0]}")
        self.send_button.on_click(lambda _: self.send())
        self.stop_button.on_click(lambda _: self.abort())
        knobs = (self.model, self.max_tokens, self.temperature)
        grid = own(w.GridBox(knobs, layout=w.Layout(grid_template_columns="repeat(3, minmax(0, 1fr))")))
        bar = own(w.HBox([self.send_button, self.stop_button]))
        self.widget = own(w.VBox([self.prompt, self.system, grid, bar, self.notice.widget, self.stream.widget]))

    def send(self) -> None:
        """Send what the form says; as pressing the button."""
        self._stops.clear()
        prompt, system, model = self.prompt.value, self.system.value or None, self.model.value.strip()
        params = {"max_tokens": self.max_tokens.value, "temperature": self.temperature.value}
        self.worker.put(lambda: self._carry_out(prompt, system, model, params))

    def abort(self) -> None:
        """Leave the requests under way, which ends them at the server too; as pressing the button."""
        self._stops.set()
        self.notice.say("stopped")

    def _carry_out(self, prompt: str, system: str | None, model: str, params: dict[str, Any]) -> None:
        self.notice.say(f"sending to {self.client.url}")
        sender = Sender(self.client, model or self._first_model(), self.stream, self._stops, self._report)
        sender.send([prompt], system, params, shows_deltas=True)
        self.notice.say(f"sent to {sender.model} at {self.client.url}")
        self.desk.pump.hurry()

    def _first_model(self) -> str:
        found = self.client.models()
        if not found or not isinstance(found[0].get("id"), str):
            raise LabError(f"{self.client.url} offers no model: fill in its name")
        return found[0]["id"]

    def _report(self, error: str) -> None:
        self.notice.say(error, error=True)
        self.desk.pump.hurry()
