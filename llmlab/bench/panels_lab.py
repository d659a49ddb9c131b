"""What live panels cost the engine, and what they send: a lab served with a watched dashboard and without, in turns."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from statistics import median
from threading import Lock, Thread
from time import perf_counter, sleep, thread_time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from llmlab.engine.runner import Capacity, Runner
    from llmlab.lab import Lab

STREAMS = 8
PACE = 500  # tokens per second of all streams, as a step that takes 16 ms gives them
PROMPT = "Stream {number}: how much does looking at this cost? " + "The cache is watched while it fills. " * 4


class PacedRunner:
    """``runner`` with ``step_s`` seconds of rest in every forward pass, as if a device computed meanwhile."""

    def __init__(self, runner: Runner, step_s: float) -> None:
        self._runner, self.step_s = runner, step_s

    @property
    def capacity(self) -> Capacity:
        """The runner's."""
        return self._runner.capacity

    def __getattr__(self, name: str) -> Any:
        return getattr(self._runner, name)

    def forward(self, batch: Any) -> Any:
        """The runner's logits, later; the rest leaves the interpreter to others, as a device's work does."""
        if self.step_s:
            sleep(self.step_s)
        return self._runner.forward(batch)


@dataclass(slots=True)
class Traffic:
    """Messages to the page, counted where they would leave the kernel; ``sizes`` in bytes, packed and signed."""

    sizes: list[int] = field(default_factory=list)
    _lock: Any = field(default_factory=Lock)

    def add(self, size: int) -> None:
        """One more message."""
        with self._lock:
            self.sizes.append(size)


@contextmanager
def counted_comms() -> Iterator[Traffic]:
    """Within, the comms of new widgets pack and sign their messages as a kernel does, and count them.

    What is missing of a kernel's work is the socket, which a thread of its own writes.
    """
    import comm
    from comm.base_comm import BaseComm
    from jupyter_client.session import Session

    session, traffic = Session(key=b"llmlab bench"), Traffic()

    class CountedComm(BaseComm):
        def publish_msg(self, msg_type, data=None, metadata=None, buffers=None, **keys) -> None:
            content = {"data": data or {}, "comm_id": self.comm_id, **keys}
            parts = session.serialize(session.msg(msg_type, content, metadata=metadata))
            traffic.add(sum(map(len, parts)) + sum(memoryview(each).nbytes for each in buffers or ()))

    before, comm.create_comm = comm.create_comm, lambda *args, **kwargs: CountedComm(*args, **kwargs)
    try:
        yield traffic
    finally:
        comm.create_comm = before


@dataclass(slots=True)
class Served:
    """One side of a round: ``tokens`` in ``seconds``; with panels also what they sent, and the ``pump_s`` seconds of
    processor time that drawing took."""

    seconds: float
    tokens: int
    messages: int = 0
    bytes: int = 0
    pump_s: float = 0.0

    @property
    def speed(self) -> float:
        """Output tokens per second."""
        return self.tokens / self.seconds


@dataclass(slots=True)
class Watching:
    """The rounds at one pace: ``headless`` and ``watched`` took turns."""

    step_s: float
    headless: list[Served] = field(default_factory=list)
    watched: list[Served] = field(default_factory=list)

    @property
    def ratio(self) -> float:
        """Speed with panels over speed without: the median over rounds of ratios within a round."""
        return median(w.speed / h.speed for w, h in zip(self.watched, self.headless, strict=True))

    @property
    def messages_per_s(self) -> float:
        """Messages to the page, of the busiest round."""
        return max(each.messages / each.seconds for each in self.watched)

    @property
    def bytes_per_s(self) -> float:
        """Bytes to the page, of the busiest round."""
        return max(each.bytes / each.seconds for each in self.watched)

    @property
    def pump_share(self) -> float:
        """Median share of one core that drawing took."""
        return median(each.pump_s / each.seconds for each in self.watched)


def measure_watching(rounds: int, tokens: int, step_s: float) -> Watching:
    """``STREAMS`` requests of ``tokens`` tokens each, side by side, headless and watched; the first round warms up."""
    found = Watching(step_s)
    with paced_lab(step_s) as lab, counted_comms() as traffic:
        for number in range(rounds + 1):
            sides = [_headless, _watched] if number % 2 else [_watched, _headless]
            done = {side: side(lab, tokens, traffic) for side in sides}
            if number:
                found.headless.append(done[_headless])
                found.watched.append(done[_watched])
    return found


@contextmanager
def paced_lab(step_s: float) -> Iterator[Lab]:
    """A lab on the model without weights whose steps rest ``step_s`` seconds."""
    from llmlab.opening import open

    with open("mock", num_blocks=1024, max_num_seqs=STREAMS, prefix_cache="off") as lab:
        lab.engine.runner = PacedRunner(lab.engine.runner, step_s)
        yield lab


def serve(lab: Lab, tokens: int) -> Served:
    """``STREAMS`` requests at once, waited for."""
    start = perf_counter()
    runs = [lab.submit(PROMPT.format(number=i), max_tokens=tokens, ignore_eos=True) for i in range(STREAMS)]
    served = sum(len(run.wait().token_ids) for run in runs)
    return Served(perf_counter() - start, served)


def _headless(lab: Lab, tokens: int, traffic: Traffic) -> Served:
    return serve(lab, tokens)


def _watched(lab: Lab, tokens: int, traffic: Traffic) -> Served:
    from llmlab.widgets import dashboard

    board = dashboard(lab)
    with _clocked(board.desk.pump) as spent:
        before = len(traffic.sizes)
        served = serve(lab, tokens)
        sent = traffic.sizes[before:]
    served.messages, served.bytes, served.pump_s = len(sent), sum(sent), sum(spent)
    board.close()
    return served


@contextmanager
def _clocked(pump: Any) -> Iterator[list[float]]:
    """The processor time of each of the pump's rounds within, in seconds."""
    spent, tick = [], pump.tick

    def clocked() -> int:
        start = thread_time()
        try:
            return tick()
        finally:
            spent.append(thread_time() - start)

    pump.tick = clocked
    try:
        yield spent
    finally:
        del pump.tick  # the class's own again


def keep_busy(lab: Lab, tokens: int = 256) -> Thread:
    """Serve ``STREAMS`` requests again and again on a thread of its own, as long as the process lives."""

    def loop() -> None:
        while True:
            serve(lab, tokens)

    thread = Thread(target=loop, name="llmlab-bench-traffic", daemon=True)
    thread.start()
    return thread
