"""A server in a process of its own, as one that belongs to somebody else: its address is all that is known of it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import threading
from collections import deque
from typing import Any

from llmlab.errors import LabError

START_S = 240.0
STOP_S = 10.0
LAST_LINES = 20
_ADDRESS = re.compile(r"ANTHROPIC_BASE_URL=(http://\S+)")


class Elsewhere:
    """``llmlab serve`` with these arguments, started by the constructor. Use it as a context manager, or close it.

    It ends with :meth:`close`, and also when this process ends in whatever way: its standard input is a pipe from here,
    and it stops when that closes. Raises ``LabError`` when it does not start.
    """

    def __init__(self, *arguments: str, start_s: float = START_S) -> None:
        command = [sys.executable, "-m", __name__, *arguments, "--port", "0"]
        self._lines: deque[str] = deque(maxlen=LAST_LINES)
        self._found = threading.Event()
        self.url = ""
        pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
        # in a session of its own an interrupt of the notebook does not reach it
        self._process = subprocess.Popen(command, **pipes, encoding="utf-8", start_new_session=True)
        self._reader = threading.Thread(target=self._read, name="llmlab-elsewhere", daemon=True)
        self._reader.start()
        self._wait(start_s)

    @property
    def pid(self) -> int:
        """The process."""
        return self._process.pid

    @property
    def is_running(self) -> bool:
        """Whether it has not ended."""
        return self._process.poll() is None

    def kill(self) -> None:
        """End it at once, in the middle of whatever it does."""
        self._process.kill()
        self._end()

    def close(self) -> None:
        """End it and wait for that; more than once does no harm."""
        if self.is_running:
            self._process.terminate()
            try:
                self._process.wait(STOP_S)
            except subprocess.TimeoutExpired:
                self._process.kill()
        self._end()

    def __enter__(self) -> Elsewhere:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<Server elsewhere: {self.url if self.is_running else 'ended'}>"

    def _read(self) -> None:
        """Read what it says until it ends, so that it never waits for a reader; its address is in there."""
        for line in self._process.stdout:
            self._lines.append(line.rstrip())
            if not self.url and (match := _ADDRESS.search(line)):
                self.url = match[1]
                self._found.set()
        self._found.set()

    def _wait(self, seconds: float) -> None:
        try:
            self._found.wait(seconds)
        finally:
            if not self.url:
                self.kill()
        if not self.url:
            raise LabError("the server did not start: " + (" ".join(self._lines).strip() or "it said nothing"))

    def _end(self) -> None:
        self._process.wait()
        self._reader.join(STOP_S)
        for pipe in (self._process.stdin, self._process.stdout):
            pipe.close()


def server_arguments(model: str, upstream: str = "") -> tuple[str, ...]:
    """Arguments for a server of ``model``, or where ``upstream`` is an address for a gateway before that one.

    Faults on purpose are allowed, and cached tokens are counted without being marked.
    """
    rest = ("--allow-faults", "--drain", "0")
    if upstream:
        return ("--no-engine", "--upstream", upstream, *rest)
    return ("--model", model, "--dtype", "float32", "--cache-accounting", "engine", *rest)


def _end_with_the_pipe() -> None:
    """Wait for the end of standard input, which is the end of whoever started this, and end too."""
    while os.read(0, 1024):  # not through sys.stdin, whose lock would be held when the interpreter ends
        pass
    os._exit(0)


def main() -> None:
    """``llmlab serve`` with this process's arguments, until standard input ends."""
    from llmlab.cli import app

    threading.Thread(target=_end_with_the_pipe, daemon=True).start()
    app(["serve", *sys.argv[1:]], prog_name="llmlab")


if __name__ == "__main__":
    main()
