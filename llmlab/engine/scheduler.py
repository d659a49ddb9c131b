"""Who runs in the next step, with how many tokens, and why everybody else waits.

There is no prefill or decode mode. Every step each request is given tokens until ``num_computed`` catches up with
``len(tokens) + len(draft)``: that one rule covers chunked prefill, prefix hits, resumption after preemption and the
verification of drafts, which get what budget and blocks nobody else needs. Running requests
come first, oldest first; then waiting ones are admitted in order. The scheduler knows integers only.
"""

from __future__ import annotations

from bisect import insort
from dataclasses import dataclass
from operator import attrgetter
from typing import Literal

from llmlab.engine.block import Hit
from llmlab.engine.blocks import BlockPool
from llmlab.engine.journal import Journal
from llmlab.engine.plan import Reason, ScheduledRow, StepPlan
from llmlab.engine.request import Request, Status, StopReason
from llmlab.errors import InvalidParameter, PoolTooSmall

Policy = Literal["continuous", "static"]


@dataclass(frozen=True, slots=True)
class SchedulerConfig:
    """Limits of one step: ``max_num_batched_tokens`` positions over at most ``max_num_seqs`` requests.

    ``policy="static"`` admits new requests only when the whole previous batch has finished.
    """

    max_num_batched_tokens: int = 512
    max_num_seqs: int = 8
    policy: Policy = "continuous"

    def __post_init__(self) -> None:
        for name in ("max_num_batched_tokens", "max_num_seqs"):
            if type(getattr(self, name)) is not int or getattr(self, name) < 1:
                raise InvalidParameter(f"{name}={getattr(self, name)!r} must be an integer of at least 1")
        if self.policy not in ("continuous", "static"):
            raise InvalidParameter(f"policy={self.policy!r} must be 'continuous' or 'static'")


class Scheduler:
    """Owns the waiting and running queues; both are sorted by ``Request.order``.

    ``drafts_first``: a request that goes on after a preemption gets a draft before its next token is chosen, as it
    would have undisturbed: its last token waits for the step after the one that recomputes the rest.
    """

    def __init__(self, pool: BlockPool, config: SchedulerConfig, journal: Journal | None = None) -> None:
        self.pool = pool
        self.config = config
        self.journal = journal or pool.journal
        self.drafts_first = False
        self.waiting: list[Request] = []
        self.running: list[Request] = []

    @property
    def has_work(self) -> bool:
        """Whether a step would do anything."""
        return bool(self.waiting or self.running)

    def check_fits(self, request: Request) -> None:
        """Refuse a request that could not finish even with the whole pool and batch to itself."""
        # the last token chosen is never computed
        positions = request.num_prompt + max(request.max_tokens - 1, 0)
        needed = self.pool.blocks_for(positions)
        if needed > self.pool.num_blocks:
            room = self.pool.num_blocks * self.pool.block_size + 1 - request.num_prompt
            cure = f"max_tokens of at most {room}, or" if room > 0 else "a shorter prompt or"
            raise PoolTooSmall(
                f"{request.num_prompt} prompt + {request.max_tokens} output tokens need {needed} blocks of "
                f"{self.pool.block_size}, the pool has {self.pool.num_blocks}: use {cure} num_blocks >= {needed}"
            )
        if request.num_slots > self.config.max_num_seqs:
            raise InvalidParameter(
                f"n={request.num_slots} samples need as many slots, the batch has max_num_seqs="
                f"{self.config.max_num_seqs}: use a smaller n or a larger max_num_seqs"
            )

    def add(self, request: Request) -> None:
        """Queue a request that passed :meth:`check_fits`."""
        insort(self.waiting, request, key=attrgetter("order"))
        if self.waiting[0] is not request:
            self._wait(request, Reason.BEHIND)
        for child in request.children:
            self._wait(child, Reason.SHARES_PROMPT)

    # -- one step -------------------------------------------------------------------------------------------

    def schedule(self, step: int) -> StepPlan:
        """Choose the rows of one step and give them their blocks."""
        plan = StepPlan(step)
        budget = self.config.max_num_batched_tokens
        host = self.pool.host
        if host is not None:
            host.begin_step()
        budget, preempted = self._schedule_running(plan, budget)
        self._admit(plan, budget, preempted)
        if host is not None:
            plan.swaps = host.take_swaps()
        return plan

    def _schedule_running(self, plan: StepPlan, budget: int) -> tuple[int, bool]:
        preempted, i = False, 0
        while i < len(self.running):
            request = self.running[i]
            if budget == 0:
                self._wait(request, Reason.NO_BUDGET)
                i += 1
                continue
            num_tokens = self._share(request, budget)
            while not self._claim(plan, request, num_tokens):
                preempted = True
                victim = self.running.pop()
                self._preempt(plan, victim, by=request)
                if victim is request:
                    break
            else:
                num_draft = self._draft_room(request, num_tokens, budget, i) if request.draft else 0
                self._run(plan, request, num_tokens + num_draft, num_draft=num_draft)
                budget -= num_tokens + num_draft
                i += 1
        return budget, preempted

    def _share(self, request: Request, budget: int) -> int:
        """Tokens for a request, its draft not counted."""
        num_tokens = min(request.num_remaining, budget)
        return num_tokens - (1 < num_tokens == request.num_remaining and self._waits_for_draft(request))

    def _waits_for_draft(self, request: Request) -> bool:
        return self.drafts_first and request.num_output > 0 and not request.draft

    def _draft_room(self, request: Request, num_tokens: int, budget: int, index: int) -> int:
        """Give blocks to as many draft tokens as fit into budget and blocks that no later running request needs.

        What does not fit is verified in later steps, so the tokens do not depend on the room there was.
        """
        if num_tokens < request.num_remaining:
            return 0
        later = self.running[index + 1 :]
        spare_tokens = budget - num_tokens - sum(other.num_remaining for other in later)
        spare_blocks = max(0, self.pool.num_available - sum(map(self.pool.num_wanted, later)))
        end = request.num_computed + num_tokens
        own = (len(request.block_table) + spare_blocks) * self.pool.block_size - end
        room = max(0, min(len(request.draft), spare_tokens, own))
        claimed = self.pool.extend(request, end + room)
        assert claimed, "more blocks were promised to a draft than there are"
        return room

    def _claim(self, plan: StepPlan, request: Request, num_tokens: int) -> bool:
        """Give the request private blocks for its next ``num_tokens`` positions."""
        if self.pool.needs_copy(request):
            copy = self.pool.copy_on_write(request)
            if copy is None:
                return False
            plan.copies.append(copy)
        return self.pool.extend(request, request.num_computed + num_tokens)

    def _admit(self, plan: StepPlan, budget: int, preempted: bool) -> None:
        static_batch = self.config.policy == "static" and bool(self.running)
        while self.waiting:
            request = self.waiting[0]
            hit = self.pool.look_up(request)
            reason = self._obstacle(request, hit.blocks, budget, preempted, static_batch)
            if reason:
                self._wait(request, reason)
                return
            self._start(plan, request, hit)
            num_tokens = self._share(request, budget)
            claimed = self.pool.extend(request, request.num_computed + num_tokens)
            assert claimed, "the admission check counted too few blocks"
            self._run(plan, request, num_tokens, num_cached=request.num_computed)
            budget -= num_tokens

    def _obstacle(
        self, request: Request, hits: list, budget: int, preempted: bool, static_batch: bool
    ) -> Reason | None:
        """What keeps the first waiting request out of this step. Admission asks for room for *all* its tokens,
        so that a long prompt does not begin only to be preempted half way."""
        if preempted:
            return Reason.JUST_PREEMPTED
        if static_batch:
            return Reason.STATIC_BATCH
        if sum(r.num_slots for r in self.running) + request.num_slots > self.config.max_num_seqs:
            return Reason.NO_SLOT
        if budget == 0:
            return Reason.NO_BUDGET
        if self.pool.cost_of(hits, len(request.tokens)) > self.pool.num_available:
            return Reason.NO_BLOCKS
        return None

    def _start(self, plan: StepPlan, request: Request, hit: Hit) -> None:
        self.waiting.pop(0)
        copy = self.pool.take_hit(request, hit)
        if copy is not None:
            plan.copies.append(copy)
        if request.host_table:
            self.pool.host.release(request)
        resumed = request.status is Status.PREEMPTED
        if resumed:
            request.lost = max(0, request.lost - request.num_computed)
        else:
            request.num_cached = request.num_computed
        request.status, request.waiting_for = Status.RUNNING, ""
        insort(self.running, request, key=attrgetter("order"))
        reasons = (Reason.HOST_HIT, Reason.SWAPPED_IN) if hit.host else (Reason.FITS, Reason.RESUMED)
        self.journal.decision(request.id, "admitted", reasons[resumed])

    def _run(self, plan: StepPlan, request: Request, num_tokens: int, num_cached: int = 0, num_draft: int = 0) -> None:
        start = request.num_computed
        is_prefill = start < request.num_prompt or request.lost > 0
        reason = Reason.VERIFY if num_draft else self._running_reason(request, num_tokens, is_prefill)
        samples = start + num_tokens - num_draft == len(request.tokens) and not request.is_prewarm
        num_logits = num_tokens if request.wants_prompt_logprobs else int(samples) + num_draft
        plan.rows.append(
            ScheduledRow(request, start, num_tokens, num_cached, is_prefill, samples, num_logits, num_draft)
        )
        request.waiting_for = ""
        self.journal.decision(request.id, "ran", reason, num_tokens)

    def _running_reason(self, request: Request, num_tokens: int, is_prefill: bool) -> Reason:
        if num_tokens < request.num_remaining:
            waits = num_tokens + 1 == request.num_remaining and self._waits_for_draft(request)
            return Reason.BEFORE_DRAFT if waits else Reason.PREFILL_CHUNK
        if request.lost > 0:
            return Reason.RECOMPUTE
        return Reason.PREFILL if is_prefill else Reason.DECODE

    def _preempt(self, plan: StepPlan, victim: Request, by: Request) -> None:
        """Drop the victim's blocks; it keeps its tokens and its place in the order, and recomputes later, or has them
        copied back from the host pool."""
        fate = self._swap_out(plan, victim)
        self.pool.release(victim)
        victim.lost += victim.num_computed
        victim.num_computed = 0
        victim.num_preemptions += 1
        victim.status = Status.PREEMPTED
        insort(self.waiting, victim, key=attrgetter("order"))
        reason = Reason.OUT_OF_OWN_BLOCKS if victim is by else Reason.OUT_OF_BLOCKS
        self.journal.decision(victim.id, "preempted", reason if fate is None else f"{reason}; {fate}", by=by.id)

    def _swap_out(self, plan: StepPlan, victim: Request) -> Reason | None:
        host = self.pool.host
        if host is None or not victim.num_computed:
            return None
        # a block it got in this very step is empty still: its content is where it will be copied from
        sources = {target: source for source, target in plan.copies}
        table = victim.block_table[: self.pool.blocks_for(victim.num_computed)]
        return host.swap_out(victim, [sources.get(i, i) for i in table], self.pool.prefix_cache)

    def drop_copies(self, plan: StepPlan) -> None:
        """The step failed: what was to be copied may not be there, so it is not found, and not read back."""
        self.pool.forget(target for _, target in plan.copies)
        if self.pool.host is not None:
            self.pool.host.fail(plan.swaps, self.waiting)

    def _wait(self, request: Request, reason: Reason) -> None:
        """A waiting reason is journalled when it changes; it holds until the next decision about the request."""
        if request.waiting_for != reason:
            request.waiting_for = reason
            self.journal.decision(request.id, "waited", reason)

    # -- after the forward pass -----------------------------------------------------------------------------

    def advance(self, row: ScheduledRow) -> None:
        """The row's positions are computed: count them and make its full blocks findable. Drafts do not count yet."""
        request = row.request
        request.num_computed = row.end - row.num_draft
        again = min(request.lost, row.num_tokens)
        request.lost -= again
        request.num_recomputed += again
        self.pool.register(request)

    def settle(self, row: ScheduledRow) -> None:
        """The row's draft is verified and the request's tokens say what was kept: count those positions.

        The K/V of rejected ones stays where it is until the next row writes over it; it is never findable.
        """
        request = row.request
        request.num_computed = min(row.end, len(request.tokens) - 1)
        row.num_rejected = row.end - request.num_computed
        self.pool.register(request)

    def fork(self, parent: Request) -> list[Request]:
        """Let the other samples of a group join the batch, sharing the parent's computed prompt."""
        children, parent.children = parent.children, []
        for child in children:
            self.pool.fork(parent, child)
            child.num_computed, child.num_cached = parent.num_computed, parent.num_cached
            child.status = Status.RUNNING
            insort(self.running, child, key=attrgetter("order"))
            self.journal.decision(child.id, "admitted", Reason.FORKED)
        return children

    def finish(self, request: Request, stop_reason: StopReason) -> None:
        """End a request in any state and free its blocks."""
        if request.status is Status.FINISHED:
            return
        queue = self.running if request.status is Status.RUNNING else self.waiting
        if request in queue:
            queue.remove(request)
        self.pool.release(request, findable=stop_reason is not StopReason.ERROR)
        if request.host_table:
            self.pool.host.release(request)
        request.status, request.stop_reason = Status.FINISHED, stop_reason
        action = "aborted" if stop_reason is StopReason.ABORTED else "finished"
        self.journal.decision(request.id, action, stop_reason)

    def check_integrity(self) -> None:
        """Assert both pools' integrity: running requests hold blocks of the pool, waiting ones of the host pool."""
        assert not any(request.block_table for request in self.waiting)
        assert not any(request.host_table for request in self.running)
        self.pool.check_integrity(self.running)
        if self.pool.host is not None:
            self.pool.host.check_integrity(self.waiting)
