"""Attention over gathered blocks: scores, mask, softmax, values, with query heads grouped per K/V head.

No K/V head is ever repeated: the ``group`` query heads that share one are rows of the same matrix product. Shapes are
written with ``kv`` K/V heads, ``group`` query heads per K/V head, ``dim`` numbers per head.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

TILE = 64
"""Query positions per tile in prefill: a tile's scores stay in the cache, and keys after the tile are never read."""


@dataclass(frozen=True, slots=True)
class Variant:
    """What a layer does beyond plain causal attention.

    ``scale`` multiplies the scores; ``window`` is how many latest positions are seen, the own one included (0: all);
    ``softcap`` bounds scores to ``+-softcap`` (0: off); ``sinks`` is one more logit per query head that takes
    probability and has no value, ``(kv x group,)``.
    """

    scale: float
    window: int = 0
    softcap: float = 0.0
    sinks: torch.Tensor | None = None


def few_mask(
    lengths: torch.Tensor, counts: torch.Tensor, queries: int, width: int, window: int, dtype: torch.dtype
) -> torch.Tensor:
    """Additive mask ``(rows, queries, width)`` of rows with ``lengths`` positions, the last ``counts`` of them new.

    Query ``j`` of a row stands at its ``j``-th new position (the last one when there are fewer) and sees ``window``
    positions up to there, all when that is 0.
    """
    positions = torch.arange(width, device=lengths.device)
    steps = torch.arange(queries, device=lengths.device)
    at = ((lengths - counts)[:, None] + torch.minimum(steps, counts[:, None] - 1))[..., None]
    hidden = positions > at
    if window:
        hidden |= positions <= at - window
    return torch.zeros(hidden.shape, dtype=dtype, device=lengths.device).masked_fill_(hidden, -torch.inf)


def attend_prefill(query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, variant: Variant) -> torch.Tensor:
    """The last ``n`` positions of one sequence: query ``(kv, group, n, dim)``, keys and values ``(kv, length, dim)``.

    Query ``i`` sits at position ``length - n + i``. Returns ``(kv, group, n, dim of values)``.
    """
    kv, group, n, dim = query.shape
    offset = keys.shape[1] - n
    output = query.new_empty(kv, group, n, values.shape[-1])
    query, transposed = query * variant.scale, keys.transpose(1, 2)
    for first in range(0, n, TILE):
        end = min(first + TILE, n)
        low = max(0, offset + first - variant.window + 1) if variant.window else 0
        high = offset + end
        rows = query[:, :, first:end].reshape(kv, -1, dim)
        scores = softcapped(torch.bmm(rows, transposed[:, :, low:high]), variant)
        _hide(scores.view(kv, group, end - first, high - low), variant.window)
        sinks = None if variant.sinks is None else _tile_sinks(variant.sinks, kv, end - first)
        weights = softmax_with_sinks(scores, sinks)
        output[:, :, first:end] = torch.bmm(weights, values[:, low:high]).view(kv, group, end - first, -1)
    return output


def _hide(scores: torch.Tensor, window: int) -> None:
    """Mask a tile in place. Its queries are the last positions of its keys, so only two corners can be hidden."""
    n, width = scores.shape[-2:]
    future = torch.ones(n, n, dtype=torch.bool, device=scores.device).triu_(1)
    scores[..., width - n :].masked_fill_(future, -torch.inf)
    if window:
        ages = torch.arange(width - n, width, device=scores.device)[:, None] - torch.arange(width, device=scores.device)
        scores.masked_fill_(ages >= window, -torch.inf)


def _tile_sinks(sinks: torch.Tensor, kv: int, n: int) -> torch.Tensor:
    return sinks.view(kv, -1, 1).expand(-1, -1, n).reshape(kv, -1, 1)


def softcapped(scores: torch.Tensor, variant: Variant) -> torch.Tensor:
    """Scores bounded to ``+-variant.softcap``; as they are when that is 0."""
    return torch.tanh(scores / variant.softcap) * variant.softcap if variant.softcap else scores


def softmax_with_sinks(scores: torch.Tensor, sinks: torch.Tensor | None) -> torch.Tensor:
    """Softmax over the last dimension; ``sinks`` (one more column, or ``None``) takes its share and is dropped."""
    if sinks is None:
        return torch.softmax(scores, dim=-1)
    return torch.softmax(torch.cat((scores, sinks.to(scores.dtype)), dim=-1), dim=-1)[..., :-1]
