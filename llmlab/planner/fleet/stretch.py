"""Steps in which nothing can be decided, done at once: every request decodes, nobody comes, ends or lacks a block.

What such a step does is known beforehand: each row takes one token, and blocks are claimed and registered where a
row crosses a boundary. Those are done in the very order in which the scheduler would do them, so that block ids, hits
and evictions are the same as step by step.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass

from llmlab.engine.blocks import BlockPool
from llmlab.engine.scheduler import Scheduler
from llmlab.planner.fleet.job import Gaps, Job
from llmlab.planner.step_load import StepLoad
from llmlab.planner.step_time import StepModel

LONGEST = 48
CLAIM, REGISTER = 0, 1


@dataclass(slots=True)
class Stretch:
    """Steps of equal rows that end at ``ends``; the first ``done`` of them are applied.

    ``claimed``: the step after those is under way and has its blocks.
    """

    jobs: list[Job]
    start_ns: int
    ends: list[int]
    done: int = 0
    claimed: bool = False

    def num_ended(self, t_ns: int) -> int:
        """Steps that have ended by a time."""
        return bisect_right(self.ends, t_ns)

    def begin_of(self, step: int) -> int:
        """When a step of the stretch begins."""
        return self.ends[step - 1] if step else self.start_ns

    def apply(self, until: int, pool: BlockPool, gaps: Gaps) -> None:
        """Let the steps before ``until`` have happened."""
        steps = until - self.done
        if steps <= 0:
            return
        self._write_tokens(steps)
        self._blocks(steps, pool)
        self._note_times(until, gaps)
        self.done, self.claimed = until, False

    def claim(self, pool: BlockPool) -> None:
        """Give the step that is under way its blocks."""
        for job in self.jobs:
            pool.extend(job.request, job.request.num_computed + 1)
        self.claimed = True

    def _write_tokens(self, steps: int) -> None:
        for job in self.jobs:
            first = job.request.num_output
            job.request.tokens += job.output[first : first + steps]

    def _blocks(self, steps: int, pool: BlockPool) -> None:
        size, events = pool.block_size, []
        before = [job.request.num_computed for job in self.jobs]
        for row, computed in enumerate(before):
            events += [(step, CLAIM, row) for step in range(-computed % size, steps, size)]
            events += [(step, REGISTER, row) for step in range((-computed - 1) % size, steps, size)]
        for step, kind, row in sorted(events):
            request, end = self.jobs[row].request, before[row] + step + 1
            if kind == REGISTER:
                request.num_computed = end
                pool.register(request)
            elif step or not self.claimed:
                pool.extend(request, end)
        for job, computed in zip(self.jobs, before, strict=True):
            job.request.num_computed = computed + steps

    def _note_times(self, until: int, gaps: Gaps) -> None:
        first = self.ends[self.done]
        for job in self.jobs:
            gaps.add(first - job.last_ns)
            job.last_ns = self.ends[until - 1]
        for step in range(self.done + 1, until):
            gaps.add(self.ends[step] - self.ends[step - 1], len(self.jobs))


def find_stretch(scheduler: Scheduler, jobs: dict[str, Job], times: StepModel, start_ns: int) -> Stretch | None:
    """The steps from now on in which nothing can be decided, ``None`` when the next step may decide something."""
    running, config = scheduler.running, scheduler.config
    if not running or len(running) > config.max_num_batched_tokens:
        return None
    is_full = len(running) >= config.max_num_seqs or config.policy == "static"
    if scheduler.waiting and not is_full:
        return None
    found, steps = [], LONGEST
    for request in running:
        # a last chunk of one token, or one recomputed token, looks like decoding but is not
        if request.num_computed + 1 != len(request.tokens) or not request.num_output or request.lost:
            return None
        job = jobs[request.id]
        found.append(job)
        steps = min(steps, job.num_left)
    if steps < 1 or not _has_blocks(scheduler.pool, found, steps):
        return None
    load = StepLoad.of((job.request.num_computed, 1) for job in found)
    ends, end = [], start_ns
    for step in range(steps):
        end += times.ns(load.later(step))
        ends.append(end)
    return Stretch(found, start_ns, ends)


def _has_blocks(pool: BlockPool, jobs: list[Job], steps: int) -> bool:
    """Whether every step of the stretch finds the blocks it claims."""
    available = pool.num_available
    if available >= len(jobs) * (steps // pool.block_size + 1):
        return True
    needed = sum(pool.blocks_for(job.request.num_computed + steps) - len(job.request.block_table) for job in jobs)
    return needed <= available
