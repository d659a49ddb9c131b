"""The only writer of live panels: one thread per lab that draws what changed, within a budget."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from time import monotonic, thread_time
from typing import Protocol

from llmlab.trace.events import Event
from llmlab.widgets.budget import Budget
from llmlab.widgets.feed import Feed

PERIOD_S = 0.1
ROUND_S = 0.02  # of drawing in one round: the thread shares the interpreter with the engine
HURRY_S = 0.2  # the same, when the reader has just done something
LEAST_S = 0.05  # between two rounds, whatever the hurry
DUTY = 0.1  # share of one core that drawing may take


class Sink(Protocol):
    """Something on the page that the pump paints."""

    is_visible: bool

    def note(self, events: Sequence[Event]) -> None:
        """New events, each once, also while it is not visible."""

    def prepare(self, feed: Feed) -> int | None:
        """Draw when something changed; the bytes there are to send, ``None`` for nothing. Must not raise."""

    def send(self) -> None:
        """Send what was prepared, as one message."""


class Pump:
    """Reads ``feed`` and paints its sinks in turn.

    A thread of its own, because a cell that blocks the kernel's loop would stop a task; only one, because widgets are
    not safe for two. It runs while a sink is visible. Nothing it does prints: output of a thread lands in whatever
    cell ran last.
    """

    def __init__(self, feed: Feed, budget: Budget | None = None, clock: Callable[[], float] = monotonic) -> None:
        self.feed, self.budget, self.clock = feed, budget or Budget(), clock
        self.lock = threading.RLock()
        self.errors: deque[str] = deque(maxlen=20)  # of sinks that could not be painted and were dropped
        self._sinks: deque[Sink] = deque()
        self._sizes: dict[Sink, int] = {}  # of each sink's last message
        self._hurry = 0  # sinks that are still to show what the reader has just done
        self._stop, self._nudge = threading.Event(), threading.Event()
        self._thread: threading.Thread | None = None

    def __len__(self) -> int:
        return len(self._sinks)

    def add(self, sink: Sink) -> None:
        """Paint ``sink`` now and from now on."""
        with self.lock:
            self._read()
            if sink.prepare(self.feed) is not None:
                sink.send()
            self._sinks.append(sink)
        self.wake()

    def discard(self, sink: Sink) -> None:
        """Paint ``sink`` no more; harmless when it is not known."""
        with self.lock:
            if sink in self._sinks:
                self._sinks.remove(sink)
            self._sizes.pop(sink, None)

    def tick(self) -> int:
        """One round within the budgets; the number of messages sent. Sinks that had no turn come first in the next."""
        with self.lock:
            self._read()
            sent, end = 0, self.clock() + (HURRY_S if self._hurry else ROUND_S)
            for _ in range(len(self._sinks)):
                sink = self._sinks[0]
                # what it sent last says whether there is room, before it is drawn in vain
                if not self.budget.allows(self._sizes.get(sink, 0)) or (sent and self.clock() > end):
                    break
                self._sinks.rotate(-1)
                sent += self._turn(sink)
                self._hurry = max(self._hurry - 1, 0)
            return sent

    def flush(self) -> int:
        """Paint everything that is visible and changed, whatever the budgets say; the number of messages sent."""
        with self.lock:
            self._read()
            return sum(self._turn(sink) for sink in list(self._sinks))

    def _read(self) -> None:
        events = self.feed.read()
        if events:
            for sink in self._sinks:
                sink.note(events)

    def _turn(self, sink: Sink) -> bool:
        try:
            return self._paint(sink)
        except Exception as error:  # its comm is gone, say: the others go on without it
            self.errors.append(f"{type(sink).__name__}: {type(error).__name__}: {error}")
            self.discard(sink)
            return False

    def _paint(self, sink: Sink) -> bool:
        size = sink.prepare(self.feed) if sink.is_visible else None
        if size is None:
            return False
        self._sizes[sink] = size
        self.budget.spend(size)
        sink.send()
        return True

    # -- the thread -----------------------------------------------------------------------------------------

    @property
    def is_running(self) -> bool:
        """Whether the thread paints."""
        return self._thread is not None and self._thread.is_alive()

    def wake(self) -> None:
        """Start the thread when somebody looks and it does not run."""
        with self.lock:
            if self.is_running or not self._is_watched():
                return
            self._stop = threading.Event()
            loop = threading.Thread(target=self._loop, args=(self._stop,), name="llmlab-panels", daemon=True)
            self._thread = loop
            loop.start()

    def hurry(self) -> None:
        """The reader did something: show it on all sinks before resting again."""
        self._hurry = len(self._sinks)
        self.wake()
        self._nudge.set()

    def _is_watched(self) -> bool:
        return any(sink.is_visible for sink in self._sinks)

    def _loop(self, stop: threading.Event) -> None:
        delay = PERIOD_S
        while not stop.wait(LEAST_S):
            self._nudge.wait(delay - LEAST_S)
            self._nudge.clear()
            with self.lock:  # whoever comes after this looks for a thread that is gone
                if stop.is_set() or not self._is_watched():
                    self._thread = None if self._stop is stop else self._thread
                    return
            start = thread_time()
            self.tick()
            delay = PERIOD_S if self._hurry else max(PERIOD_S, (thread_time() - start) / DUTY)

    def close(self) -> None:
        """Paint nothing more; the sinks are left as they are."""
        with self.lock:
            self._stop.set()
            self._nudge.set()
            thread, self._thread = self._thread, None
            self._sinks.clear()
        if thread is not None and thread is not threading.current_thread():
            thread.join(2)
