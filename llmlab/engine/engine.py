"""The step loop and the requests it serves."""

from __future__ import annotations

import atexit
import secrets
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import replace
from itertools import count
from time import perf_counter_ns
from typing import TYPE_CHECKING

from llmlab.engine.admission import check_prompt, resolve_max_tokens
from llmlab.engine.blocks import BlockPool, PrefixCache
from llmlab.engine.constraint import Constraint
from llmlab.engine.detokenizer import Detokenizer
from llmlab.engine.host_copies import open_host
from llmlab.engine.info import engine_info
from llmlab.engine.journal import Journal
from llmlab.engine.params import SamplingParams
from llmlab.engine.request import Request, Status, StopReason
from llmlab.engine.run import POLL_S, Delta, Ending, Run
from llmlab.engine.runner import Runner
from llmlab.engine.scheduler import Scheduler, SchedulerConfig
from llmlab.engine.sequence import Sequence
from llmlab.engine.speculative.build import make_speculator
from llmlab.engine.speculative.config import Speculation
from llmlab.engine.step import StepExecutor
from llmlab.engine.swap_policy import Swapping
from llmlab.errors import EngineStopped, InvalidParameter, LabError
from llmlab.models.token_bytes import TokenPieces
from llmlab.trace.events import Event, RequestFinished, RequestSubmitted
from llmlab.trace.recorder import Recorder
from llmlab.trace.trace import Trace

if TYPE_CHECKING:
    from llmlab.probes.capture import Capture
    from llmlab.probes.intervene import Intervention
    from llmlab.probes.store import CaptureStore, Shelf

STEP_END_S = 0.25
"""Longest time the trace waits for a step under way to be recorded."""


class Engine:
    """Serves requests on one runner. ``submit`` and ``abort`` may be called from any thread.

    Either hand-step it with :meth:`step`, or :meth:`start` one background thread. Commands from other threads wait
    in an inbox until the next step, so scheduler and pool are only ever touched by the thread that steps.
    """

    scheduler_type = Scheduler

    def __init__(
        self,
        runner: Runner,
        tokenizer,
        *,
        eos_token_ids: tuple[int, ...] = (),
        config: SchedulerConfig | None = None,
        prefix_cache: PrefixCache | bool = True,
        recorder: Recorder | None = None,
        speculation: Speculation | None = None,
        host_blocks: int = 0,
        swap: Swapping = "auto",
    ) -> None:
        self.runner, self.tokenizer = runner, tokenizer
        self.eos_token_ids = eos_token_ids
        self.capacity = runner.capacity
        self.recorder = Recorder() if recorder is None else recorder
        self.journal = Journal(self.recorder)
        self.pool = BlockPool(
            self.capacity.num_blocks,
            self.capacity.block_size,
            prefix_cache=prefix_cache,
            journal=self.journal,
            host=open_host(runner, host_blocks, swap),
        )
        self.scheduler = self.scheduler_type(self.pool, config or SchedulerConfig(), self.journal)
        self.speculator = None if speculation is None else make_speculator(speculation, self)
        self.recorder.emit(engine_info(self))
        self._pieces = TokenPieces(tokenizer)
        self._sequences: dict[str, Sequence] = {}
        self._open_ids: set[str] = set()
        self._closed = False
        self._shelf: Shelf | None = None  # arrays that probes recorded, made with the first of them
        self._inbox: deque[Callable[[], None]] = deque()
        self._ids, self._arrivals = count(), count()
        self._step_lock, self._wake = threading.RLock(), threading.Event()
        self._thread_lock = threading.Lock()  # guards (_thread, _stopping), _closed and _open_ids
        self._thread: threading.Thread | None = None
        self._stopping = threading.Event()
        self._paused = False
        self._executor = StepExecutor(self)
        # a thread still inside torch when the interpreter ends would bring the process down
        atexit.register(_stop_if_alive, weakref.ref(self))

    # -- requests -------------------------------------------------------------------------------------------

    def new_id(self) -> str:
        """An id no other open request of this engine has."""
        return next(name for i in self._ids if (name := f"r{i}") not in self._open_ids)

    def submit(
        self,
        prompt_token_ids: list[int],
        params: SamplingParams | None = None,
        *,
        priority: int = 0,
        prompt: str | None = None,
        request_id: str | None = None,
        constraint: Callable[[], Constraint] | None = None,
        capture: Capture | None = None,
        intervene: Intervention | Iterable[Intervention] = (),
    ) -> Run:
        """Queue a prompt. Lower ``priority`` goes first, then first come, first served.

        ``capture`` says what to record inside the model (:class:`~llmlab.probes.capture.Capture`), ``intervene`` what
        to change in it (:mod:`llmlab.probes.intervene`), for this request only.

        A ``request_id`` of your own should be used once, or the trace cannot tell the requests apart. ``constraint``
        is called here, once for every sample, to make what will steer that sample's tokens.

        Raises ``EmptyPrompt``, ``InvalidParameter``, ``ContextOverflow`` or ``PoolTooSmall``, or what ``constraint``
        raises; nothing is queued then.
        """
        if self._closed:
            raise EngineStopped("the engine is closed: open another")
        params = params or SamplingParams()
        params.check_vocab(self.capacity.vocab_size)
        ids = check_prompt(prompt_token_ids, self.capacity)
        max_tokens = resolve_max_tokens(len(ids), params, self.capacity)
        if type(priority) is not int or abs(priority) >= 2**63:
            raise InvalidParameter(f"priority={priority!r} must be an integer of 64 bits; lower goes first")
        first = request_id or self.new_id()
        requests = self._make_requests(first, ids, params, max_tokens, priority)
        if capture is not None or intervene:
            self._attach_probes(requests, capture, intervene)
        self.scheduler.check_fits(requests[0])
        names = [request.id for request in requests]
        constraints = [None if constraint is None else constraint() for _ in requests]
        with self._thread_lock:
            if taken := self._open_ids.intersection(names):
                raise InvalidParameter(f"request id {min(taken)!r} is in use: leave it out to get a fresh one")
            self._open_ids.update(names)
        run = Run(self, names, ids, params)
        if requests[0].probe is not None:
            run.store = requests[0].probe.store
            self._keep_captures(run.store)
        for request in requests:
            self._announce(request, prompt)
        self._post(lambda: self._enqueue(requests, run, constraints))
        if self._closed:  # closed meanwhile: nobody else would end it
            self.close()
        return run

    def _make_requests(
        self, first: str, ids: list[int], params: SamplingParams, max_tokens: int, priority: int
    ) -> list[Request]:
        seed = secrets.randbits(63) if params.seed is None else params.seed
        requests = [
            Request(
                id=first if sample == 0 else f"{first}.{sample}",
                prompt_token_ids=ids,
                params=params if sample == 0 else replace(params, prompt_logprobs=None),
                seed=seed,
                max_tokens=max_tokens,
                priority=priority,
                arrival=next(self._arrivals),
                sample=sample,
                parent_id=first if sample else None,
            )
            for sample in range(params.n)
        ]
        requests[0].children = requests[1:]
        return requests

    def _attach_probes(
        self,
        requests: list[Request],
        capture: Capture | None,
        intervene: Intervention | Iterable[Intervention],
    ) -> None:
        from llmlab.probes.attach import attach

        attach(self, requests, capture, intervene)

    def _keep_captures(self, store: CaptureStore) -> None:
        from llmlab.probes.store import Shelf

        with self._thread_lock:
            self._shelf = self._shelf or Shelf()
            self._shelf.put(store)

    def _announce(self, request: Request, prompt: str | None) -> None:
        if self.recorder.enabled:
            self.recorder.emit(
                RequestSubmitted(
                    perf_counter_ns(),
                    request.id,
                    request.parent_id,
                    request.priority,
                    prompt,
                    tuple(request.prompt_token_ids),
                    request.params.to_dict(),
                )
            )

    def _enqueue(self, requests: list[Request], run: Run, constraints: list[Constraint | None]) -> None:
        try:
            sequences = [self._follow(request, run, c) for request, c in zip(requests, constraints, strict=True)]
        except Exception as error:  # the tokenizer's, not ours: this run fails, others go on
            run.fail(LabError(f"run {run.id} could not start: {type(error).__name__}: {error}"))
            for request in requests:
                self._open_ids.discard(request.id)
                self._tell_end(request, run, Delta(request.sample, "", (), True), StopReason.ERROR)
            return
        self._sequences |= {sequence.request.id: sequence for sequence in sequences}
        self.queue(requests[0])

    def queue(self, request: Request) -> None:
        """Let a request that is followed take part in steps; called by the thread that steps."""
        self.scheduler.add(request)

    def _follow(self, request: Request, run: Run, constraint: Constraint | None) -> Sequence:
        params = request.params
        detokenizer = Detokenizer(self.tokenizer, request.prompt_token_ids, params.stop, params.include_stop)
        return Sequence(request, run, detokenizer, self.eos_token_ids, constraint)

    def abort(self, run: Run) -> None:
        """Drop a run before the next step, in whatever phase it is."""
        self._post(lambda: self.end_run(run, StopReason.ABORTED))

    def end_run(self, run: Run, reason: StopReason, error: LabError | None = None) -> None:
        """End all samples of a run that have not ended; called by the thread that steps."""
        if error is not None:
            run.fail(error)
        for output in run.outputs:
            sequence = self._sequences.get(output.request_id)
            if sequence is not None:
                self.end(sequence, reason)

    def end(self, sequence: Sequence, reason: StopReason) -> None:
        """Free a request's blocks, flush its text and tell its handle."""
        request = sequence.request
        self.scheduler.finish(request, reason)
        if self.speculator is not None:
            self.speculator.forget(request)
        request.children = []
        del self._sequences[request.id]
        self._open_ids.discard(request.id)
        delta, _ = sequence.take_delta(reason)
        self._executor.record_text(sequence, delta.text)
        self._tell_end(request, sequence.run, delta, reason)

    def _tell_end(self, request: Request, run: Run, delta: Delta, reason: StopReason) -> None:
        if self.recorder.enabled:
            self.recorder.emit(
                RequestFinished(
                    perf_counter_ns(),
                    self.journal.step,
                    request.id,
                    str(reason),
                    request.stop_sequence,
                    request.usage(),
                )
            )
        run.add(delta, Ending(str(reason), request.stop_sequence, request.usage()))

    def is_live(self, request: Request) -> bool:
        """Whether the request has not ended."""
        return request.id in self._sequences

    def sequence(self, request: Request) -> Sequence:
        """The sequence that follows a live request."""
        return self._sequences[request.id]

    # -- stepping -------------------------------------------------------------------------------------------

    def step(self) -> bool:
        """Run one step and return whether there was anything to do. Only the stepping thread touches state."""
        with self._step_lock:
            start = perf_counter_ns()
            self._drain_inbox()
            if not self.scheduler.has_work:
                return False
            self._executor.run(start)
            if not self.scheduler.has_work:
                self.check_integrity()
            return True

    def run_until_idle(self) -> int:
        """Step until nothing is left to do; returns the number of steps."""
        return sum(1 for _ in iter(self.step, False))

    def _post(self, command: Callable[[], None]) -> None:
        self._inbox.append(command)
        self._wake.set()

    def _drain_inbox(self) -> None:
        while self._inbox:
            self._inbox.popleft()()

    def check_integrity(self) -> None:
        """Assert that no block leaked, is doubly owned, or is freed while in a table."""
        with self._step_lock:
            self.scheduler.check_integrity()
            alive = [s.request for s in self._sequences.values() if s.request.status is Status.RUNNING]
            assert {id(r) for r in alive} == {id(r) for r in self.scheduler.running}

    # -- background thread ----------------------------------------------------------------------------------

    @property
    def is_running(self) -> bool:
        """Whether the background thread is stepping."""
        thread, stopping = self._thread, self._stopping
        return thread is not None and thread.is_alive() and not stopping.is_set()

    @property
    def has_failed(self) -> bool:
        """Whether the background thread ended without being asked to: a mistake of ours."""
        thread, stopping = self._thread, self._stopping
        return thread is not None and not thread.is_alive() and not stopping.is_set()

    def start(self) -> None:
        """Step on a background thread whenever there is work; does nothing when it already does."""
        with self._thread_lock:
            if self.is_running or self._closed:
                return
            # an event of its own: a thread that is still ending cannot be revived by starting the next
            self._stopping = threading.Event()
            loop = threading.Thread(target=self._loop, args=(self._stopping,), name="llmlab-engine", daemon=True)
            loop.start()
            self._thread = loop

    def stop(self) -> None:
        """Stop the thread after its current step. Open requests stay, to be stepped by hand or after a restart."""
        with self._thread_lock:  # one thread with its own event, never the one that start() just made
            self._stopping.set()
            thread, self._thread = self._thread, None
        self._wake.set()
        if thread is not None and thread is not threading.current_thread():
            thread.join()

    def close(self) -> None:
        """Stop, and end every open request with :class:`~llmlab.errors.EngineStopped`."""
        with self._thread_lock:
            self._closed = True
        self.stop()
        with self._step_lock:
            self._drain_inbox()
            for sequence in list(self._sequences.values()):
                sequence.run.fail(EngineStopped("the engine was closed before this run finished: open another"))
                self.end(sequence, StopReason.ABORTED)
        if (close := getattr(self.runner, "close", None)) is not None:
            close()

    def fail(self, error: LabError) -> None:
        """Nothing can be computed any more: end every open request with ``error``, and close."""
        with self._step_lock:
            self._drain_inbox()
            for sequence in list(self._sequences.values()):
                sequence.run.fail(error)
                self.end(sequence, StopReason.ERROR)
        self.close()

    @property
    def is_paused(self) -> bool:
        """Whether the background thread leaves all steps to whoever calls :meth:`step`."""
        return self._paused

    def pause(self) -> None:
        """Let the background thread rest after the step under way. Those who wait for a run go on waiting; steps are
        taken by hand until :meth:`resume`."""
        with self._step_lock:
            self._paused = True

    def resume(self) -> None:
        """Let the background thread step again."""
        self._paused = False
        self._wake.set()

    def _loop(self, stopping: threading.Event) -> None:
        while not stopping.is_set():
            self._wake.clear()
            if not self._step_unless_paused() and not stopping.is_set():
                self._wake.wait(POLL_S)

    def _step_unless_paused(self) -> bool:
        with self._step_lock:  # pause() waits for it, so no step begins after that
            return not self._paused and self.step()

    # -- trace ----------------------------------------------------------------------------------------------

    @property
    def trace(self) -> Trace:
        """Everything recorded so far. A run ends inside a step, so a step that is ending is waited for."""
        if self._step_lock.acquire(timeout=STEP_END_S):
            self._step_lock.release()
        return self.trace_of(self.recorder.snapshot())

    def trace_of(self, events: Iterable[Event]) -> Trace:
        """Some of the recorded events as a trace, with what was recorded inside the model and the tokens' bytes."""
        return Trace(events, arrays=self._shelf and self._shelf.arrays(), pieces=self._pieces)


def _stop_if_alive(reference: weakref.ref[Engine]) -> None:
    engine = reference()
    if engine is not None:
        engine.stop()
