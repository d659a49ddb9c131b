"""The engine step by step: pause it, step it, look at what each step did, and go back."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import ipywidgets as w

from llmlab.errors import InvalidParameter
from llmlab.widgets.asking import RequestPanel
from llmlab.widgets.container import Container
from llmlab.widgets.desk import desk_of
from llmlab.widgets.notice import Notice
from llmlab.widgets.panel import Panel
from llmlab.widgets.scrub import Scrub
from llmlab.widgets.worker import Worker

PANELS = ("batch_lanes", "step_timeline", "block_map", "token_strip")
MAX_STEPS = 10_000


class Debugger(Container):
    """Pause, step and resume a lab's or engine's steps; all panels show the step that was taken, or one gone back to.

    The engine is paused while this is open, unless ``paused=False``; :meth:`close` lets it go on as before. Raises
    ``InvalidParameter`` for a source without an engine.
    """

    def __init__(
        self, source: Any, panels: Iterable[Any] = PANELS, *, paused: bool = True, key: str = "debugger"
    ) -> None:
        engine = desk_of(source).engine
        if not hasattr(engine, "step"):
            raise InvalidParameter(
                f"{type(source).__name__} has no engine to step: give a lab, or dashboard(trace) to look back"
            )
        super().__init__(desk_of(source), key)
        self.engine = engine
        self._was_paused = engine.is_paused
        self.worker = Worker(lambda error: self.notice.say(error, error=True))
        self.scrub, self.notice = Scrub(self.desk), Notice(self.desk)
        self._parts += [self.scrub, self.notice]
        self._is_stopping = False
        self._build(source, tuple(panels))
        if paused:
            engine.pause()
        self._tell("ready")

    def _build(self, source: Any, panels: tuple[Any, ...]) -> None:
        own = self._own
        buttons = {
            "pause": ("Pause", "pause", self.pause),
            "resume": ("Resume", "play", self.resume),
            "step": ("Step", "step-forward", self.step),
            "run": ("Run N steps", "fast-forward", lambda: self.step(self.count.value)),
        }
        self.count = own(w.BoundedIntText(10, 1, MAX_STEPS, layout=w.Layout(width="80px")))
        self.buttons = {name: own(w.Button(description=text, icon=icon)) for name, (text, icon, _) in buttons.items()}
        for name, (_, _, act) in buttons.items():
            self.buttons[name].add_class(f"llmlab-{name}")
            self.buttons[name].on_click(lambda _, act=act: act())
        self.form = RequestPanel(source, key=f"{id(self)} form") if hasattr(source, "submit") else None
        self.panels = tuple(Panel(view, self.desk, register=False) for view in panels)
        top = [] if self.form is None else [self.form.widget]
        self._parts += [] if self.form is None else [self.form]
        bar = own(w.HBox([*self.buttons.values(), self.count]))
        shown = [panel.widget for panel in self.panels]
        self.widget = own(w.VBox([*top, bar, self.notice.widget, self.scrub.widget, *shown]))

    # -- what the buttons do: enqueue -----------------------------------------------------------------------

    def pause(self) -> None:
        """Pause after the step under way, and after a run of steps begun here."""
        self._is_stopping = True
        self.worker.put(self._pause)

    def resume(self) -> None:
        """Let the engine's own thread step."""
        self.worker.put(self._resume)

    def step(self, count: int = 1) -> None:
        """Take ``count`` steps, fewer when there is nothing left to do; the engine stays paused."""
        self._is_stopping = False
        self.worker.put(lambda: self._step(count))

    def _pause(self) -> None:
        self.engine.pause()
        self._tell("paused")

    def _resume(self) -> None:
        self.scrub.seek(None)
        self.engine.resume()
        if self.engine.is_running:
            self._tell("the engine steps by itself")
        else:
            self._tell("this engine has no thread of its own: step it here, or engine.start() it")

    def _step(self, count: int) -> None:
        self.engine.pause()
        self.scrub.seek(None)
        taken = 0
        while taken < count and not self._is_stopping and self.engine.step():
            taken += 1
        with self.desk.pump.lock:
            self.desk.feed.read()
            bounds = self.desk.feed.steps()
        if taken and bounds:
            self.desk.selection.pick({"step": bounds[1]})
            self.desk.pump.hurry()
        if taken < count and not self._is_stopping:
            self._tell(f"{taken} steps taken; nothing is left to do: send a request")
        else:
            self._tell(f"{taken} steps taken" if taken != 1 else "1 step taken")

    def _tell(self, text: str) -> None:
        scheduler = self.engine.scheduler
        queues = f"{len(scheduler.running)} running, {len(scheduler.waiting)} waiting"
        self.notice.say(f"{'paused' if self.engine.is_paused else 'running'} · {queues} · {text}")

    def close(self) -> None:
        """Close the panels, and let the engine go on as it did before."""
        if not self._is_closed and not self._was_paused:
            self.engine.resume()
        self._is_stopping = True
        super().close()


def debugger(source: Any, panels: Iterable[Any] = PANELS, *, paused: bool = True, key: str = "debugger") -> Debugger:
    """A step debugger for a lab or an engine; see :class:`Debugger`."""
    return Debugger(source, panels, paused=paused, key=key)
