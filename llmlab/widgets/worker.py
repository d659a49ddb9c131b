"""Commands of the page, carried out one after the other on a thread of their own."""

from __future__ import annotations

import threading
from collections.abc import Callable
from queue import Empty, SimpleQueue

from llmlab.errors import LabError

IDLE_S = 2.0


class Worker:
    """Callbacks of widgets may run on any thread, within a message or late: they only :meth:`put` a command here.

    An error goes to ``report`` as one line. The thread ends when there was nothing to do for a while.
    """

    def __init__(self, report: Callable[[str], None]) -> None:
        self._report = report
        self._commands: SimpleQueue[Callable[[], None]] = SimpleQueue()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None

    def put(self, command: Callable[[], None]) -> None:
        """Carry out ``command`` soon."""
        with self._lock:
            self._commands.put(command)
            if self._thread is None:
                self._thread = threading.Thread(target=self._loop, name="llmlab-commands", daemon=True)
                self._thread.start()

    def wait(self, timeout: float = 30.0) -> None:
        """Wait until all that was put before has been carried out. Raises ``TimeoutError``."""
        done = threading.Event()
        self.put(done.set)
        if not done.wait(timeout):
            raise TimeoutError("the commands before did not finish in time")

    def _loop(self) -> None:
        while True:
            try:
                command = self._commands.get(timeout=IDLE_S)
            except Empty:
                with self._lock:  # a command put now starts the next thread
                    if self._commands.empty():
                        self._thread = None
                        return
                continue
            self._carry_out(command)

    def _carry_out(self, command: Callable[[], None]) -> None:
        try:
            command()
        except LabError as error:
            self._report(str(error))
        except Exception as error:  # shown to the reader; the next command goes on
            self._report(f"{type(error).__name__}: {error}")
