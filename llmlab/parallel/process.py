"""A process of ours: started, talked to, noticed when it dies, and ended on every path."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import site
import subprocess
import sys
import sysconfig
import tempfile
import threading
import weakref
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any, BinaryIO

from llmlab.errors import RankFailed
from llmlab.parallel.channel import write

END_S = 5.0
"""How long a process may take to end before it is killed."""
TAIL = 1000
"""Characters of a dead process's last words that are told."""


class NoAnswer(RankFailed):
    """A process that seems to live said nothing in the time it was given."""


class WorkerProcess:
    """``python -m module arguments`` with a :class:`~llmlab.parallel.channel.Channel` on its other side.

    ``name`` is what errors call it. It is a fresh interpreter, not a fork, so it can be started from a notebook whose
    torch already runs threads. It ends with :meth:`close`, with this object, and with this process. ``threads`` are
    those of torch there. Any thread may call any method, but one at a time may wait for messages.
    """

    def __init__(
        self, module: str, *arguments: str, name: str, threads: int = 1, environment: Mapping[str, str] | None = None
    ) -> None:
        self.name = name
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 (closed by close)
        self._process = subprocess.Popen(
            # -P: a file of the user's folder must not stand in for a module of the library
            [sys.executable, "-P", "-m", module, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            env={**importable(), "OMP_NUM_THREADS": str(threads), **(environment or {})},
            start_new_session=True,
        )
        self._messages: queue.SimpleQueue[dict[str, Any] | None] = queue.SimpleQueue()
        listener = (self._process.stdout, self._messages)
        threading.Thread(target=_listen, args=listener, name=f"llmlab-{name}", daemon=True).start()
        self._end = weakref.finalize(self, end, self._process)

    @property
    def pid(self) -> int:
        """Its number."""
        return self._process.pid

    @property
    def is_alive(self) -> bool:
        """Whether it still runs."""
        return self._process.poll() is None

    def send(self, message: dict[str, Any]) -> None:
        """Tell it. Raises ``RankFailed`` when it is gone."""
        try:
            write(self._process.stdin, message)
        except (OSError, ValueError) as error:
            raise self.failure() from error

    def receive(self, timeout_s: float | None = None) -> dict[str, Any]:
        """Its next message. Raises ``RankFailed`` when it is gone, told an error, or said nothing for ``timeout_s``."""
        try:
            message = self._messages.get(timeout=timeout_s)
        except queue.Empty:
            raise NoAnswer(f"{self.name} (process {self.pid}) said nothing for {timeout_s:g} s") from None
        if message is None:
            self._messages.put(None)  # for whoever asks again
            raise self.failure()
        if problem := message.get("error"):
            raise RankFailed(f"{self.name} failed: {problem}")
        return message

    def failure(self) -> RankFailed:
        """How it ended, in words."""
        try:
            code = self._process.wait(END_S)
        except subprocess.TimeoutExpired:
            return RankFailed(f"{self.name} (process {self.pid}) does not answer any more")
        how = f"was ended by signal {-code}" if code < 0 else f"ended with code {code}"
        words = last_words(self._errors)
        return RankFailed(f"{self.name} (process {self.pid}) {how}{': ' + words if words else ''}")

    def close(self) -> None:
        """End it; returns when it is gone. Harmless when it is."""
        self._end()
        self._errors.close()


def importable() -> dict[str, str]:
    """The environment of a process that imports this very package, also where it is not installed."""
    environment = {**os.environ, "TOKENIZERS_PARALLELISM": "false"}
    root = str(Path(__file__).parents[2])
    if root not in {sysconfig.get_path("purelib"), sysconfig.get_path("platlib"), *_site_folders()}:
        environment["PYTHONPATH"] = os.pathsep.join(filter(None, [os.environ.get("PYTHONPATH"), root]))
    return environment


def _site_folders() -> list[str]:
    return [*site.getsitepackages(), site.getusersitepackages()]


def _listen(stdout: BinaryIO, messages: queue.SimpleQueue) -> None:
    """Pass messages on until the process ends; ``None`` says that it has. Holds no reference to the object."""
    with stdout:
        for line in stdout:
            try:
                messages.put(json.loads(line))
            except ValueError:
                break  # cut off in the middle of a line
    messages.put(None)


def last_words(errors: IO[bytes]) -> str:
    """The end of what a process that has ended wrote into this file."""
    try:
        errors.seek(0)
        return errors.read().decode(errors="replace").strip()[-TAIL:]
    except (OSError, ValueError):
        return ""


def end(process: subprocess.Popen) -> None:
    """Close its input, which ends it; kill it when it does not listen."""
    with contextlib.suppress(OSError):  # a message that it will never read was still in the buffer
        process.stdin.close()
    try:
        process.wait(END_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
