"""Communication between the processes of a group, counted and timed."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from time import perf_counter_ns
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from llmlab.trace.split_events import Collective, RankWork

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup, Work

TIMEOUT = timedelta(minutes=10)
"""A process that is gone is noticed at once, because its connection closes: this is for one that hangs."""


def join(folder: str | Path, rank: int, size: int, backend: str = "gloo") -> ProcessGroup:
    """Join the group of ``size`` processes that meet in ``folder``; blocks until all are there.

    ``folder`` must be private to the user: it holds the addresses at which the processes listen, all on this machine's
    loopback. ``backend`` is ``gloo`` (CPU) or ``nccl`` (one CUDA device per process). The group is an object of its
    own, so a process can be in several, and torch's default group stays free.
    """
    import torch.distributed as dist

    store = dist.FileStore(str(Path(folder) / "store"), size)
    if backend == "nccl":
        options = dist.ProcessGroupNCCL.Options()
        options._timeout = TIMEOUT
        return dist.ProcessGroupNCCL(store, rank, size, options)
    options = dist.ProcessGroupGloo._Options()
    options._devices = [dist.ProcessGroupGloo.create_device(hostname="127.0.0.1")]
    options._timeout = TIMEOUT
    return dist.ProcessGroupGloo(store, rank, size, options)


class Comm:
    """One process's place in a group: ``rank`` of ``size`` processes, which do ``role`` together.

    Every communication becomes a :class:`~llmlab.trace.split_events.Collective` in :attr:`events` while ``recording``;
    ``step`` is the step it is recorded for. ``layer`` (-1: outside the layers) and ``place`` say where in the model it
    happens. All processes of a group must call the same methods in the same order. A group of one process needs no
    ``process_group`` and communicates nothing.
    """

    def __init__(self, rank: int, size: int, role: str, process_group: ProcessGroup | None = None) -> None:
        assert 0 <= rank < size
        assert size == 1 or process_group is not None
        self.rank, self.size, self.role = rank, size, role
        self.step, self.recording = 0, True
        self.events: list[Collective | RankWork] = []
        self._group = process_group

    # -- collectives ------------------------------------------------------------------------------------------

    def all_reduce(self, tensor: Tensor, layer: int, place: str) -> Tensor:
        """Sum ``tensor`` over all processes, in place; returns it. The message is the whole tensor."""
        start = perf_counter_ns()
        if self.size > 1:
            self._group.allreduce([tensor]).wait()
        self.note("all_reduce", start, layer, place, tensor.nbytes)
        return tensor

    def all_gather(self, tensor: Tensor, layer: int, place: str) -> list[Tensor]:
        """Every process's ``tensor`` (all of one shape), in order of rank. The message is the own tensor."""
        start = perf_counter_ns()
        parts = [tensor]
        if self.size > 1:
            parts = [torch.empty_like(tensor) for _ in range(self.size)]
            self._group.allgather([parts], [tensor.contiguous()]).wait()
        self.note("all_gather", start, layer, place, tensor.nbytes)
        return parts

    def all_to_all(self, parts: Sequence[Tensor], counts: Sequence[int], layer: int, place: str) -> list[Tensor]:
        """Give ``parts[r]`` ``(n, ...)`` to process ``r`` and get what the others have for this one, by rank.

        ``counts[r]`` is how many rows come from process ``r``; :meth:`exchange_counts` finds it out where it is not
        known. Rows have one shape and dtype everywhere. The message is what leaves: the own part does not.
        """
        start = perf_counter_ns()
        sent = torch.cat(list(parts))
        received = sent.new_empty(sum(counts), *sent.shape[1:])
        if self.size > 1:
            self._group.alltoall_base(received, sent, list(counts), [len(part) for part in parts]).wait()
        else:
            received.copy_(sent)
        self.note("all_to_all", start, layer, place, sent.nbytes - parts[self.rank].nbytes)
        return list(received.split(list(counts)))

    def exchange_counts(self, counts: Sequence[int], layer: int, place: str = "counts") -> list[int]:
        """Tell every process ``r`` the number ``counts[r]``; returns what the others told this one, by rank."""
        told = self.all_to_all(list(torch.tensor(counts).split(1)), [1] * self.size, layer, place)
        return torch.cat(told).tolist()

    def broadcast(self, tensor: Tensor, root: int, layer: int, place: str) -> Tensor:
        """Fill ``tensor`` everywhere with that of process ``root``, in place; returns it."""
        import torch.distributed as dist

        start = perf_counter_ns()
        if self.size > 1:
            options = dist.BroadcastOptions()
            options.rootRank = root
            self._group.broadcast([tensor], options).wait()
        self.note("broadcast", start, layer, place, tensor.nbytes)
        return tensor

    # -- point to point ---------------------------------------------------------------------------------------

    def send(self, tensor: Tensor, to: int, layer: int, place: str, tag: int = 0) -> Sent:
        """Begin to send; returns at once. Wait on what is returned before the step ends: it keeps the tensor alive."""
        start = perf_counter_ns()
        tensor = tensor.contiguous()
        work = self._group.send([tensor], to, tag)
        self.note("send", start, layer, place, tensor.nbytes)
        return Sent(work, tensor)

    def receive(self, tensor: Tensor, source: int, layer: int, place: str, tag: int = 0) -> Tensor:
        """Fill ``tensor`` with what process ``source`` sent under ``tag``; returns it. Waits until it is there."""
        start = perf_counter_ns()
        self._group.recv([tensor], source, tag).wait()
        self.note("receive", start, layer, place, tensor.nbytes)
        return tensor

    # -- what happened ----------------------------------------------------------------------------------------

    def note(self, kind: str, start: int, layer: int, place: str, nbytes: int) -> None:
        """Record a communication that began at ``start`` (ns) and ends now."""
        if self.recording:
            end = perf_counter_ns()
            place_in_group = (self.step, self.rank, self.role)
            self.events.append(Collective(start, end, *place_in_group, kind, layer, place, nbytes, self.size))

    def note_work(self, name: str, start: int, num_tokens: int, micro_batch: int, first: int, last: int) -> None:
        """Record that this process computed (``forward``) or stood still (``wait``) from ``start`` (ns) until now."""
        if self.recording:
            end = perf_counter_ns()
            who = (self.step, self.rank, self.role)
            self.events.append(RankWork(start, end, *who, name, micro_batch, first, last, num_tokens))

    def take_events(self) -> list[Collective | RankWork]:
        """What was recorded since the last call, each event once."""
        events, self.events = self.events, []
        return events


class Sent:
    """A message under way."""

    def __init__(self, work: Work, tensor: Tensor) -> None:
        self._work, self._tensor = work, tensor

    def wait(self) -> None:
        """Return when the message has left."""
        self._work.wait()
