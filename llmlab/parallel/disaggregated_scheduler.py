"""The scheduler of a process that decodes: requests join it with the K/V of their prompt already computed."""

from __future__ import annotations

from bisect import insort
from dataclasses import dataclass
from enum import StrEnum
from operator import attrgetter
from typing import Any

from llmlab.engine.plan import Reason, StepPlan
from llmlab.engine.request import Request, Status
from llmlab.engine.scheduler import Scheduler


class HandoffReason(StrEnum):
    """Why a request is treated as it is while its prompt is another process's business."""

    AT_PREFILL = "its prompt is computed by the prefill process"
    RECEIVED = "a slot and enough blocks are free for the K/V that arrived"


@dataclass(frozen=True, slots=True)
class Landing:
    """Where K/V that arrived goes: the request's table from index ``first`` on (what is before it was here)."""

    request: Request
    first: int

    @property
    def blocks(self) -> list[int]:
        """Ids of the blocks to write."""
        return self.request.block_table[self.first :]


class DecodeScheduler(Scheduler):
    """Adds one way in: :meth:`land`. A request that was preempted comes back the usual way and is recomputed here.

    The last position of a prompt is left to a step of this process, because its logits choose the first token: the same
    rule as for a prefix hit, so sampling, samples that fork and drafts need nothing new.
    """

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._landed: dict[str, int] = {}  # request id -> prompt tokens that the other process had cached

    def leave(self, request: Request) -> None:
        """Journal that a request's prompt is computed elsewhere; it is in no queue until it lands."""
        self._wait(request, HandoffReason.AT_PREFILL)
        for child in request.children:
            self._wait(child, Reason.SHARES_PROMPT)

    def land(self, request: Request, num_ready: int, num_cached: int) -> Landing | None:
        """Admit a request whose first ``num_ready`` positions arrived; ``None`` (with the reason journalled) if there
        is no room for it. The caller writes the K/V before the next step."""
        hits = self.pool.match(request)
        if reason := self._no_room(request, hits):
            self._wait(request, reason)
            return None
        self.pool.share(request, hits)
        claimed = self.pool.extend(request, num_ready)
        assert claimed, "the admission check counted too few blocks"
        request.num_computed, request.num_cached = num_ready, num_cached
        request.status, request.waiting_for = Status.RUNNING, ""
        insort(self.running, request, key=attrgetter("order"))
        self._landed[request.id] = num_cached
        self.journal.decision(request.id, "admitted", HandoffReason.RECEIVED)
        return Landing(request, len(hits))

    def _no_room(self, request: Request, hits: list) -> Reason | None:
        if self.waiting and self.waiting[0].order < request.order:
            return Reason.BEHIND
        if self.config.policy == "static" and self.running:
            return Reason.STATIC_BATCH
        if sum(r.num_slots for r in self.running) + request.num_slots > self.config.max_num_seqs:
            return Reason.NO_SLOT
        if self.pool.cost_of(hits, len(request.tokens)) > self.pool.num_available:
            return Reason.NO_BLOCKS
        return None

    def _preempt(self, plan: StepPlan, victim: Request, by: Request) -> None:
        super()._preempt(plan, victim, by)
        if self._landed.pop(victim.id, None) is not None:  # nothing it had was computed in this process
            victim.lost, victim.num_cached, victim.status = 0, 0, Status.WAITING

    def schedule(self, step: int) -> StepPlan:
        """As always; the first row of a request that landed says what the other process had cached of its prompt."""
        plan = super().schedule(step)
        for row in plan.rows:
            row.num_cached = self._landed.pop(row.request.id, row.num_cached)
        return plan

    def check_integrity(self) -> None:
        """The usual assertions; nothing may have landed that is not in the batch."""
        super().check_integrity()
        assert not self._landed.keys() - {request.id for request in self.running}
