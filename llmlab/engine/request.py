"""The state of one request: a token list and one integer that chases its end."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING

from llmlab.engine.params import SamplingParams

if TYPE_CHECKING:
    from llmlab.probes.plan import RequestProbe


class Status(StrEnum):
    """Where a request stands. ``WAITING`` and ``PREEMPTED`` hold no blocks of the pool; ``FINISHED`` is final."""

    WAITING = "waiting"
    RUNNING = "running"
    PREEMPTED = "preempted"
    FINISHED = "finished"


class StopReason(StrEnum):
    """Why a request ended, in the engine's own terms (each API has its own words for these).

    ``EOS`` also stands for a constraint after which only EOS could follow: the output then has no EOS token.
    """

    EOS = "eos"
    STOP_TOKEN = "stop_token"
    STOP_STRING = "stop_string"
    LENGTH = "length"
    CONTEXT = "context"
    ABORTED = "aborted"
    ERROR = "error"


@dataclass(slots=True, eq=False)
class Request:
    """One sequence being served.

    ``tokens`` is prompt plus output. Invariants between steps: positions ``0 .. num_computed - 1`` have their K/V
    in ``block_table``; ``num_computed < len(tokens)`` until the request is finished; ``chain[i]`` is the
    ``(content, hash)`` of block ``i`` (see :mod:`llmlab.engine.blocks`) for the leading full blocks.
    ``children`` are the other samples of an ``n > 1`` group; they join once the prompt is computed. ``lost`` counts
    positions a preemption dropped that are not computed again yet. ``draft`` holds proposed tokens that are still to
    be verified: they stand for positions ``len(tokens) ..``, survive a preemption, and are never part of ``chain``.
    ``host_table`` lists the blocks in the host pool that hold the first ``num_swapped`` positions of a preempted
    request that was swapped out; it is empty in any other state.
    """

    id: str
    prompt_token_ids: list[int]
    params: SamplingParams
    seed: int
    max_tokens: int
    priority: int = 0
    arrival: int = 0
    sample: int = 0
    parent_id: str | None = None
    children: list[Request] = field(default_factory=list)
    status: Status = Status.WAITING
    tokens: list[int] = field(default_factory=list)
    num_computed: int = 0
    block_table: list[int] = field(default_factory=list)
    chain: list[tuple[int, bytes]] = field(default_factory=list)
    num_cached: int = 0
    num_preemptions: int = 0
    num_recomputed: int = 0
    lost: int = 0
    host_table: list[int] = field(default_factory=list)
    num_swapped: int = 0
    waiting_for: str = ""
    draft: tuple[int, ...] = ()
    num_accepted: int = 0
    num_rejected: int = 0
    probe: RequestProbe | None = None
    prompt_logprobs: list[tuple[float, tuple[tuple[int, float], ...]]] = field(default_factory=list)
    stop_reason: StopReason | None = None
    stop_sequence: str | int | None = None

    def __post_init__(self) -> None:
        self.tokens = list(self.prompt_token_ids)

    @property
    def num_prompt(self) -> int:
        """Number of prompt tokens."""
        return len(self.prompt_token_ids)

    @property
    def num_output(self) -> int:
        """Number of tokens generated so far."""
        return len(self.tokens) - len(self.prompt_token_ids)

    @property
    def output_token_ids(self) -> list[int]:
        """The tokens generated so far."""
        return self.tokens[len(self.prompt_token_ids) :]

    @property
    def num_remaining(self) -> int:
        """Tokens whose K/V is still to be computed."""
        return len(self.tokens) - self.num_computed

    @property
    def num_slots(self) -> int:
        """Places in the batch it needs: itself and the samples that will fork from it."""
        return 1 + len(self.children)

    @property
    def order(self) -> tuple[int, int]:
        """First come, first served within a priority; lower sorts first."""
        return (self.priority, self.arrival)

    @property
    def is_prewarm(self) -> bool:
        """Whether the prompt is only to be computed and cached (``max_tokens=0``)."""
        return self.max_tokens == 0

    @property
    def wants_prompt_logprobs(self) -> bool:
        """Whether log-probabilities of prompt tokens are still to be computed (the first token never has one).

        While they are, the request bypasses the prefix cache: every prompt position must be computed.
        """
        return self.params.prompt_logprobs is not None and len(self.prompt_logprobs) < self.num_prompt - 1

    @property
    def is_private(self) -> bool:
        """Whether an intervention makes its K/V unfit for the prefix cache, in both directions."""
        return self.probe is not None and self.probe.is_private

    @property
    def bypasses_cache(self) -> bool:
        """Whether the prefix cache is not read for it, because of an intervention or to see every position computed."""
        return self.probe is not None and self.probe.bypasses_cache

    def usage(self) -> dict[str, int]:
        """Token counts: ``prompt``, ``cached`` (of the prompt, at first admission), ``output``, ``recomputed``; where
        drafts were verified, their tokens that were ``accepted`` (they are output too) and ``rejected``."""
        counts = {
            "prompt_tokens": self.num_prompt,
            "cached_tokens": self.num_cached,
            "output_tokens": self.num_output,
            "recomputed_tokens": self.num_recomputed,
            "preemptions": self.num_preemptions,
        }
        if self.num_accepted or self.num_rejected:
            counts["accepted_draft_tokens"] = self.num_accepted
            counts["rejected_draft_tokens"] = self.num_rejected
        return counts
