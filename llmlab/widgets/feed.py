"""What panels draw from: the recent events of a recorder, or a trace, up to the step being looked at."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Protocol

from llmlab.errors import InvalidParameter
from llmlab.trace.events import Event, Gap, Step
from llmlab.trace.recorder import Recorder
from llmlab.trace.trace import Trace
from llmlab.widgets.window import Window


class Feed(Protocol):
    """``version`` changes when :meth:`trace` would give something else; ``lost`` counts events that are
    gone.

    ``until`` is the step being looked at, ``None`` for the end.
    """

    is_live: bool
    version: int
    lost: int
    until: int | None

    def read(self) -> Sequence[Event]:
        """What was recorded since the last call."""

    def trace(self) -> Trace:
        """The events as a trace, as they stood after step ``until``."""

    def whole(self) -> Trace:
        """The events as a trace, whatever step is being looked at."""

    def seek(self, step: int | None) -> None:
        """Look at the moment after ``step``. Raises ``InvalidParameter`` for a step that is not there."""

    def steps(self) -> tuple[int, int] | None:
        """First and last step that can be looked at."""


class _Seeking:
    """Looking back, for both kinds of feed. Any thread may seek while the pump reads."""

    def __init__(self) -> None:
        self.version, self.lost = 0, 0
        self.until: int | None = None
        self._lock = threading.RLock()
        self._cut: tuple[tuple[int, int | None], Trace] | None = None

    def seek(self, step: int | None) -> None:
        with self._lock:
            if step is not None and self._step(step) is None:
                bounds = self.steps()
                known = "there is none yet" if bounds is None else f"choose {bounds[0]} to {bounds[1]}"
                raise InvalidParameter(f"step={step!r} is not recorded: {known}")
            if step != self.until:
                self.until = step
                self.version += 1

    def steps(self) -> tuple[int, int] | None:
        steps = self.whole().index.steps
        return (steps[0].step, steps[-1].step) if steps else None

    def trace(self) -> Trace:
        with self._lock:
            whole = self.whole()
            step = None if self.until is None else self._step(self.until)
            if step is None:  # the end, or a step that has left the window meanwhile
                return whole
            key = (self.version, self.until)
            if self._cut is None or self._cut[0] != key:
                self._cut = key, until(whole, step)
            return self._cut[1]

    def _step(self, number: int) -> Step | None:
        index = self.whole().index
        if not -(2**63) <= number < 2**63:
            return None
        place = int(index.step_index([number])[0])
        return index.steps[place] if place >= 0 else None


class LiveFeed(_Seeking):
    """A window on what ``recorder`` holds; ``make`` turns events into a trace."""

    is_live = True

    def __init__(self, recorder: Recorder, make: Callable[[Sequence[Event]], Trace] = Trace) -> None:
        super().__init__()
        self._recorder, self.make = recorder, make
        self._window, self._cursor = Window(), 0
        self._whole: tuple[int, Trace] | None = None

    def read(self) -> Sequence[Event]:
        with self._lock:
            events, self._cursor = self._recorder.read_since(self._cursor)
            if events:
                self._window.extend(events)
                self.lost += sum(event.dropped for event in events if type(event) is Gap)
                self.version += 1
            return events

    def whole(self) -> Trace:
        with self._lock:
            if self._whole is None or self._whole[0] != self._window.count:
                self._whole = self._window.count, self.make(self._window.events())
            return self._whole[1]


class ReplayFeed(_Seeking):
    """A recorded trace."""

    is_live = False

    def __init__(self, trace: Trace) -> None:
        super().__init__()
        self._trace = trace
        self.lost = sum(gap.dropped for gap in trace.index.gaps)

    def read(self) -> Sequence[Event]:
        return ()

    def whole(self) -> Trace:
        return self._trace


def until(trace: Trace, step: Step) -> Trace:
    """The part of ``trace`` that had been recorded when ``step`` ended."""
    events = [event for event in trace.events if event.t_ns <= step.end_ns]
    return Trace(events, trace.only, trace.arrays, trace.pieces)
