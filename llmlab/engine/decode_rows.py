"""The decoding rows of a step: one new position per request, attended to over gathered blocks.

What does not change from layer to layer (masks, and views of the buffer that all layers gather into) is made once per
step, because on a CPU a decode step is hundreds of operations of microseconds each.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F

from llmlab.engine.attention import Variant, decode_mask, softcapped, softmax_with_sinks
from llmlab.engine.kv_pool import KVPool

FEW_KEYS = 384
"""Up to this many keys over all rows, one fused operation is faster than three matrix operations (CPU, measured)."""


class DecodeRows:
    """Decoding rows as the layers of one shape and variant see them.

    ``blocks``: ``(rows x blocks per row,)``, every row padded to the longest; ``lengths``: ``(rows,)`` positions.
    """

    def __init__(self, pool: KVPool, layer: int, blocks: torch.Tensor, lengths: torch.Tensor, variant: Variant) -> None:
        self.pool, self.blocks, self.rows = pool, blocks, len(lengths)
        self.buffers = pool.buffers_for(layer, len(blocks))
        heads = pool.shapes[layer].num_kv_heads
        keys = self.buffers[0][:heads].flatten(1, 2).unflatten(1, (self.rows, -1))
        values = self.buffers[-1][-heads:].flatten(1, 2).unflatten(1, (self.rows, -1))
        width = keys.shape[2]
        plain = not variant.softcap and variant.sinks is None
        self.fused = plain and self.rows * width <= FEW_KEYS
        self.kv = heads
        mask = decode_mask(lengths, width, variant.window, keys.dtype)
        if self.fused:
            self.keys, self.values, self.mask = keys.transpose(0, 1), values.transpose(0, 1), mask[:, None]
        else:
            self.keys, self.values = keys.flatten(0, 1).transpose(1, 2), values.flatten(0, 1)
            self.mask = mask.repeat(heads, 1, 1)

    def attend(self, layer: int, query: torch.Tensor, variant: Variant) -> torch.Tensor:
        """Query ``(rows, heads, dim)``; returns ``(rows, heads, dim of values)``."""
        self.pool.gather_into(layer, self.blocks, self.buffers)
        grouped = query.reshape(self.rows, self.kv, -1, query.shape[-1])
        if self.fused:
            output = F.scaled_dot_product_attention(
                grouped, self.keys, self.values, attn_mask=self.mask, scale=variant.scale
            )
        else:
            output = self._matrix_products(grouped.transpose(0, 1), variant).transpose(0, 1)
        return output.flatten(1, 2)

    def _matrix_products(self, query: torch.Tensor, variant: Variant) -> torch.Tensor:
        """Query and result ``(kv, rows, group, dim)``."""
        group = query.shape[2]
        query = query.flatten(0, 1)
        if variant.softcap:
            scores = softcapped(torch.bmm(query, self.keys) * variant.scale, variant) + self.mask
        else:
            scores = torch.baddbmm(self.mask, query, self.keys, alpha=variant.scale)
        sinks = None
        if variant.sinks is not None:
            sinks = variant.sinks.view(self.kv, 1, group).expand(-1, self.rows, -1).reshape(-1, group, 1)
        weights = softmax_with_sinks(scores, sinks)
        return torch.bmm(weights, self.values).unflatten(0, (self.kv, self.rows))
