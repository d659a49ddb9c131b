"""What a scheduler may hold back for answers that could still become long."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil

from llmlab.engine.blocks import BlockPool
from llmlab.engine.journal import Journal
from llmlab.engine.plan import Reason
from llmlab.engine.request import Request
from llmlab.engine.scheduler import Scheduler, SchedulerConfig
from llmlab.errors import InvalidParameter


class ReservingScheduler(Scheduler):
    """The engine's scheduler, which also keeps blocks for a ``share`` of what each request may still write.

    0 reserves nothing, as the engine does; 1 lets a request in only when all that run could use their whole
    ``max_tokens``. Whether a commercial server does so is not public (article A, section 5.6, conjectures it).
    """

    def __init__(self, pool: BlockPool, config: SchedulerConfig, journal: Journal, share: float) -> None:
        if not 0 <= share <= 1:
            raise InvalidParameter(f"reserve={share!r} must be a share from 0 (nothing) to 1 (all of max_tokens)")
        super().__init__(pool, config, journal)
        self.share = share

    def _obstacle(self, request: Request, hits: Sequence, *rest) -> Reason | None:
        reason = super()._obstacle(request, hits, *rest)
        if reason is not None or not self.running or not self.share:
            return reason
        reserved = sum(map(self.reserved, self.running)) + self.reserved(request)
        return Reason.NO_BLOCKS if reserved > self.pool.num_blocks else None

    def reserved(self, request: Request) -> int:
        """Blocks kept for a request: those of its tokens, and of the share of what it may still write."""
        left = ceil(self.share * max(request.max_tokens - request.num_output, 0))
        return self.pool.blocks_for(len(request.tokens) + left)
