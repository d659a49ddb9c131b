"""On CUDA: one call of torch's variable-length attention reads the pool through the block tables, nothing is gathered.

Used only where the load-time self-check found its logits equal to the plain model's; otherwise
:mod:`llmlab.engine.attention` does the same on gathered blocks, on any device.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from llmlab.engine.attention import Variant

if TYPE_CHECKING:
    from llmlab.engine.step_view import StepView


@dataclass(frozen=True, slots=True)
class VarlenTables:
    """Row boundaries and block tables of a step, as the kernel wants them (int32, on the device)."""

    cumulative: torch.Tensor
    lengths: torch.Tensor
    blocks: torch.Tensor
    longest_query: int
    longest: int

    @classmethod
    def of(cls, view: StepView, device: torch.device) -> VarlenTables:
        """Groups of rows first, then prefill rows: the order in which the step's tokens are packed."""
        counts = [count for group in view.groups for count in group.counts] + [row.num_tokens for row in view.prefills]
        lengths = [length for group in view.groups for length in group.lengths.tolist()]
        lengths += [row.length for row in view.prefills]
        tables = [table for group in view.groups for table in group.blocks.cpu()]
        tables += [row.blocks.cpu() for row in view.prefills]
        blocks = torch.nn.utils.rnn.pad_sequence(tables, batch_first=True)
        cumulative = torch.tensor([0, *counts]).cumsum(0)
        return cls(
            cumulative.to(device, torch.int32),
            torch.tensor(lengths, dtype=torch.int32, device=device),
            blocks.to(device, torch.int32),
            max(counts),
            max(lengths),
        )


def supports(variant: Variant, dtype: torch.dtype) -> bool:
    """Whether the kernel computes this layer's kind of attention."""
    return dtype in (torch.float16, torch.bfloat16) and not variant.softcap and variant.sinks is None


def attend_varlen(
    query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, tables: VarlenTables, variant: Variant
) -> torch.Tensor:
    """Query ``(tokens, heads, dim)``, pool tensors ``(kv, num_blocks, block_size, dim)``; returns like the query."""
    from torch.nn.attention.varlen import varlen_attn

    return varlen_attn(
        query,
        keys.permute(1, 2, 0, 3),
        values.permute(1, 2, 0, 3),
        tables.cumulative,
        None,
        tables.longest_query,
        tables.longest,
        scale=variant.scale,
        window_size=(variant.window - 1 if variant.window else -1, 0),
        enable_gqa=True,
        seqused_k=tables.lengths,
        block_table=tables.blocks,
    )
