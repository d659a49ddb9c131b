"""One simulated server: the engine's own scheduler and block pool, with a clock that jumps from step to step."""

from __future__ import annotations

from bisect import insort
from collections.abc import Callable
from random import Random

from llmlab.engine.blocks import BlockPool
from llmlab.engine.journal import Journal
from llmlab.engine.plan import ScheduledRow, StepPlan
from llmlab.engine.request import StopReason
from llmlab.parallel.disaggregated_scheduler import DecodeScheduler
from llmlab.planner.fleet.admission import ReservingScheduler
from llmlab.planner.fleet.clock import SimulatedRecorder
from llmlab.planner.fleet.drafts import Drafter
from llmlab.planner.fleet.events import EventWriter
from llmlab.planner.fleet.job import Gaps, Job
from llmlab.planner.fleet.settings import Fleet
from llmlab.planner.fleet.stretch import Stretch, find_stretch
from llmlab.planner.step_load import StepLoad
from llmlab.trace.events import Gap


class Replica:
    """Everything up to ``now_ns`` has happened; the step or stretch under way ends at ``next_ns`` (``None``: idle).

    ``on_end`` is called with each job that has its whole output. ``skip``: steps in which nothing can be decided are
    done at once; not while events are recorded, and not with drafts.
    """

    def __init__(
        self,
        number: int,
        name: str,
        fleet: Fleet,
        *,
        decodes_only: bool = False,
        record: bool = False,
        skip: bool = True,
        on_end: Callable[[Job], None],
    ) -> None:
        self.number, self.name, self.fleet = number, name, fleet
        self.is_recorded, self.recorder = record, SimulatedRecorder(record)
        self.journal = Journal(self.recorder)
        self.pool = BlockPool(fleet.num_blocks, fleet.block_size, prefix_cache=fleet.prefix_cache, journal=self.journal)
        queues = (self.pool, fleet.config, self.journal)
        self.scheduler = DecodeScheduler(*queues) if decodes_only else ReservingScheduler(*queues, fleet.reserve)
        self.events = EventWriter(self.recorder, fleet, name)
        self.drafter = fleet.speculation and Drafter(fleet.speculation, Random(f"drafts of {name}"))
        self.jobs: dict[str, Job] = {}
        self.inbox: list[Job] = []  # they arrived during a step: the scheduler hears of them before the next
        self.handed: list[Job] = []  # their prompts' K/V has arrived; they wait for a slot and blocks
        self.gaps = Gaps()
        self.now_ns, self.next_ns = 0, None
        self.busy_ns, self.row_ns, self.num_steps, self.num_tokens = 0, 0, 0, 0
        self._skip = skip and self.drafter is None
        self._on_end = on_end
        self._plan: StepPlan | None = None
        self._stretch: Stretch | None = None
        self._begun_ns = 0

    @property
    def load(self) -> int:
        """Requests it has not finished."""
        return len(self.jobs)

    # -- what comes from outside ----------------------------------------------------------------------------

    def receive(self, job: Job, t_ns: int) -> None:
        """A request arrives at ``t_ns``, which is never before :attr:`now_ns`. Raises ``PoolTooSmall``."""
        self.scheduler.check_fits(job.request)
        self._interrupt(t_ns)
        self.jobs[job.request.id] = job
        self.events.submitted(job, t_ns)
        self.inbox.append(job)

    def take_over(self, job: Job, t_ns: int) -> None:
        """A request whose prompt was computed elsewhere arrives with its K/V. Raises ``PoolTooSmall``."""
        self.scheduler.check_fits(job.request)
        self._interrupt(t_ns)
        self.jobs[job.request.id] = job
        insort(self.handed, job, key=lambda each: each.request.order)

    def stop_recording(self, t_ns: int) -> None:
        """Keep no more events; a gap says so."""
        if self.recorder.enabled:
            self.recorder.emit(Gap(t_ns, 0))
            self.recorder.enabled = False

    def _interrupt(self, t_ns: int) -> None:
        """Bring the replica to ``t_ns`` so that what arrives then takes part in the next step that begins."""
        if self.next_ns == t_ns:
            self.complete()
        elif self._stretch is not None:
            self._cut(self._stretch, t_ns)
        self.recorder.now_ns = t_ns

    def _cut(self, stretch: Stretch, t_ns: int) -> None:
        ended = stretch.num_ended(t_ns)
        self._apply(stretch, ended)
        if stretch.begin_of(ended) == t_ns:  # the next step has not begun: it will be planned anew
            self._stretch = self.next_ns = None
            return
        if not stretch.claimed:
            stretch.claim(self.pool)
        stretch.ends = stretch.ends[: ended + 1]
        self.next_ns = stretch.ends[-1]

    # -- one step -------------------------------------------------------------------------------------------

    def begin(self, t_ns: int) -> None:
        """Begin the next step or stretch, unless one is under way or there is nothing to do."""
        if self.next_ns is not None or not self.jobs:
            return
        self.now_ns = self._begun_ns = self.recorder.now_ns = t_ns
        self.journal.step = self.num_steps
        for job in self.inbox:
            self.scheduler.add(job.request)
        self.inbox.clear()
        # what has just landed is for the scheduler to see, and every step is when steps are recorded
        can_skip = self._skip and not self.handed and not self.recorder.enabled
        if self.handed:
            self._land()
        self._stretch = find_stretch(self.scheduler, self.jobs, self.fleet.times, t_ns) if can_skip else None
        self.next_ns = self._stretch.ends[-1] if self._stretch else self._plan_step()

    def _plan_step(self) -> int:
        proposing = self._draft() if self.drafter else 0
        self._plan = plan = self.scheduler.schedule(self.num_steps)
        assert plan.rows, "work is queued but nothing could be scheduled"
        for row in plan.rows:
            job = self.jobs[row.request.id]
            if job.scheduled_ns < 0:
                job.scheduled_ns = self.now_ns
        self.events.scheduled(self)
        load = StepLoad.of((row.start, row.num_tokens) for row in plan.rows)
        return self.now_ns + self.fleet.times.ns(load) + proposing

    def complete(self) -> None:
        """The step or stretch under way has ended."""
        end = self.next_ns
        if self._stretch is not None:
            stretch, self._stretch = self._stretch, None
            self._apply(stretch, len(stretch.ends))
            self._end([job for job in stretch.jobs if not job.num_left], end)
        else:
            self._count(end - self._begun_ns, len(self._plan.rows))
            self.num_tokens += self._plan.num_tokens
            self.now_ns = self.recorder.now_ns = end
            self._end(self._choose_tokens(self._plan, end), end)
            self.num_steps += 1
        self.now_ns, self.next_ns = end, None

    def _apply(self, stretch: Stretch, until: int) -> None:
        if until <= stretch.done:
            return
        steps = until - stretch.done
        self._count(stretch.ends[until - 1] - stretch.begin_of(stretch.done), len(stretch.jobs))
        self.num_tokens += steps * len(stretch.jobs)
        stretch.apply(until, self.pool, self.gaps)
        self.num_steps += steps
        self.now_ns = stretch.ends[until - 1]

    def _count(self, busy_ns: int, rows: int) -> None:
        self.busy_ns += busy_ns
        self.row_ns += busy_ns * rows

    def _choose_tokens(self, plan: StepPlan, end_ns: int) -> list[Job]:
        """Every row that reached its end has its next token; returns those that have their last."""
        ended, chosen = [], []
        for row in plan.rows:
            self.scheduler.advance(row)
            if row.samples:
                job = self.jobs[row.request.id]
                number = self._take_tokens(row, job)
                chosen.append((job, number))
                self._note_token(job, number, end_ns)
                if not job.num_left:
                    ended.append(job)
            elif row.request.is_prewarm and row.end == row.request.num_prompt:
                ended.append(self.jobs[row.request.id])
        self.events.stepped(self, plan, chosen, self._begun_ns, end_ns)
        return ended

    def _take_tokens(self, row: ScheduledRow, job: Job) -> int:
        request, number = row.request, 1
        if row.num_draft:
            number += self.drafter.kept(request, row.num_draft)
        request.draft = ()
        first = request.num_output
        request.tokens += job.output[first : first + number]
        if row.num_draft:
            self.scheduler.settle(row)
        return number

    def _note_token(self, job: Job, number: int, end_ns: int) -> None:
        if job.last_ns >= 0:
            self.gaps.add(end_ns - job.last_ns)
        if number > 1:  # tokens of one step come together
            self.gaps.add(0, number - 1)
        if job.first_ns < 0:
            job.first_ns = end_ns
        job.last_ns = end_ns

    def _end(self, jobs: list[Job], end_ns: int) -> None:
        for job in jobs:
            request = job.request
            job.done_ns, limit = end_ns, request.num_output >= request.max_tokens
            self.scheduler.finish(request, StopReason.LENGTH if limit else StopReason.EOS)
            if self.drafter:
                self.drafter.rule.forget(request.id)
            del self.jobs[request.id]
            self.events.finished(self, job, end_ns)
            self._on_end(job)

    # -- drafts, and requests from elsewhere ----------------------------------------------------------------

    def _draft(self) -> int:
        """Give drafts to those that decode; nanoseconds that proposing them takes."""
        running, longest = self.scheduler.running, 0
        decoding = [r for r in running if r.num_output and r.num_computed + 1 == len(r.tokens)]
        for request in decoding:
            k, reason = self.drafter.choose(request, len(running))
            self.events.policy(request, k, reason, len(running))
            k = min(k, self.jobs[request.id].num_left - 1)  # the step gives one token besides
            request.draft = (0,) * k
            longest = max(longest, k)
        if not longest or not self.fleet.speculation.draft_cost:
            return 0
        plain = self.fleet.times.ns(StepLoad.of((request.num_computed, 1) for request in decoding))
        return int(longest * self.fleet.speculation.draft_cost * plain)

    def _land(self) -> None:
        """Let requests whose K/V has arrived join the batch, in order, while slots and blocks last."""
        while self.handed:
            request = self.handed[0].request
            if self.scheduler.land(request, request.num_prompt - 1, request.num_cached) is None:
                return
            self.handed.pop(0)
