"""The handle of a submitted request: stream it, wait for it, abort it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Generator, Iterator
from dataclasses import dataclass, field
from time import monotonic, perf_counter_ns
from typing import TYPE_CHECKING, Any

from llmlab.engine.listener import Listener
from llmlab.engine.params import SamplingParams
from llmlab.errors import EngineStopped, LabError

if TYPE_CHECKING:
    from llmlab.engine.engine import Engine
    from llmlab.probes.store import CaptureStore
    from llmlab.trace.captures import Captures
    from llmlab.trace.trace import Trace


SUMMED = ("output_tokens", "recomputed_tokens", "preemptions", "accepted_draft_tokens", "rejected_draft_tokens")
"""Counts that every sample of a run has of its own."""

POLL_S = 0.5
"""Longest time a consumer sleeps before it looks whether the engine is still alive."""


@dataclass(frozen=True, slots=True)
class Delta:
    """What one step added to one sample: text that is safe to show, and the tokens it came from."""

    sample: int
    text: str
    token_ids: tuple[int, ...]
    finished: bool


@dataclass(slots=True)
class Output:
    """One sample of a run. ``logprobs`` and ``top_logprobs`` have one entry per output token when asked for."""

    request_id: str
    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    top_logprobs: list[tuple[tuple[int, float], ...]] = field(default_factory=list)
    stop_reason: str | None = None
    stop_sequence: str | int | None = None
    usage: dict[str, int] = field(default_factory=dict)

    @property
    def finished(self) -> bool:
        """Whether this sample has ended."""
        return self.stop_reason is not None


@dataclass(frozen=True, slots=True)
class Ending:
    """How a sample ended."""

    stop_reason: str
    stop_sequence: str | int | None
    usage: dict[str, int]


@dataclass(slots=True)
class Times:
    """When a run passed its stages, on the clock of the trace (``time.perf_counter_ns()``); ``None`` until it did.

    ``scheduled``: it first took part in a step. ``first_token``, ``last_token``: the engine told of them; with several
    samples these are the first and the last of all. ``ended``: every sample has.
    """

    submitted: int = field(default_factory=perf_counter_ns)
    scheduled: int | None = None
    first_token: int | None = None
    last_token: int | None = None
    ended: int | None = None


class Run:
    """A request in flight. Iterating gives the first sample's text as it becomes safe to show; every iteration
    starts from the beginning, so nothing is lost. ``async for`` and ``await`` work too, and as a context manager an
    unfinished run is aborted on leaving.

    When the engine has no background thread, waiting on a run steps the engine.

    ``num_cached``: prompt tokens that the prefix cache served; ``None`` until the request is admitted, known before
    the first delta can be seen. ``times``: when it passed its stages.
    """

    def __init__(
        self, engine: Engine, request_ids: list[str], prompt_token_ids: list[int], params: SamplingParams
    ) -> None:
        self.id = request_ids[0]
        self.prompt_token_ids = prompt_token_ids
        self.params = params
        self.outputs = [Output(request_id) for request_id in request_ids]
        self.prompt_logprobs: list[tuple[float, tuple[tuple[int, float], ...]]] = []
        self.num_cached: int | None = None
        self.times = Times()
        self.error: LabError | None = None
        self.store: CaptureStore | None = None
        self._engine = engine
        self._deltas: list[Delta] = []
        self._changed = threading.Condition()
        self._listeners: list[Listener] = []

    # -- results --------------------------------------------------------------------------------------------

    @property
    def finished(self) -> bool:
        """Whether every sample has ended."""
        return all(output.finished for output in self.outputs)

    @property
    def text(self) -> str:
        """Text of the first sample so far."""
        return self.outputs[0].text

    @property
    def token_ids(self) -> list[int]:
        """Output token ids of the first sample so far, an ending EOS included."""
        return self.outputs[0].token_ids

    @property
    def stop_reason(self) -> str | None:
        """Why the first sample ended: a value of :class:`~llmlab.engine.request.StopReason`, ``None`` before."""
        return self.outputs[0].stop_reason

    @property
    def usage(self) -> dict[str, int]:
        """Token counts: the prompt's once, output summed over samples. Empty before the first sample ends."""
        ended = [output.usage for output in self.outputs if output.usage]
        if not ended:
            return {}
        return ended[0] | {
            key: sum(usage.get(key, 0) for usage in ended) for key in SUMMED if any(key in usage for usage in ended)
        }

    @property
    def captured(self) -> Captures | None:
        """What was recorded inside the model so far, ``None`` when nothing was asked for. Of several samples: the
        first."""
        return None if self.store is None else self.store.view()

    @property
    def trace(self) -> Trace:
        """The recorded events of this run: its requests and the steps they took part in."""
        return self._engine.trace.for_request(*(output.request_id for output in self.outputs))

    def __repr__(self) -> str:
        state = self.stop_reason or f"{len(self.token_ids)} tokens so far"
        return f"<Run {self.id}: {len(self.prompt_token_ids)} prompt tokens, {state}>"

    # -- waiting --------------------------------------------------------------------------------------------

    def wait(self, timeout: float | None = None) -> Run:
        """Block until every sample has ended. Raises the run's error, or ``TimeoutError`` after ``timeout`` s."""
        deadline = None if timeout is None else monotonic() + timeout
        while not self.finished:
            self._await_change(len(self._deltas), deadline)
        return self._checked()

    def abort(self) -> None:
        """Ask the engine to drop this run before its next step; harmless when it has ended."""
        self._engine.abort(self)

    def deltas(self) -> Iterator[Delta]:
        """Everything that happened, sample by sample, from the beginning; ends when all samples have."""
        cursor = 0
        while True:
            while cursor < len(self._deltas):
                yield self._deltas[cursor]
                cursor += 1
            if self.finished and cursor == len(self._deltas):
                break
            self._await_change(cursor, None)
        self._checked()

    def __iter__(self) -> Iterator[str]:
        for delta in self.deltas():
            if delta.sample == 0 and delta.text:
                yield delta.text

    async def __aiter__(self) -> AsyncIterator[str]:
        async for delta in self.adeltas():
            if delta.sample == 0 and delta.text:
                yield delta.text

    async def adeltas(self) -> AsyncIterator[Delta]:
        """:meth:`deltas` for ``async for``. Needs the engine's background thread, which is started if need be."""
        self._engine.start()
        cursor, listener = 0, Listener(lambda: self._engine.has_failed, POLL_S)
        with self._changed:
            self._listeners.append(listener)
        try:
            while True:
                listener.clear()
                while cursor < len(self._deltas):
                    yield self._deltas[cursor]
                    cursor += 1
                if self.finished and cursor == len(self._deltas):
                    break
                if cursor == len(self._deltas):
                    await listener.wait()
                    self._check_engine()
                else:
                    await asyncio.sleep(0)  # a fast engine must not keep the event loop from its other tasks
            self._checked()
        finally:
            listener.close()
            with self._changed:
                self._listeners.remove(listener)

    def __await__(self) -> Generator[Any, None, Run]:
        return self._finish_async().__await__()

    async def _finish_async(self) -> Run:
        async for _ in self.adeltas():
            pass
        return self

    def __enter__(self) -> Run:
        return self

    def __exit__(self, *_: object) -> None:
        if not self.finished:
            self.abort()

    def _checked(self) -> Run:
        if self.error:
            raise self.error
        return self

    def _await_change(self, seen: int, deadline: float | None) -> None:
        """Return once there are more than ``seen`` deltas; steps the engine itself when nothing else does."""
        left = None if deadline is None else deadline - monotonic()
        if left is not None and left <= 0:
            raise TimeoutError(f"{self!r} did not finish in time; it goes on: wait again, or abort it")
        self._check_engine()
        if not self._engine.is_running:
            self._engine.step()
            return
        with self._changed:
            if len(self._deltas) <= seen and not self.finished:
                self._changed.wait(POLL_S if left is None else min(left, POLL_S))

    def _check_engine(self) -> None:
        if self._engine.has_failed:
            raise EngineStopped(f"the engine's thread ended while {self!r} was open: see its traceback, open another")

    # -- called by the engine -------------------------------------------------------------------------------

    def add(self, delta: Delta, ending: Ending | None = None) -> None:
        """Append a delta, and with it the sample's end, and wake every consumer in threads and event loops."""
        output = self.outputs[delta.sample]
        now = perf_counter_ns()
        with self._changed:
            if delta.token_ids:
                self.times.last_token = now
                if self.times.first_token is None:
                    self.times.first_token = now
            output.text += delta.text
            output.token_ids.extend(delta.token_ids)
            self._deltas.append(delta)
            if ending:
                output.usage, output.stop_sequence = ending.usage, ending.stop_sequence
                if all(other.finished for other in self.outputs if other is not output):
                    self.times.ended = now
                # last: whoever sees the end must find everything before it
                output.stop_reason = ending.stop_reason
            self._changed.notify_all()
            listeners = list(self._listeners)
        for listener in listeners:
            listener.ring()

    def note_scheduled(self, num_cached: int) -> None:
        """The run takes part in a step, with ``num_cached`` prompt tokens from the prefix cache."""
        self.num_cached = num_cached
        if self.times.scheduled is None:
            self.times.scheduled = perf_counter_ns()

    def fail(self, error: LabError) -> None:
        """Keep the first error; it is raised to whoever waits."""
        if self.error is None:
            self.error = error
