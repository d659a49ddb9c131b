"""What one process keeps of a model, and the ways in which a model can be divided."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from types import MappingProxyType
from typing import Any, Protocol

import torch

from llmlab.engine.kv_pool import KVPool, LayerShape
from llmlab.models.load import LoadedModel
from llmlab.parallel.comm import Comm
from llmlab.parallel.sent_plan import SentPlan


class PartRunner(Protocol):
    """Computes a process's share of steps. All processes of a group are given the same plans in the same order."""

    def build(self, plan: SentPlan) -> Any:
        """Turn the plan into tensors."""

    def forward(self, batch: Any) -> torch.Tensor | None:
        """Compute the share; on rank 0 the logits ``(sum of num_logits over rows, vocabulary)``, in row order."""


@dataclass(frozen=True, slots=True)
class Share:
    """What a process keeps: ``shapes`` of the K/V of the layers or heads it has, layer ``first_layer`` first.

    ``make`` gives the runner on a pool of these shapes.
    """

    shapes: list[LayerShape]
    first_layer: int
    make: Callable[[KVPool], PartRunner]

    @property
    def last_layer(self) -> int:
        """The last layer of which it has something."""
        return self.first_layer + len(self.shapes) - 1


@dataclass(frozen=True, slots=True)
class DivideOptions:
    """``shapes`` are those of the whole model's K/V; ``optimize`` as for :func:`~llmlab.engine.build.build_runner`;
    ``micro_batches`` is how many parts of a batch follow each other through the stages of a pipeline."""

    shapes: list[LayerShape]
    optimize: bool = True
    micro_batches: int = 1


WAYS = MappingProxyType(
    {
        "tensor": "llmlab.parallel.tensor",
        "pipeline": "llmlab.parallel.pipeline",
        "expert": "llmlab.parallel.experts",
    }
)
"""Role -> module, which has ``check(model, size)``: raise a named error where ``model`` cannot be divided over ``size``
processes, before any is started; and ``divide(loaded, comm, options)``: reduce a loaded model to this process's
:class:`Share`, in place."""


def check(role: str, model: torch.nn.Module, size: int) -> None:
    """Raise ``InvalidParameter`` or ``UnsupportedModel`` where ``model`` cannot be divided so."""
    import_module(WAYS[role]).check(model, size)


def divide(loaded: LoadedModel, comm: Comm, options: DivideOptions) -> Share:
    """Reduce ``loaded`` in place to what process ``comm.rank`` keeps of it."""
    return import_module(WAYS[comm.role]).divide(loaded, comm, options)
