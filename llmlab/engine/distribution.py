"""From one row of logits to a distribution, and from a distribution to a token. Pure functions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from llmlab.engine.params import SamplingParams


def adjust_logits(
    logits: Tensor,
    params: SamplingParams,
    prompt_ids: Sequence[int],
    output_ids: Sequence[int],
    forbidden_ids: Iterable[int] = (),
) -> Tensor:
    """Penalties, biases and bans applied to one row ``(V,)``; returns a new float32 row.

    In this order: the repetition penalty (tokens of prompt and output), the frequency penalty (times the
    number of occurrences in the output) and the presence penalty (once), then ``logit_bias``, then -inf for
    ``forbidden_ids``.
    """
    row = logits.to(torch.float32, copy=True)
    if params.repetition_penalty != 1.0:
        _repetition(row, params.repetition_penalty, {*prompt_ids, *output_ids})
    if (params.presence_penalty or params.frequency_penalty) and output_ids:
        counts = Counter(output_ids)
        times = torch.tensor(list(counts.values()), dtype=torch.float32, device=row.device)
        row[list(counts)] -= params.frequency_penalty * times + params.presence_penalty
    if params.logit_bias:
        values = list(params.logit_bias.values())
        row[list(params.logit_bias)] += torch.tensor(values, dtype=torch.float32, device=row.device)
    for token_id in forbidden_ids:
        row[token_id] = -torch.inf
    return row


def _repetition(row: Tensor, penalty: float, token_ids: set[int]) -> None:
    ids = torch.tensor(sorted(token_ids), dtype=torch.int64, device=row.device)
    seen = row[ids]
    row[ids] = torch.where(seen > 0, seen / penalty, seen * penalty)


def probabilities(logits: Tensor, params: SamplingParams) -> Tensor:
    """The distribution ``(V,)`` in float64 that a token is drawn from; it sums to 1.

    ``logits`` is one row ``(V,)`` whose largest value is finite; -inf marks a token that cannot be drawn.
    Applied in this order, each to what the one before left: temperature, top-k (exactly k tokens), top-p (the
    fewest likeliest tokens that reach the mass), min-p (relative to the likeliest). Equal logits at a cut are
    kept by lower id first. A greedy ``params`` gives all mass to the largest logit (the lowest id among
    equals).
    """
    result = torch.zeros(logits.shape, dtype=torch.float64, device=logits.device)
    if params.greedy:
        result[argmax(logits)] = 1.0
        return result
    logits = logits.float()
    # With the largest at exactly 0 before the division, exp() cannot overflow however small the temperature.
    weights = ((logits - logits.max()) / params.temperature).exp()
    kept = _kept(logits, weights, params)
    if kept is None:
        result.copy_(weights)
    else:
        result[kept] = weights[kept].double()
    return result.div_(result.sum())


def draw(probs: Tensor, u: float) -> int:
    """The token at ``u`` (in [0, 1)) of the cumulated ``probs`` ``(V,)``; never one of probability 0.

    ``probs`` need not sum to 1, only to more than 0: ``u`` is a share of the sum, so rounding leaves no gap at the end.
    """
    # Summed in order, as a CPU does it, the mass does not rise at a token of probability 0, so the first place that
    # exceeds u is not one; there is such a place because the last mass divided by itself is exactly 1.
    mass = probs.double().cpu().cumsum(dim=0)
    return int(torch.searchsorted(mass.div_(mass[-1].clone()), u, right=True))


def argmax(logits: Tensor) -> Tensor:
    """Index of the largest value along the last dimension, the lowest among equals, on every device.

    NumPy finds it several times faster than torch does on a CPU, and promises the same about equal values.
    """
    if logits.device.type == "cpu" and logits.dtype == torch.float32:
        return torch.as_tensor(logits.detach().numpy().argmax(axis=-1))
    return logits.max(dim=-1).indices


def largest(values: Tensor, k: int) -> Tensor:
    """Ids of the ``k`` largest of ``values`` ``(V,)``, largest first; of equal ones the lower ids."""
    if k >= len(values):
        return values.sort(descending=True, stable=True).indices
    # topk promises nothing about which of several equal values it returns, so it only finds the threshold.
    threshold = values.topk(k).values[-1]
    ids = (values >= threshold).nonzero().squeeze(-1)
    return ids[values[ids].sort(descending=True, stable=True).indices[:k]]


def _kept(logits: Tensor, weights: Tensor, params: SamplingParams) -> Tensor | None:
    """Ids that survive top-k, top-p and min-p; ``None`` if nothing filters. The largest weight is 1."""
    kept = None
    if 0 < params.top_k < len(logits):
        kept = largest(logits, params.top_k)
    if params.top_p < 1.0:
        kept = _nucleus(logits, weights, kept, params.top_p)
    if params.min_p > 0.0:
        likely = weights >= params.min_p
        kept = likely.nonzero().squeeze(-1) if kept is None else kept[likely[kept]]
    return kept


def _nucleus(logits: Tensor, weights: Tensor, kept: Tensor | None, top_p: float) -> Tensor:
    """The fewest of the kept tokens, likeliest first, whose share of the kept mass is at least ``top_p``."""
    if kept is None:
        total = weights.sum(dtype=torch.float64)
        # Tokens below this floor have less than 1 - top_p of the mass all together, so none of them is
        # needed, and few are left to sort.
        floor = (1.0 - top_p) * total / len(weights)
        kept = (weights >= floor).nonzero().squeeze(-1)
        kept = kept[logits[kept].sort(descending=True, stable=True).indices]
    else:
        total = weights[kept].sum(dtype=torch.float64)
    mass = weights[kept].double().cumsum(dim=0)
    return kept[: int(torch.searchsorted(mass, top_p * total)) + 1]
