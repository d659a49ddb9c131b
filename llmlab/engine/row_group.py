"""Rows of few new positions each, attended to together over gathered blocks: decoding requests and verified drafts.

What does not change from layer to layer (masks, and views of the buffer that all layers gather into) is made once per
step, because on a CPU a decode step is hundreds of operations of microseconds each.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F

from llmlab.engine.attention import Variant, few_mask, softcapped, softmax_with_sinks
from llmlab.engine.kv_pool import KVPool

FEW_KEYS = 384
"""Up to this many keys over all rows, one fused operation is faster than three matrix operations (CPU, measured)."""

MAX_GROUPED = 8
"""Rows of up to this many new positions are attended to together; longer ones one by one, in tiles."""


@dataclass(frozen=True, slots=True)
class RowGroup:
    """Requests whose new positions are packed from ``first`` on, one request after the other.

    ``counts`` says how many each has, ``blocks`` ``(rows, blocks per row)`` are their block tables, padded with any of
    the row's own blocks, and ``lengths`` ``(rows,)`` their positions after this step.
    """

    first: int
    counts: tuple[int, ...]
    blocks: torch.Tensor
    lengths: torch.Tensor

    @property
    def span(self) -> slice:
        """Where the group's positions are packed."""
        return slice(self.first, self.first + sum(self.counts))


class GroupAttention:
    """A group as the layers of one shape and variant see it.

    Rows with fewer new positions than the longest repeat their last one, so that all are alike.
    """

    def __init__(self, pool: KVPool, layer: int, group: RowGroup, variant: Variant) -> None:
        shape = pool.shapes[layer]
        self.pool, self.rows, self.kv, self.queries = pool, len(group.counts), shape.num_kv_heads, max(group.counts)
        self.blocks, lengths = group.blocks.flatten().to(shape.device), group.lengths.to(shape.device)
        self.buffers = pool.buffers_for(layer, len(self.blocks))
        keys = self.buffers[0][: self.kv].flatten(1, 2).unflatten(1, (self.rows, -1))
        values = self.buffers[-1][-self.kv :].flatten(1, 2).unflatten(1, (self.rows, -1))
        self._padding(group.counts, shape.device)
        plain = not variant.softcap and variant.sinks is None
        self.fused = plain and self.rows * keys.shape[2] <= FEW_KEYS
        counts = torch.tensor(group.counts, device=shape.device)
        self.mask = few_mask(lengths, counts, self.queries, keys.shape[2], variant.window, keys.dtype)
        if self.fused:
            self.keys, self.values = keys.transpose(0, 1), values.transpose(0, 1)
        else:
            self.keys, self.values = keys.flatten(0, 1).transpose(1, 2), values.flatten(0, 1)

    def _padding(self, counts: tuple[int, ...], device: torch.device) -> None:
        """Places of the padded queries among the packed ones, and the other way round; ``None`` where nothing is
        padded."""
        self.padded = self.packed = None
        if min(counts) == self.queries:
            return
        places = torch.arange(self.queries, device=device)[None]
        numbers = torch.tensor(counts, device=device)[:, None]
        firsts = numbers.cumsum(0) - numbers
        self.padded = (firsts + places.clamp(max=numbers - 1)).flatten()
        self.packed = (places < numbers).flatten().nonzero().squeeze(-1)

    def attend(self, layer: int, query: torch.Tensor, variant: Variant) -> torch.Tensor:
        """Packed query ``(tokens, heads, dim)``; returns ``(tokens, heads, dim of values)``."""
        self.pool.gather_into(layer, self.blocks, self.buffers)
        query = query if self.padded is None else query[self.padded]
        if self.queries == 1:
            grouped = query.reshape(self.rows, self.kv, -1, query.shape[-1])
        else:
            grouped = query.reshape(self.rows, self.queries, self.kv, -1, query.shape[-1]).permute(0, 2, 3, 1, 4)
            grouped = grouped.flatten(2, 3)
        output = self._fused(grouped, variant) if self.fused else self._matrix_products(grouped, variant)
        if self.queries > 1:
            output = output.unflatten(2, (-1, self.queries)).permute(0, 3, 1, 2, 4).flatten(0, 1)
            output = output if self.packed is None else output[self.packed]
        return output.flatten(1, 2)

    def _fused(self, query: torch.Tensor, variant: Variant) -> torch.Tensor:
        """Query and result ``(rows, kv, group x queries, dim)``."""
        mask = self._repeated(query.shape[2])[:, None]
        return F.scaled_dot_product_attention(query, self.keys, self.values, attn_mask=mask, scale=variant.scale)

    def _matrix_products(self, query: torch.Tensor, variant: Variant) -> torch.Tensor:
        """Query and result ``(rows, kv, group x queries, dim)``."""
        columns = query.shape[2]
        query = query.transpose(0, 1).flatten(0, 1)
        mask = self._over_heads(columns)
        if variant.softcap:
            scores = softcapped(torch.bmm(query, self.keys) * variant.scale, variant) + mask
        else:
            scores = torch.baddbmm(mask, query, self.keys, alpha=variant.scale)
        weights = softmax_with_sinks(scores, self._sinks(variant, columns // self.queries))
        return torch.bmm(weights, self.values).unflatten(0, (self.kv, self.rows)).transpose(0, 1)

    def _repeated(self, columns: int) -> torch.Tensor:
        """The mask ``(rows, columns or 1, width)`` of the queries of all query heads that share a K/V head."""
        if self.mask.shape[1] not in (1, columns):
            self.mask = self.mask.repeat(1, columns // self.queries, 1)
        return self.mask

    def _over_heads(self, columns: int) -> torch.Tensor:
        """The same for all K/V heads, ``(kv x rows, columns or 1, width)``; made in the first layer of a step."""
        if len(self.mask) == self.rows and self.kv > 1:
            self.mask = self._repeated(columns).repeat(self.kv, 1, 1)
        return self.mask if self.kv > 1 else self._repeated(columns)

    def _sinks(self, variant: Variant, group: int) -> torch.Tensor | None:
        if variant.sinks is None:
            return None
        sinks = variant.sinks.view(self.kv, 1, group, 1).expand(-1, self.rows, -1, self.queries)
        return sinks.reshape(self.kv * self.rows, group * self.queries, 1)
