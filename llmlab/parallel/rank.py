"""What every process of a group does with a model: keep its share, give it a K/V pool, compute steps."""

from __future__ import annotations

from typing import Any

import torch

from llmlab.engine.kv_pool import KVPool, LayerShape
from llmlab.models.load import LoadedModel
from llmlab.parallel.comm import Comm
from llmlab.parallel.sent_plan import SentPlan
from llmlab.parallel.share import DivideOptions, PartRunner, divide


class Rank:
    """A process's share of a loaded model, which it takes over and reduces in place."""

    def __init__(self, loaded: LoadedModel, comm: Comm, options: DivideOptions) -> None:
        self.comm = comm
        self.share = divide(loaded, comm, options)
        self.num_parameters = _num_parameters(loaded.model)
        self.runner: PartRunner | None = None

    def allocate(self, num_blocks: int, block_size: int) -> None:
        """A fresh pool; block ids mean the same in every process."""
        self.pool = KVPool(self.share.shapes, num_blocks, block_size)
        self.runner = self.share.make(self.pool)

    def step(self, plan: SentPlan, recording: bool) -> torch.Tensor | None:
        """Compute the share of one step."""
        self.comm.step, self.comm.recording = plan.step, recording
        return self.runner.forward(self.runner.build(plan))


def _num_parameters(model: torch.nn.Module) -> int:
    """Weights kept, packed ones included: those are no parameters any more."""
    packed = [module.packed for module in model.modules() if hasattr(module, "packed")]
    return sum(tensor.numel() for tensor in [*model.parameters(), *packed])


def shapes_to_json(shapes: list[LayerShape]) -> list[list[Any]]:
    """K/V shapes as numbers and names."""
    return [[s.num_kv_heads, s.key_dim, s.value_dim, str(s.dtype).removeprefix("torch.")] for s in shapes]


def shapes_from_json(data: list[list[Any]], device: torch.device) -> list[LayerShape]:
    """What :func:`shapes_to_json` made, on this process's device."""
    return [LayerShape(heads, key, value, device, getattr(torch, dtype)) for heads, key, value, dtype in data]
