"""A form that sends requests to a lab, and their text as it arrives."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import ipywidgets as w

from llmlab.client.client import Client
from llmlab.errors import InvalidParameter, LabError
from llmlab.widgets.client_form import ClientForm
from llmlab.widgets.container import Container
from llmlab.widgets.desk import desk_of
from llmlab.widgets.notice import Notice
from llmlab.widgets.presets import PRESETS, Preset, preset
from llmlab.widgets.stream import Stream
from llmlab.widgets.worker import Worker

OWN = "my own prompt"
CANDIDATES = 20  # of the sampler's, recorded with "look inside"


@dataclass(frozen=True, slots=True)
class Order:
    """What the form asked for, read when the button was pressed."""

    prompts: tuple[str, ...]
    system: str | None
    params: dict[str, Any]
    one_first: bool
    capture: bool
    over_the_wire: bool


class RequestPanel(Container):
    """Prompt, system prompt, sampling and presets; Send and Stop; what comes back. For a lab.

    The buttons only enqueue: requests are sent by a thread of their own, and the engine's thread answers them. A lab
    that is stepped by hand is left to whoever steps it. Raises ``InvalidParameter`` for anything but a lab.
    """

    def __init__(self, lab: Any, *, key: str = "request panel") -> None:
        if not (hasattr(lab, "submit") and hasattr(lab, "engine")):
            raise InvalidParameter(
                f"requests cannot be sent to {type(lab).__name__}: give a lab, as llmlab.open() returns"
            )
        super().__init__(desk_of(lab), key)
        self.lab = lab
        self.worker = Worker(lambda error: self.notice.say(error, error=True))
        self.stream, self.notice = Stream(self.desk), Notice(self.desk)
        self._parts += [self.stream, self.notice]
        self._open: list[Any] = []  # runs that Stop would abort
        self._stops = threading.Event()
        self._build()

    # -- the form -------------------------------------------------------------------------------------------

    def _build(self) -> None:
        own, wide = self._own, {"layout": w.Layout(width="auto")}
        short = {"style": {"description_width": "88px"}}
        knob = short | wide
        self.preset = own(w.Dropdown(options=[OWN, *(each.name for each in PRESETS)], description="preset", **short))
        self.prompt = own(w.Textarea(PRESETS[0].prompts[0], description="prompt", rows=2, **wide, **short))
        self.system = own(w.Text(description="system", placeholder="none", **wide, **short))
        self.max_tokens = own(w.BoundedIntText(60, 1, 4096, description="max_tokens", **knob))
        self.temperature = own(w.FloatText(0.0, step=0.1, description="temperature", **knob))
        self.top_p = own(w.FloatText(1.0, step=0.05, description="top_p", **knob))
        self.top_k = own(w.IntText(0, description="top_k (0: all)", **knob))
        self.seed = own(w.Text(placeholder="any", description="seed", **knob))
        self.stop = own(w.Text(placeholder="none", description="stop", **knob))
        self.capture = own(w.Checkbox(False, description="look inside the model", indent=False))
        self.wire = own(w.Checkbox(False, description="over the wire (Messages API)", indent=False))
        self.send_button = own(w.Button(description="Send", button_style="primary", icon="paper-plane"))
        self.stop_button = own(w.Button(description="Stop", icon="stop"))
        for name in ("prompt", "send_button", "stop_button", "preset"):
            getattr(self, name).add_class(f"llmlab-{name.split('_')[0]}")
        self.send_button.on_click(lambda _: self.send())
        self.stop_button.on_click(lambda _: self.abort())
        self.preset.observe(lambda change: self._fill(change["new"]), "value")
        self.widget = self._arranged()

    def _arranged(self) -> w.Widget:
        own = self._own
        sampling = (self.max_tokens, self.temperature, self.top_p, self.top_k, self.seed, self.stop)
        grid = own(w.GridBox(sampling, layout=w.Layout(grid_template_columns="repeat(3, minmax(0, 1fr))")))
        switches = own(w.HBox([self.send_button, self.stop_button, self.capture, self.wire]))
        rows = [self.preset, self.prompt, self.system, grid, switches, self.notice.widget, self.stream.widget]
        return own(w.VBox(rows))

    def _fill(self, name: str) -> None:
        """The chosen preset's values, to be seen and changed before they are sent."""
        if name == OWN:
            return
        chosen = preset(name)
        self.prompt.value, self.system.value = "\n".join(chosen.prompts), chosen.system
        self.max_tokens.value = chosen.max_tokens
        self.prompt.rows = min(len(chosen.prompts) + 1, 6)
        self.notice.say(f"{len(chosen.prompts)} prompts, one a line. {chosen.look_at}")

    # -- sending --------------------------------------------------------------------------------------------

    def send(self) -> None:
        """Send what the form says; as pressing the button. Mistakes are shown below the form."""
        try:
            order = self._order()
        except LabError as error:
            self.notice.say(str(error), error=True)
            return
        self._stops.clear()
        self.worker.put(lambda: self._carry_out(order))

    def abort(self) -> None:
        """Stop what this form has sent and what it was about to send; as pressing the button."""
        self._stops.set()
        for run in list(self._open):
            run.abort()
        self.notice.say("stopped")

    def _order(self) -> Order:
        chosen, system = self._chosen(), self.system.value or None
        lines = tuple(line for line in self.prompt.value.splitlines() if line.strip())
        prompts = lines if chosen is not None else (self.prompt.value,)
        if chosen is not None and system and not getattr(self.lab.tokenizer, "chat_template", None):
            # a model without roles: the shared beginning is put before each prompt as it is
            prompts, system = tuple(f"{system}\n{prompt}" for prompt in prompts), None
        params = {
            "max_tokens": self.max_tokens.value,
            "temperature": self.temperature.value,
            "top_p": self.top_p.value,
            "top_k": self.top_k.value or None,
            "seed": _seed(self.seed.value),
            "stop": [self.stop.value] if self.stop.value else None,
        }
        given = {name: value for name, value in params.items() if value is not None}
        one_first = chosen is not None and chosen.one_first
        return Order(prompts, system, given, one_first, self.capture.value, self.wire.value)

    def _chosen(self) -> Preset | None:
        return None if self.preset.value == OWN else preset(self.preset.value)

    def _carry_out(self, order: Order) -> None:
        if order.over_the_wire:
            self._send_over_the_wire(order)
            return
        first, rest = order.prompts[:1], order.prompts[1:]
        if order.one_first and rest and self._runs_alone():
            self._submit(replace(order, prompts=first))
            self._wait()
            self._submit(replace(order, prompts=rest))
        else:
            self._submit(order)

    def _runs_alone(self) -> bool:
        """Whether the engine's thread steps, so that waiting here waits for something."""
        return self.lab.engine.is_running and not self.lab.engine.is_paused

    def _wait(self) -> None:
        for run in list(self._open):
            while not run.finished and not self._stops.is_set() and self._runs_alone():
                self._stops.wait(0.02)

    def _submit(self, order: Order) -> None:
        if self._stops.is_set():
            return
        options = order.params | {"system": order.system} | ({"capture": _capture()} if order.capture else {})
        sent, refused = [], []
        with self._together():
            for prompt in order.prompts:
                try:
                    sent.append(self._submit_one(prompt, options))
                except LabError as error:  # the others may fit
                    refused.append(str(error))
        self._open = [run for run in (*self._open, *sent) if not run.finished]
        done = f"sent {', '.join(run.id for run in sent)}" if sent else "nothing was sent"
        self.notice.say("; ".join([done, *dict.fromkeys(refused)]) if refused else done, error=bool(refused))

    @contextmanager
    def _together(self) -> Iterator[None]:
        """The engine rests meanwhile, so that what is sent within arrives before the same step."""
        engine = self.lab.engine
        was_paused = engine.is_paused
        engine.pause()
        try:
            yield
        finally:
            if not was_paused:
                engine.resume()

    def _submit_one(self, prompt: str, options: dict[str, Any]) -> Any:
        with self.desk.pump.lock:  # no event of the run is read before the stream expects it
            run = self.lab.submit(prompt, **options)
            self.stream.expect(run.id, f"{run.id}: {prompt}")
        self.desk.selection.pick({"request": run.id})
        self.desk.pump.hurry()
        return run

    def _send_over_the_wire(self, order: Order) -> None:
        from llmlab.widgets.over_the_wire import Sender

        self.notice.say("connecting: the first time, a server is started")
        sender = Sender(self.lab.client(), self.lab.model, self.stream, self._stops, self._report)
        left_out = sender.send(order.prompts, order.system, order.params)
        ignored = f"; the Messages API has no {', '.join(left_out)}" if left_out else ""
        inside = "; looking inside needs a request that is sent directly" if order.capture else ""
        self.notice.say(f"sent {len(order.prompts)} over the wire to {sender.client.url}{ignored}{inside}")

    def _report(self, error: str) -> None:
        self.notice.say(error, error=True)

    def __repr__(self) -> str:
        return "RequestPanel()"


def request_panel(source: Any, *, key: str = "request panel") -> RequestPanel | ClientForm:
    """A form that sends requests to a lab, or through a client. Raises ``InvalidParameter`` for anything else."""
    return ClientForm(source, key=key) if isinstance(source, Client) else RequestPanel(source, key=key)


def _seed(text: str) -> int | None:
    try:
        return int(text) if text.strip() else None
    except ValueError:
        raise InvalidParameter(f"seed={text!r} must be a whole number, or empty for any") from None


def _capture() -> Any:
    from llmlab.probes.capture import Capture

    return Capture(attention=True, lens=True, distribution=CANDIDATES)
