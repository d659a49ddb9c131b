"""The parent's end of a worker process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from dataclasses import asdict
from typing import Any

from llmlab.bench.job import Hello, Job, Served, Settings
from llmlab.errors import BenchError

SHUTDOWN_S = 60  # it may still be importing torch, on a busy machine


class WorkerProcess:
    """One worker: started and ready when the constructor returns, idle between jobs.

    Use it as a context manager: an error inside kills it, otherwise it ends by itself.

    Raises :class:`~llmlab.errors.BenchError` when it cannot start, fails a job, or dies.
    """

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 - kill() closes it
        self._process = subprocess.Popen(
            [sys.executable, "-m", "llmlab.bench.worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            env=environment(settings.threads),
            encoding="utf-8",
        )
        try:
            self.hello = Hello(**self._exchange(asdict(settings)))
        except BaseException:
            self.kill()
            raise

    def serve(self, job: Job) -> Served:
        """Have the job done."""
        return Served(**self._exchange(asdict(job)))

    def __enter__(self) -> WorkerProcess:
        return self

    def __exit__(self, error_type: type | None, *_: object) -> None:
        if error_type is None:
            self.close()
        else:
            self.kill()

    def close(self) -> None:
        """Let the worker end by itself; kill it if it does not."""
        try:
            self._process.stdin.close()
            self._process.wait(SHUTDOWN_S)
        except (OSError, subprocess.TimeoutExpired):
            pass
        self.kill()

    def kill(self) -> None:
        """End the worker whatever it is doing; harmless when it has ended."""
        self._process.kill()
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout, self._log):
            try:
                stream.close()
            except OSError:
                continue  # unsent input of a dead worker

    def _exchange(self, message: dict[str, Any]) -> dict[str, Any]:
        try:
            self._process.stdin.write(json.dumps(message) + "\n")
            self._process.stdin.flush()
            line = self._process.stdout.readline()
        except OSError:
            line = ""
        answer = json.loads(line) if line else {"error": f"the worker died: {self._last_words()}"}
        if "ok" not in answer:
            raise BenchError(f"contender {self.settings.contender} ({self.settings.dtype}): {answer['error']}")
        return answer["ok"]

    def _last_words(self) -> str:
        """The last line it wrote to its standard error, and its exit status."""
        status = self._process.wait()
        self._log.seek(0)
        lines = self._log.read().decode("utf-8", errors="replace").strip().splitlines()
        return f"{lines[-1] if lines else 'it said nothing'} (exit status {status})"


def environment(threads: int) -> dict[str, str]:
    """This process's environment with every thread pool limited to ``threads``."""
    limits = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
    return {**os.environ, **dict.fromkeys(limits, str(threads)), "TOKENIZERS_PARALLELISM": "false"}
