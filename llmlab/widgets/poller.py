"""Asking a server for its metrics again and again, on a thread of its own."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable

from llmlab.client.metrics import scrape
from llmlab.errors import LabError
from llmlab.trace.readings import Reading
from llmlab.views.server_metrics import MAX_READINGS

PERIOD_S, TIMEOUT_S = 1.0, 2.0


class Poller:
    """Calls :func:`~llmlab.client.metrics.scrape` for ``url`` every ``period_s`` seconds while ``is_wanted()``.

    The last readings are kept, and in ``error`` what went wrong the last time. ``version`` changes with each of them.
    It asks until :meth:`stop`; a server that does not answer is asked no faster.
    """

    def __init__(self, url: str, is_wanted: Callable[[], bool] = lambda: True, *, period_s: float = PERIOD_S) -> None:
        self.url, self.is_wanted, self.period_s = url, is_wanted, period_s
        self.error, self.version = "", 0
        self._readings: deque[Reading] = deque(maxlen=MAX_READINGS)
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    @property
    def readings(self) -> list[Reading]:
        """What was read, in order."""
        with self._lock:
            return list(self._readings)

    @property
    def is_running(self) -> bool:
        """Whether the thread asks."""
        return self._thread is not None and self._thread.is_alive()

    def start(self) -> None:
        """Begin to ask; once."""
        self._thread = threading.Thread(target=self._loop, name="llmlab-metrics", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Ask no more; the thread ends by itself, at the latest when its request does."""
        self._stop.set()

    def ask(self) -> None:
        """Ask once, now."""
        try:
            reading, error = scrape(self.url, timeout_s=TIMEOUT_S), ""
        except LabError as failure:
            reading, error = None, str(failure)
        with self._lock:
            if reading is not None:
                self._readings.append(reading)
            if reading is not None or error != self.error:
                self.version += 1
            self.error = error

    def _loop(self) -> None:
        while not self._stop.is_set():
            if self.is_wanted():
                self.ask()
            self._stop.wait(self.period_s)
