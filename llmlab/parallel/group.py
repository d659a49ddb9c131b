"""The processes of a divided model, as rank 0 sees them."""

from __future__ import annotations

import tempfile
from types import MappingProxyType
from typing import Any

from llmlab.errors import RankFailed
from llmlab.parallel.process import NoAnswer, WorkerProcess
from llmlab.trace.split_events import Collective, RankWork

GRACE_S = 1.0
"""How long a process that lost its connection may take to say so."""
EVENTS = MappingProxyType({kind.__name__: kind for kind in (RankWork, Collective)})


class RankGroup:
    """Ranks 1 to ``size - 1``, each a process of its own on this machine; this process is rank 0.

    They end with :meth:`close`, with this object, and with this process. After any failure the group is closed: what
    the others were in the middle of cannot be known.
    """

    def __init__(self, size: int, role: str, threads: int = 1, module: str = "llmlab.parallel.worker") -> None:
        self.size, self.role, self.is_closed = size, role, False
        self._folder = tempfile.TemporaryDirectory(prefix="llmlab-ranks-")  # for this user only
        self.workers: list[WorkerProcess] = []
        try:
            for rank in range(1, size):
                self.workers.append(WorkerProcess(module, name=f"rank {rank} of {size} ({role})", threads=threads))
        except BaseException:
            self.close()
            raise

    @property
    def folder(self) -> str:
        """Where the processes meet; private to the user."""
        return self._folder.name

    @property
    def pids(self) -> list[int]:
        """Numbers of the processes, by rank from 1 on."""
        return [worker.pid for worker in self.workers]

    def tell(self, message: dict[str, Any]) -> None:
        """Send one message to every rank, with its ``rank`` in it. Raises ``RankFailed``."""
        for rank, worker in enumerate(self.workers, start=1):
            worker.send({**message, "rank": rank})

    def answers(self) -> list[dict[str, Any]]:
        """One answer of every rank, in order of rank. Raises ``RankFailed``."""
        return [worker.receive() for worker in self.workers]

    def blame(self, error: BaseException) -> RankFailed:
        """Why a communication failed: what the rank that failed first says, or else the error itself."""
        found = [failure for worker in self.workers if (failure := _failure_of(worker)) is not None]
        # a rank that lost its connection failed because another one did
        found.sort(key=lambda failure: "onnection" in str(failure))
        if found:
            return found[0]
        return RankFailed(f"the processes of {self.role} parallel lost each other: {type(error).__name__}: {error}")

    def close(self) -> None:
        """End all processes; returns when they are gone. Harmless when they are."""
        self.is_closed = True
        for worker in self.workers:
            worker.close()
        self._folder.cleanup()


def _failure_of(worker: WorkerProcess) -> RankFailed | None:
    """What a rank that is ending says about it; ``None`` when it goes on."""
    try:
        while True:  # answers of a step that it finished may lie before
            worker.receive(timeout_s=GRACE_S)
    except NoAnswer:
        return None
    except RankFailed as failure:
        return failure


def events_of(answer: dict[str, Any]) -> list[RankWork | Collective]:
    """What a rank recorded, with its own times: all processes of a machine share the clock."""
    return [EVENTS[name](*values) for name, *values in answer["events"]]
