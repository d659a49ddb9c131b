"""What the engine needs from a model: build a batch from a plan, run it, return logits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from llmlab.engine.plan import StepPlan, Swap


@dataclass(frozen=True, slots=True)
class Capacity:
    """Shape of the K/V pool and limits of the model behind a runner.

    ``kv_bytes_per_token`` counts keys and values of all layers; ``max_model_len`` is the longest sequence in tokens.
    ``num_heads`` is the number of query heads of a layer, 0 when it is not known.
    """

    num_blocks: int
    block_size: int
    num_layers: int
    num_kv_heads: int
    head_dim: int
    kv_bytes_per_token: int
    vocab_size: int
    max_model_len: int
    num_heads: int = 0


class Runner(Protocol):
    """Two implementations: :class:`llmlab.engine.model_runner.ModelRunner` and the mock model."""

    capacity: Capacity
    model: str
    device: str
    dtype: str

    def build(self, plan: StepPlan) -> Any:
        """Turn the plan into the tensors of one forward pass."""

    def open_host(self, num_blocks: int) -> None:
        """Allocate a second pool of so many blocks in host memory."""

    def swap(self, swaps: Sequence[Swap]) -> None:
        """Copy blocks between the pools, one swap after the other, and note in each its times and bytes."""

    def forward(self, batch: Any) -> torch.Tensor:
        """Compute the step; logits of shape ``(sum of num_logits over rows, vocabulary)``, in row order."""
