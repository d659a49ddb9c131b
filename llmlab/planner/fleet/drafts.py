"""Speculation in a simulation: drafts of a stated acceptance, their length chosen by the engine's own rule."""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random
from typing import Literal

from llmlab.engine.request import Request
from llmlab.engine.speculative.adaptive import CPU, Adaptive, StepTime
from llmlab.errors import InvalidParameter


@dataclass(frozen=True, slots=True)
class Speculating:
    """``acceptance``: the chance that a draft token is kept when all before it were; stated, or measured elsewhere.

    ``k`` tokens are drafted, always, or with ``by_load`` as many as
    :class:`~llmlab.engine.speculative.adaptive.Adaptive` finds worth it in the batch there is, given what ``step`` says
    of the device. ``draft_cost``: what proposing one token takes, as a share of the step without drafts.
    """

    acceptance: float
    k: int = 4
    by_load: bool = False
    draft_cost: float = 0.0
    step: StepTime = CPU
    origin: Literal["stated", "measured"] = "stated"

    def __post_init__(self) -> None:
        if not 0 <= self.acceptance <= 1:
            raise InvalidParameter(f"acceptance={self.acceptance!r} must be a share from 0 to 1")
        if type(self.k) is not int or self.k < 1:
            raise InvalidParameter(f"k={self.k!r} must be a whole number of at least 1")

    def __str__(self) -> str:
        length = f"up to {self.k} by load" if self.by_load else str(self.k)
        return f"drafts of {length}, acceptance {self.acceptance:g} ({self.origin})"


@dataclass(slots=True)
class Drafter:
    """Gives the running requests of one replica their drafts and decides by seeded chance what is kept."""

    settings: Speculating
    generator: Random
    rule: Adaptive = field(init=False)

    def __post_init__(self) -> None:
        chosen = self.settings
        self.rule = Adaptive(longest=chosen.k, draft_cost=chosen.draft_cost, step=chosen.step)

    def choose(self, request: Request, batch_size: int) -> tuple[int, str | None]:
        """How many tokens to draft, and why that changed."""
        return self.rule.choose(request.id, batch_size) if self.settings.by_load else (self.settings.k, None)

    def kept(self, request: Request, num_draft: int) -> int:
        """How many of the tokens are kept: up to the first that is not."""
        accepted = 0
        while accepted < num_draft and self.generator.random() < self.settings.acceptance:
            accepted += 1
        self.rule.add(request.id, accepted, min(accepted + 1, num_draft))
        return accepted
