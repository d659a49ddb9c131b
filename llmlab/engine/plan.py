"""What the scheduler decided for one step, in integers."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from llmlab.engine.request import Request
from llmlab.trace.events import StepRow


class Reason(StrEnum):
    """Why a request was treated as it was; every scheduling decision carries one of these."""

    PREFILL = "prefill"
    PREFILL_CHUNK = "prefill chunk: the step's token budget ends here"
    DECODE = "decode"
    VERIFY = "decode and verify a draft"
    RECOMPUTE = "recompute after preemption"
    BEFORE_DRAFT = "recompute all but the last token, which is to be computed with a draft"
    FITS = "a slot and enough blocks are free"
    RESUMED = "resumed after preemption"
    FORKED = "another sample of a computed prompt"
    NO_BUDGET = "the step's token budget is spent"
    NO_SLOT = "every slot of the batch is taken"
    NO_BLOCKS = "not enough free blocks"
    BEHIND = "behind an earlier request"
    SHARES_PROMPT = "the prompt it shares is still being computed"
    STATIC_BATCH = "the static batch has not finished"
    JUST_PREEMPTED = "a request was preempted in this step"
    OUT_OF_BLOCKS = "its blocks were needed by an earlier request"
    OUT_OF_OWN_BLOCKS = "no free block for its next token"
    # with a host pool, after a semicolon: what becomes of a preempted request's blocks
    SWAPPED = "swapped out to the host pool"
    RECOMPUTE_CHEAPER = "computing them again is cheaper than two copies"
    HOST_FULL = "the host pool has no room, so they will be computed again"
    SWAP_NEVER = "swapping is switched off"
    SWAPPED_IN = "resumed after preemption, swapped in from the host pool"
    HOST_HIT = "a slot and enough blocks are free; a prefix is swapped in from the host pool"


@dataclass(slots=True)
class ScheduledRow:
    """Positions ``start .. start + num_tokens - 1`` of one request, to be computed in this step.

    ``samples``: the row reaches the end of the request's tokens, so its last position gives a new one (unless the
    request asked for none).
    ``num_logits``: how many of the row's last positions need logits: one to sample, all for prompt logprobs.
    ``num_draft``: how many of the row's last positions hold the first of ``request.draft``; they need logits too.
    ``num_rejected``: how many of those turned out not to be part of the output, known after the step.
    """

    request: Request
    start: int
    num_tokens: int
    num_cached: int
    is_prefill: bool
    samples: bool
    num_logits: int
    num_draft: int = 0
    num_rejected: int = 0

    @property
    def token_ids(self) -> list[int]:
        """The tokens at the row's positions, drafts included."""
        tokens = self.request.tokens[self.start : self.end]
        return [*tokens, *self.request.draft[: self.num_draft]] if self.num_draft else tokens

    @property
    def end(self) -> int:
        """First position after the row."""
        return self.start + self.num_tokens

    def record(self) -> StepRow:
        """The row as the trace keeps it, once the step is over."""
        return StepRow(
            self.request.id,
            self.start,
            self.num_tokens,
            self.num_cached,
            self.is_prefill,
            self.samples,
            self.num_draft,
            self.num_rejected,
        )


@dataclass(slots=True)
class Swap:
    """Blocks to copy between the pool and the host pool: ``pairs`` of ids, the pool's first.

    ``num_tokens`` is the number of positions they hold, ``request_id`` empty where they are nobody's. The runner fills
    in when it copied them (0: not done) and how many bytes.
    """

    request_id: str
    is_out: bool
    pairs: list[tuple[int, int]]
    num_tokens: int
    reason: str
    t_ns: int = 0
    end_ns: int = 0
    nbytes: int = 0


@dataclass(slots=True)
class StepPlan:
    """The rows of one step and the block copies to make before them.

    First the ``swaps`` out of the pool, then ``copies`` in their order (copy-on-write, parts of a prefix hit:
    ``(source, target)``), then the swaps into the pool: each reads what the ones before it left.
    """

    step: int
    rows: list[ScheduledRow] = field(default_factory=list)
    copies: list[tuple[int, int]] = field(default_factory=list)
    swaps: list[Swap] = field(default_factory=list)

    @property
    def num_tokens(self) -> int:
        """Positions computed in this step, over all rows."""
        return sum(row.num_tokens for row in self.rows)
