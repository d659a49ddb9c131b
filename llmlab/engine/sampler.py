"""Choose the next token of every row of a batch, each by its own rules."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from llmlab.engine.choice import Choice
from llmlab.engine.constraint import Constraint
from llmlab.engine.distribution import adjust_logits, argmax, draw, largest, probabilities
from llmlab.engine.params import SamplingParams
from llmlab.engine.uniform import uniform
from llmlab.errors import ConstraintError, InvalidLogits, LabError

SLICE_ELEMENTS = 2**22
"""Prompt logits are turned into float32 log-probabilities this many at a time (16 MiB)."""

Top = tuple[tuple[int, float], ...]


@dataclass(slots=True)
class SampleInput:
    """What choosing one row's next token depends on.

    ``seed`` is the resolved one, ``sample`` the index within ``n``, ``position`` the absolute position of the
    token to be chosen, ``num_output`` how many were chosen before, ``eos_token_ids`` the model's.
    ``prompt_ids`` and ``output_ids`` are read only if ``params.needs_adjustment``; ``constraint`` masks the row
    after penalties, biases and bans. ``watch`` is shown how the token was chosen; it must not fail.
    """

    params: SamplingParams
    seed: int
    sample: int
    position: int
    prompt_ids: Sequence[int]
    output_ids: Sequence[int]
    num_output: int
    eos_token_ids: tuple[int, ...]
    constraint: Constraint | None = None
    watch: Callable[[Choice], None] | None = None

    @property
    def forbidden_ids(self) -> set[int]:
        """Ids that would end the output, while ``min_tokens`` says that it must not end."""
        if self.num_output >= self.params.min_tokens:
            return set()
        eos = () if self.params.ignore_eos else self.eos_token_ids
        return {*self.params.stop_token_ids, *eos}


@dataclass(frozen=True, slots=True)
class Sampled:
    """One chosen token. ``logprob`` and ``top`` are natural logs under the model's own distribution.

    ``top`` holds ``(token_id, logprob)``, likeliest first, when ``params.logprobs`` asked for any. ``error``
    says why no token could be chosen (``token_id`` is then -1 and ``logprob`` NaN), else it is ``None``;
    ``error_type`` is what to raise then.
    """

    token_id: int
    logprob: float
    top: Top
    error: str | None
    error_type: type[LabError] = InvalidLogits


def sample(logits: Tensor, rows: Sequence[SampleInput]) -> list[Sampled]:
    """Choose one token for each row of ``logits`` ``(B, V)``, floating point of any width, on any device.

    A row whose logits are unusable gets an ``error`` and disturbs no other. Greedy rows without adjustments
    are chosen together; the others are copied to the CPU at once and chosen one by one, so that a seed gives
    the same arithmetic wherever the model runs.
    """
    assert logits.shape[:-1] == (len(rows),), "one row of logits per row to sample"
    logits = logits.detach().float()
    logprobs = logits.log_softmax(dim=-1)
    best_ids = argmax(logits)
    best, tokens = logits.amax(dim=-1).tolist(), best_ids.tolist()
    chosen = logprobs.gather(-1, best_ids.unsqueeze(-1)).squeeze(-1).tolist()
    result = [Sampled(token, logprob, (), None) for token, logprob in zip(tokens, chosen, strict=True)]
    special = [i for i, row in enumerate(rows) if not (math.isfinite(best[i]) and is_plain(row)) or row.watch]
    for i, row_logits, row_logprobs in zip(special, *_on_cpu(special, logits, logprobs), strict=True):
        result[i] = _sample_row(row_logits, row_logprobs, rows[i])
    return result


def prompt_logprobs(logits: Tensor, next_ids: Tensor | Sequence[int], k: int) -> list[tuple[float, Top]]:
    """Log-probability of each prompt token, and the ``k`` likeliest tokens at its place.

    Both are natural logs under the model's own distribution. Row ``t`` of ``logits`` ``(T, V)`` predicts
    ``next_ids[t]``. Returns ``T`` pairs ``(logprob, top)``.
    """
    targets = torch.as_tensor(next_ids, dtype=torch.int64, device=logits.device)
    assert logits.shape[:-1] == targets.shape, "one row of logits per prompt token"
    size = max(1, SLICE_ELEMENTS // logits.shape[-1])
    result: list[tuple[float, Top]] = []
    for part, ids in zip(logits.detach().split(size), targets.split(size), strict=True):
        logprobs = part.float().log_softmax(dim=-1)
        chosen = logprobs.gather(-1, ids.unsqueeze(-1)).squeeze(-1).tolist()
        tops = [top_of(row, k) for row in logprobs.cpu()] if k else [()] * len(chosen)
        result.extend(zip(chosen, tops, strict=True))
    return result


def _on_cpu(indices: list[int], *batches: Tensor) -> list[Sequence[Tensor]]:
    """Rows ``indices`` of each batch: views where that costs nothing, else one transfer for each batch."""
    if all(batch.device.type == "cpu" for batch in batches):
        return [[batch[i] for i in indices] for batch in batches]
    return [batch[indices].cpu() if indices else () for batch in batches]


def is_plain(row: SampleInput) -> bool:
    """Whether the largest raw logit is all there is to find."""
    params = row.params
    if row.constraint is not None or row.num_output < params.min_tokens:
        return False
    return params.greedy and not params.needs_adjustment and not params.logprobs


def _sample_row(logits: Tensor, logprobs: Tensor, row: SampleInput) -> Sampled:
    """Choose by all of a row's rules; ``logits`` and ``logprobs`` are ``(V,)`` on the CPU."""
    adjusted, problem = adjusted_row(logits, row)
    if problem is not None:
        return Sampled(-1, math.nan, (), problem)
    masked, u, probs = adjusted, None, None
    if row.constraint is not None:
        masked, problem = _constrain(adjusted, row)
        if problem is not None:
            return Sampled(-1, math.nan, (), problem, ConstraintError)
    if row.params.greedy:
        token_id = int(argmax(masked))
    else:
        u, probs = uniform(row.seed, row.sample, row.position), probabilities(masked, row.params)
        token_id = draw(probs, u)
    if row.watch is not None:
        row.watch(Choice(row, logits, adjusted, masked, probs, u, token_id))
    return Sampled(token_id, float(logprobs[token_id]), top_of(logprobs, row.params.logprobs), None)


def adjusted_row(logits: Tensor, row: SampleInput) -> tuple[Tensor, str | None]:
    """A row ``(V,)`` after penalties, biases and bans, or the row as it is and why no token can be chosen from it."""
    if not math.isfinite(float(logits.max())):
        return logits, _unusable(logits)
    forbidden = row.forbidden_ids
    if not row.params.needs_adjustment and not forbidden:
        return logits, None
    adjusted = adjust_logits(logits, row.params, row.prompt_ids, row.output_ids, forbidden)
    return adjusted, _all_forbidden(row) if float(adjusted.max()) == -math.inf else None


def _constrain(logits: Tensor, row: SampleInput) -> tuple[Tensor, str | None]:
    """The row as the constraint leaves it, or why it cannot be used. The model's own row stays as it is."""
    try:
        masked = row.constraint.mask(logits.clone())
        best = float(masked.max())
    except Exception as error:  # not ours: it ends its own request only
        return logits, f"its constraint failed: {type(error).__name__}: {error}"
    if masked.shape != logits.shape:
        return logits, f"its constraint made {tuple(masked.shape)} of a row of shape {tuple(logits.shape)}"
    if not math.isfinite(best):
        banned = " that min_tokens does not forbid" if row.forbidden_ids else ""
        return logits, f"its constraint allows no token{banned} here"
    return masked, None


def top_of(logprobs: Tensor, k: int | None) -> Top:
    """The ``k`` likeliest tokens of a row ``(V,)`` of log-probabilities; nothing for 0 and ``None``."""
    if not k:
        return ()
    ids = largest(logprobs, k)
    return tuple(zip(ids.tolist(), logprobs[ids].tolist(), strict=True))


def _unusable(logits: Tensor) -> str:
    nan = int(logits.isnan().sum())
    infinite = int(logits.isposinf().sum())
    found = f"{nan} NaN and {infinite} +inf" if nan or infinite else "no value above -inf"
    return (
        f"the model's logits hold {found} among {len(logits)} values, so no token can be chosen; "
        "check the weights, or load the model with a wider dtype such as float32"
    )


def _all_forbidden(row: SampleInput) -> str:
    return (
        f"min_tokens={row.params.min_tokens} forbids every token that the model allows here (EOS and "
        "stop_token_ids); lower min_tokens or give fewer stop_token_ids"
    )
