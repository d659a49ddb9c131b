"""Tensor parallel: every process has some heads of every layer, and a slice of every MLP.

Which matrices are cut, and along which side, is transformers' own plan for the architecture (``base_model_tp_plan``):
``colwise`` ones by output, ``rowwise`` ones by input, so that a layer needs two sums over the processes (Megatron-LM,
arXiv 1909.08053, section 3). Attention is cut between groups of a key/value head and its query heads, so that a process
keeps the K/V of its own heads only. Embeddings and norms are everywhere; the head is cut by rows of the vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from time import perf_counter_ns

import torch
from torch import nn

from llmlab.engine import seam
from llmlab.engine.build import speed_up
from llmlab.engine.kv_pool import KVPool
from llmlab.engine.model_runner import Batch, ModelRunner
from llmlab.errors import InvalidParameter, UnsupportedModel
from llmlab.models.load import LoadedModel
from llmlab.parallel.comm import Comm
from llmlab.parallel.sent_plan import SentPlan
from llmlab.parallel.share import DivideOptions, Share

FAMILIES = "Llama, Mistral, Qwen 2 and 3 and Gemma can be divided so"


def part_of(total: int, rank: int, size: int) -> range:
    """Which of ``total`` things process ``rank`` of ``size`` has: runs as equal as they can be, longer ones first."""
    share, rest = divmod(total, size)
    first = rank * share + min(rank, rest)
    return range(first, first + share + (rank < rest))


@dataclass(frozen=True, slots=True)
class Cut:
    """One linear layer that is divided: ``style`` ``colwise`` or ``rowwise``, in ``layer``, ``place`` ``attention`` or
    ``mlp``; ``name`` is the attribute of ``parent`` that holds it."""

    parent: nn.Module
    name: str
    style: str
    layer: int
    place: str

    @property
    def linear(self) -> nn.Linear:
        """The layer as it is now."""
        return getattr(self.parent, self.name)


def cuts_of(model: nn.Module) -> list[Cut]:
    """The linear layers of all decoder layers with what transformers' plan says about them.

    Raises ``UnsupportedModel`` where the plan says nothing, or something that is not known here.
    """
    plan, cuts = getattr(model, "tp_plan", None) or {}, []
    for layer, where, module in _modules_of_layers(model):
        for name, child in module.named_children():
            style = plan.get(f"{where}.{name}")
            if isinstance(child, nn.Linear) or style in ("colwise", "rowwise"):
                if style not in ("colwise", "rowwise") or type(child) is not nn.Linear:
                    raise _cannot(model, f"its {name} has the plan {style!r}, not 'colwise' or 'rowwise'")
                cuts.append(Cut(module, name, style, layer, "attention" if hasattr(module, "layer_idx") else "mlp"))
            elif style is not None and not style.startswith("replicated"):
                raise _cannot(model, f"its {name} has the plan {style!r}")
        if any(True for _ in module.parameters(recurse=False)) and hasattr(module, "layer_idx"):
            raise _cannot(model, f"{type(module).__name__} has weights of its own for every head")
    if not {(cut.layer, cut.place, cut.style) for cut in cuts} >= _wanted(model):
        raise _cannot(model, "its plan does not name attention and MLP matrices in every layer")
    return cuts


def _modules_of_layers(model: nn.Module) -> Iterator[tuple[int, str, nn.Module]]:
    """Layer number, name in the plan (``*`` for the layer's number) and module, of everything in the layers."""
    for name, module in model.named_modules():
        parts = name.split(".")
        for i, part in enumerate(parts):
            if part.isdigit():
                yield int(part), ".".join([*parts[:i], "*", *parts[i + 1 :]]), module
                break


def _wanted(model: nn.Module) -> set[tuple[int, str, str]]:
    layers = range(model.config.get_text_config().num_hidden_layers)
    return {(i, place, style) for i in layers for place in ("attention", "mlp") for style in ("colwise", "rowwise")}


def _cannot(model: nn.Module, why: str) -> UnsupportedModel:
    kind = model.config.model_type
    return UnsupportedModel(f"an architecture of type {kind!r} cannot be divided by tensors: {why}. {FAMILIES}.")


# -- the division -------------------------------------------------------------------------------------------------


def check(model: nn.Module, size: int) -> None:
    """Raise ``InvalidParameter`` for more processes than key/value heads, ``UnsupportedModel`` for other families."""
    cuts_of(model)
    config = model.config.get_text_config()
    heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
    if size > heads:
        raise InvalidParameter(
            f"tensor_parallel={size} is more than the model's {heads} key/value heads, and a head is not cut: use 2 to "
            f"{heads} processes"
            if heads > 1
            else f"tensor_parallel={size}: the model has one key/value head, which "
            "is not cut: use pipeline_parallel instead"
        )
    if size > config.intermediate_size or size > config.vocab_size:
        raise InvalidParameter(f"tensor_parallel={size} is more than there are rows to divide")


@torch.no_grad()
def divide(loaded: LoadedModel, comm: Comm, options: DivideOptions) -> Share:
    """Cut the model's matrices in place to this process's part, and add the sums between processes."""
    model = loaded.model
    seam.install(model)
    kv_heads = [len(part_of(shape.num_kv_heads, comm.rank, comm.size)) for shape in options.shapes]
    for cut in cuts_of(model):
        _cut(cut, options.shapes[cut.layer].num_kv_heads, comm)
    model.set_output_embeddings(GatheredHead(model.get_output_embeddings(), comm))
    lean = speed_up(model) if options.optimize else None
    shapes = [replace(shape, num_kv_heads=n) for shape, n in zip(options.shapes, kv_heads, strict=True)]

    def make(pool: KVPool) -> TensorRunner:
        return TensorRunner(ModelRunner(loaded, pool, lean=lean), comm, len(shapes))

    return Share(shapes, 0, make)


def _cut(cut: Cut, kv_heads: int, comm: Comm) -> None:
    linear = cut.linear
    total = linear.out_features if cut.style == "colwise" else linear.in_features
    unit = total // kv_heads if cut.place == "attention" else 1
    part = part_of(total // unit, comm.rank, comm.size)
    rows = slice(part.start * unit, part.stop * unit)
    if cut.style == "colwise":
        setattr(cut.parent, cut.name, _linear(linear.weight[rows], linear.bias, rows))
    else:
        setattr(cut.parent, cut.name, SummedLinear(linear, rows, comm, cut.layer, cut.place))


def _linear(weight: torch.Tensor, bias: torch.Tensor | None, rows: slice) -> nn.Linear:
    """A layer that owns a copy of its part, so that the rest can be freed."""
    linear = nn.Linear(weight.shape[1], weight.shape[0], bias=bias is not None, device="meta")
    linear.weight = nn.Parameter(weight.detach().clone(), requires_grad=False)
    if bias is not None:
        linear.bias = nn.Parameter(bias.detach()[rows].clone(), requires_grad=False)
    return linear


class SummedLinear(nn.Module):
    """A linear layer that has the columns ``rows`` of its matrix; the outputs of all processes are summed."""

    def __init__(self, linear: nn.Linear, rows: slice, comm: Comm, layer: int, place: str) -> None:
        super().__init__()
        self.linear = _linear(linear.weight[:, rows], None, rows)
        self.bias, self.in_features, self.out_features = linear.bias, linear.in_features, linear.out_features
        self._comm, self._layer, self._place = comm, layer, place

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """This process's columns of the input, ``(..., columns)``, to the whole output ``(..., out_features)``."""
        output = self._comm.all_reduce(self.linear(x), self._layer, self._place)
        return output if self.bias is None else output + self.bias


class GatheredHead(nn.Module):
    """The head with a part of the vocabulary's rows; the logits of all processes are put side by side."""

    def __init__(self, head: nn.Linear, comm: Comm) -> None:
        super().__init__()
        self.in_features, self.out_features = head.in_features, head.out_features
        self._comm = comm
        self._sizes = [len(part_of(self.out_features, rank, comm.size)) for rank in range(comm.size)]
        part = part_of(self.out_features, comm.rank, comm.size)
        rows = slice(part.start, part.stop)
        self.linear = _linear(head.weight[rows], head.bias, rows)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """``(..., width)`` to logits ``(..., vocabulary)``, the same in every process."""
        own = self.linear(x)
        # messages of a collective have one size: shorter parts are padded
        own = nn.functional.pad(own, (0, max(self._sizes) - own.shape[-1]))
        parts = self._comm.all_gather(own, -1, "head")
        return torch.cat([part[..., :size] for part, size in zip(parts, self._sizes, strict=True)], dim=-1)


class TensorRunner:
    """A :class:`~llmlab.parallel.share.PartRunner`: the divided model on a pool of its own heads."""

    def __init__(self, runner: ModelRunner, comm: Comm, num_layers: int) -> None:
        self.inner, self._comm, self._layers = runner, comm, num_layers

    def build(self, plan: SentPlan) -> list[Batch]:
        """The same batches in every process."""
        return self.inner.build(plan)

    def forward(self, batches: list[Batch]) -> torch.Tensor:
        """Logits of the whole model, in every process."""
        start = perf_counter_ns()
        logits = self.inner.forward(batches)
        tokens = sum(batch.input_ids.shape[1] for batch in batches)
        self._comm.note_work("forward", start, tokens, -1, 0, self._layers - 1)
        return logits
