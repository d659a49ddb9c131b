"""Attention of chosen query rows, in the open: scores before softmax and weights after it."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from llmlab.engine.attention import Variant, softcapped, softmax_with_sinks


def attention_rows(
    query: torch.Tensor, keys: torch.Tensor, heads: Sequence[int], positions: torch.Tensor, variant: Variant
) -> tuple[torch.Tensor, torch.Tensor]:
    """Scores and weights ``(len(heads), n, length)`` in float32 of queries at ``positions`` ``(n,)``.

    ``query`` ``(all heads, n, dim)``, ``keys`` ``(kv, length, dim)``: every query head reads the one K/V head of its
    group, nothing is repeated. Scores of keys that are not seen are -inf.
    """
    group = len(query) // len(keys)
    hidden = _hidden(positions, keys.shape[1], variant.window)
    maps = [
        _one_head(query[head], keys[head // group], hidden, variant, None if variant.sinks is None else head)
        for head in heads
    ]
    scores, weights = zip(*maps, strict=True)
    return torch.stack(scores), torch.stack(weights)


def _hidden(positions: torch.Tensor, length: int, window: int) -> torch.Tensor:
    ages = positions[:, None] - torch.arange(length, device=positions.device)
    return (ages < 0) | (ages >= window) if window else ages < 0


def _one_head(
    query: torch.Tensor, keys: torch.Tensor, hidden: torch.Tensor, variant: Variant, sink: int | None
) -> tuple[torch.Tensor, torch.Tensor]:
    scores = softcapped((query.float() * variant.scale) @ keys.float().T, variant).masked_fill(hidden, -torch.inf)
    sinks = None if sink is None else variant.sinks[sink].float().to(scores.device).expand(len(scores), 1)
    return scores, softmax_with_sinks(scores, sinks)
