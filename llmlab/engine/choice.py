"""One choice of a token in the open: the rows of numbers the sampler went through on the way to it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from torch import Tensor

if TYPE_CHECKING:
    from llmlab.engine.sampler import SampleInput


@dataclass(frozen=True, slots=True, eq=False)
class Choice:
    """How ``token_id`` was chosen for position ``rules.position``. Rows are ``(V,)`` on the CPU; read only.

    ``logits`` are the model's own, ``adjusted`` follow penalties, biases and bans, ``masked`` the constraint (both the
    row before where there is nothing to apply). ``probs`` is the float64 distribution that the token was drawn from,
    ``None`` when the largest logit was taken. ``u`` is the number in [0, 1) at which
    :func:`~llmlab.engine.distribution.draw` found the token; ``None`` where nothing was drawn, or a draft token was
    judged by another rule.
    """

    rules: SampleInput
    logits: Tensor
    adjusted: Tensor
    masked: Tensor
    probs: Tensor | None
    u: float | None
    token_id: int
