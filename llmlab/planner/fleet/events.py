"""A simulated replica's events, as an engine would have recorded them, at the times of the simulation."""

from __future__ import annotations

from typing import TYPE_CHECKING

from llmlab.engine.plan import StepPlan
from llmlab.engine.request import Request
from llmlab.planner.fleet.clock import SimulatedRecorder
from llmlab.planner.fleet.job import Job
from llmlab.planner.fleet.settings import Fleet
from llmlab.trace.events import DraftPolicy, RequestFinished, RequestSubmitted, Span, Step, Token
from llmlab.trace.handoffs import PREFILL_PROCESS
from llmlab.trace.split_events import BlockTransfer

if TYPE_CHECKING:
    from llmlab.planner.fleet.replica import Replica


class EventWriter:
    """Writes nothing when recording is off. The whole of a step's time is its forward phase: it is modelled as one."""

    def __init__(self, recorder: SimulatedRecorder, fleet: Fleet, name: str) -> None:
        self.recorder, self.fleet = recorder, fleet
        self._counts = (0, 0, 0, 0, 0)
        recorder.emit(fleet.info())

    def submitted(self, job: Job, t_ns: int) -> None:
        """A request arrived."""
        if self.recorder.enabled:
            request = job.request
            params = {"max_tokens": request.max_tokens}
            self.recorder.emit(
                RequestSubmitted(t_ns, request.id, None, 0, None, tuple(request.prompt_token_ids), params)
            )

    def scheduled(self, replica: Replica) -> None:
        """Queues and blocks, counted when the step has its blocks."""
        if self.recorder.enabled:
            scheduler, pool = replica.scheduler, replica.pool
            waiting = len(scheduler.waiting) + len(replica.handed)
            self._counts = (waiting, len(scheduler.running), pool.num_free, pool.num_cached, pool.num_used)

    def stepped(
        self, replica: Replica, plan: StepPlan, chosen: list[tuple[Job, int]], start_ns: int, end_ns: int
    ) -> None:
        """A step and the tokens it gave. A token's log-probability is 0: it was given, not drawn."""
        if not self.recorder.enabled:
            return
        for job, number in chosen:
            tokens = job.request.tokens
            for position in range(len(tokens) - number, len(tokens)):
                source = "accepted" if position < len(tokens) - 1 else "target"
                self.recorder.emit(Token(end_ns, plan.step, job.request.id, position, tokens[position], 0.0, source))
        rows = tuple(row.record() for row in plan.rows)
        marks = (start_ns, start_ns, start_ns, end_ns, end_ns, end_ns, end_ns)
        self.recorder.emit(Step(*marks, plan.step, rows, *self._counts))

    def finished(self, replica: Replica, job: Job, end_ns: int) -> None:
        """A request has its output."""
        if self.recorder.enabled:
            request = job.request
            reason = str(request.stop_reason)
            step = replica.num_steps
            self.recorder.emit(RequestFinished(end_ns, step, request.id, reason, None, request.usage()))

    def policy(self, request: Request, k: int, reason: str | None, batch_size: int) -> None:
        """How much is drafted changed."""
        if self.recorder.enabled and reason is not None:
            now = self.recorder.now_ns
            self.recorder.emit(
                DraftPolicy(now, 0, request.id, k, reason, self.fleet.speculation.acceptance, batch_size)
            )

    def handed(self, job: Job, prefill: tuple[int, int], transfer: tuple[int, int], nbytes: int) -> None:
        """A request comes from a prefill replica: what happened to it before, in nanoseconds from and to."""
        if not self.recorder.enabled:
            return
        self.submitted(job, job.arrival.t_ns)
        self.recorder.emit(Span(*prefill, PREFILL_PROCESS, job.request.id))
        where = ("prefill", "decode", self.fleet.link.name)
        what = ((), job.request.num_prompt - 1, nbytes)
        self.recorder.emit(
            BlockTransfer(*transfer, -1, job.request.id, "send", *where, *what, "it is decoded on another replica")
        )
