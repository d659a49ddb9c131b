"""The distributions one choice of a token went through, stage by stage."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from llmlab.engine.choice import Choice
from llmlab.engine.distribution import largest, probabilities
from llmlab.engine.params import SamplingParams
from llmlab.trace.distribution import STAGES

OFF = (("temperature", 1.0), ("top_k", 0), ("top_p", 1.0), ("min_p", 0.0))
"""The filters in the order in which they are applied, with the values that switch them off."""


@dataclass(frozen=True, slots=True, eq=False)
class Stage:
    """One distribution ``probs`` ``(V,)`` in float64 on the way to a token, and which tokens it ``allows`` ``(V,)``:
    a token with a probability too small for a float is not excluded."""

    name: str
    probs: Tensor
    allows: Tensor

    @property
    def label(self) -> int:
        """Its place in :data:`~llmlab.trace.distribution.STAGES`."""
        return STAGES.index(self.name)

    @property
    def entropy(self) -> float:
        """In nats."""
        return float(-torch.xlogy(self.probs, self.probs).sum())


def stages_of(choice: Choice) -> list[Stage]:
    """The stages that are active for a choice: ``raw`` first, ``final`` last. The same ones for all of a request.

    The filters are applied by the sampler's own function, each time with one more of them switched on.
    """
    params = choice.rules.params
    stages = [_of_logits("raw", choice.logits)]
    if params.needs_adjustment or params.min_tokens:
        stages.append(_of_logits("penalties", choice.adjusted))
    if choice.rules.constraint is not None:
        stages.append(_of_logits("constraint", choice.masked))
    if choice.probs is None:
        final = torch.zeros(len(choice.logits), dtype=torch.float64)
        final[choice.token_id] = 1.0
        return [*stages, _of_probs("final", final)]
    filtered = [_of_probs(name, probabilities(choice.masked, part)) for name, part in _partly(params, choice)]
    assert not filtered or torch.equal(filtered[-1].probs, choice.probs), "the last filter gives what was drawn from"
    return [*stages, *filtered, _of_probs("final", choice.probs)]


def _partly(params: SamplingParams, choice: Choice) -> Iterator[tuple[str, SamplingParams]]:
    """The active filters by name, with the parameters that switch on all filters up to them."""
    for i, (name, off) in enumerate(OFF):
        value = getattr(params, name)
        if value != off and not (name == "top_k" and value >= len(choice.logits)):
            yield name.replace("_", "-"), replace(params, **dict(OFF[i + 1 :]))


def _of_logits(name: str, logits: Tensor) -> Stage:
    return Stage(name, logits.double().softmax(dim=-1), logits > -torch.inf)


def _of_probs(name: str, probs: Tensor) -> Stage:
    return Stage(name, probs, probs > 0)


def left_at(stages: Sequence[Stage], ids: Tensor) -> Tensor:
    """For tokens ``ids`` ``(C,)``: 1 + label of the first stage that excludes each, 0 where none does."""
    left = torch.zeros(len(ids), dtype=torch.int64)
    for stage in stages:
        left[~stage.allows[ids] & (left == 0)] = 1 + stage.label
    return left


def candidates_of(choice: Choice, final: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """The ``count`` likeliest tokens of the model and of the ``final`` distribution, and the chosen one.

    Returns their ids and their ranks by the model (0: likeliest; of equals the lower id first), by rank.
    """
    logits = choice.logits
    first, last = largest(logits, count), largest(final, count)
    extra = {*last[final[last] > 0].tolist(), choice.token_id} - set(first.tolist())
    ranks = [int((logits > logits[i]).sum() + (logits[:i] == logits[i]).sum()) for i in extra]
    ids = torch.tensor([*first.tolist(), *extra])
    rank = torch.tensor([*range(len(first)), *ranks])
    order = rank.argsort()
    return ids[order], rank[order]
