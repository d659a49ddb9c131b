"""Expert parallel: every process has some experts of every layer, and each token goes only to where its experts are.

Attention, K/V and routers are in every process, and each process dispatches its own run of the packed tokens: a vector
for every pair of a token and an expert of another process leaves (dispatch), its expert's output comes back (combine),
and is weighted and added where the token came from (GShard, arXiv 2006.16668, section 3). Because attention is not
divided here, every process then needs all tokens, so the runs are gathered. Which experts a process has is a run of
their numbers; a model whose load is uneven keeps some processes waiting for others.
"""

from __future__ import annotations

from collections.abc import Iterator
from time import perf_counter_ns

import torch
from torch import nn

from llmlab.engine import seam
from llmlab.engine.build import speed_up
from llmlab.engine.kv_pool import KVPool
from llmlab.engine.model_runner import ModelRunner
from llmlab.errors import InvalidParameter, UnsupportedModel
from llmlab.models.load import LoadedModel
from llmlab.parallel.comm import Comm
from llmlab.parallel.share import DivideOptions, Share
from llmlab.parallel.tensor import TensorRunner, part_of


def experts_of(model: nn.Module) -> Iterator[tuple[int, nn.Module]]:
    """Layer number and the block that routes and has ``experts``, of every layer of a mixture.

    transformers keeps all experts of a layer in one module, called with tokens, expert numbers and weights.
    """
    for name, module in model.named_modules():
        experts = getattr(module, "experts", None)
        if isinstance(experts, nn.Module) and hasattr(experts, "num_experts") and hasattr(experts, "gate_up_proj"):
            yield next(int(part) for part in name.split(".") if part.isdigit()), module


def check(model: nn.Module, size: int) -> None:
    """Raise ``UnsupportedModel`` for a model without experts, ``InvalidParameter`` for more processes than experts."""
    counts = [block.experts.num_experts for _, block in experts_of(model)]
    if not counts:
        raise UnsupportedModel(
            f"a model of type {model.config.model_type!r} cannot be divided by experts: it has none, or keeps them in "
            "another way. Mixtral, Qwen 3 MoE and GPT-OSS can; llmlab.training.moe trains a small Mixtral."
        )
    if size > min(counts):
        raise InvalidParameter(f"expert_parallel={size} is more than the {min(counts)} experts of a layer")


@torch.no_grad()
def divide(loaded: LoadedModel, comm: Comm, options: DivideOptions) -> Share:
    """Keep this process's experts of every layer, in place, and add the communication around them."""
    model = loaded.model
    seam.install(model)
    for layer, block in list(experts_of(model)):
        block.experts = DispatchedExperts(block.experts, comm, layer)
    lean = speed_up(model) if options.optimize else None

    def make(pool: KVPool) -> TensorRunner:
        # every process computes the same batch, as in tensor parallel
        return TensorRunner(ModelRunner(loaded, pool, lean=lean), comm, len(options.shapes))

    return Share(list(options.shapes), 0, make)


class DispatchedExperts(nn.Module):
    """Takes the place of a layer's experts: has those of this process, and reaches the others through ``comm``."""

    def __init__(self, experts: nn.Module, comm: Comm, layer: int) -> None:
        super().__init__()
        self.num_experts = experts.num_experts
        self.parts = [part_of(self.num_experts, rank, comm.size) for rank in range(comm.size)]
        self.local = _keep(experts, self.parts[comm.rank])
        self._comm, self._layer = comm, layer

    def forward(self, hidden: torch.Tensor, chosen: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        """``hidden`` ``(tokens, width)``, ``chosen`` and ``weights`` ``(tokens, top_k)``: the weighted sum, in every
        process."""
        sizes = [len(part_of(len(hidden), rank, self._comm.size)) for rank in range(self._comm.size)]
        mine = part_of(len(hidden), self._comm.rank, self._comm.size)
        run = slice(mine.start, mine.stop)
        mixed = self._mix(hidden[run], chosen[run], weights[run])
        # messages of a collective have one size: shorter runs are padded
        padded = nn.functional.pad(mixed, (0, 0, 0, max(sizes) - len(mixed)))
        runs = self._comm.all_gather(padded, self._layer, "mlp")
        return torch.cat([part[:size] for part, size in zip(runs, sizes, strict=True)])

    def _mix(self, hidden: torch.Tensor, chosen: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        """The weighted outputs of this process's own run of tokens, ``(tokens, width)``."""
        pairs = chosen.flatten()
        order = pairs.argsort(stable=True)
        sent = torch.bincount(pairs, minlength=self.num_experts)
        outputs = self._elsewhere(hidden[order // chosen.shape[1]], sent)
        back = torch.empty_like(outputs)
        back[order] = outputs
        return (back.unflatten(0, chosen.shape) * weights[..., None]).sum(1).to(hidden.dtype)

    def _elsewhere(self, rows: torch.Tensor, sent: torch.Tensor) -> torch.Tensor:
        """Outputs of ``rows`` ``(pairs, width)``, in order of expert: ``sent[e]`` of them for expert ``e``."""
        comm, layer = self._comm, self._layer
        there = list(sent.split([len(part) for part in self.parts]))
        told = comm.all_to_all(there, [len(self.parts[comm.rank])] * comm.size, layer, "counts")
        to, come = ([int(counts.sum()) for counts in each] for each in (there, told))
        received = comm.all_to_all(list(rows.split(to)), come, layer, "dispatch")
        start = perf_counter_ns()
        computed = self._compute(torch.cat(received), torch.cat(told))
        comm.note_work("experts", start, sum(come), -1, layer, layer)
        return torch.cat(comm.all_to_all(list(computed.split(come)), to, layer, "combine"))

    def _compute(self, rows: torch.Tensor, counts: torch.Tensor) -> torch.Tensor:
        """Each row through its one expert; ``counts`` ``(ranks x local experts,)`` say whose rows follow each other."""
        if not len(rows):
            return rows
        numbers = torch.arange(len(counts), device=rows.device) % len(self.parts[self._comm.rank])
        expert = numbers.repeat_interleave(counts)[:, None]
        return self.local(rows, expert, torch.ones_like(expert, dtype=rows.dtype))


def _keep(experts: nn.Module, part: range) -> nn.Module:
    """The module with only the experts of ``part``, under the numbers 0, 1, ...; it owns copies of their weights."""
    rows = slice(part.start, part.stop)
    for name, parameter in list(experts.named_parameters(recurse=False)):
        if parameter.shape[0] == experts.num_experts:
            kept = nn.Parameter(parameter.detach()[rows].clone(), requires_grad=False)
            setattr(experts, name, kept)
    experts.num_experts = len(part)
    return experts
