"""Faster linear layers for a loaded model: one matmul for projections of the same input, weights packed once.

Decoding reads every weight once per step, so fewer and larger reads, from a layout made for the matmul kernel, save
time where most of it is spent.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn

from llmlab.models.quantized_linear import RoundedLinear

PADDED_ROWS = 4
"""The kernel takes longer for one or two rows of bfloat16 than for four (CPU with AVX-512, measured: a quarter)."""

GROUPS = (("q_proj", "k_proj", "v_proj"), ("gate_proj", "up_proj"))


class PackedLinear(nn.Module):
    """A linear layer whose weight was reordered once for oneDNN's kernel. CPU only, inference only.

    The two operators are private to torch: :func:`packing_works` tells whether they are there and right.
    """

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        self.in_features, self.out_features = linear.in_features, linear.out_features
        self.packed = torch.ops.mkldnn._reorder_linear_weight(linear.weight.detach())
        self.bias = linear.bias
        self.least = PADDED_ROWS if linear.weight.dtype == torch.bfloat16 else 1
        self._matmul = torch.ops.mkldnn._linear_pointwise.default

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """``(..., in_features)`` to ``(..., out_features)``."""
        rows = x.shape[:-1].numel()
        if rows >= self.least:
            return self._matmul(x, self.packed, self.bias, "none", [], "")
        padded = with_rows(x.reshape(rows, -1), self.least)
        return self._matmul(padded, self.packed, self.bias, "none", [], "")[:rows].view(*x.shape[:-1], -1)


def with_rows(x: torch.Tensor, least: int) -> torch.Tensor:
    """``x`` ``(n, ...)`` with rows of zeros after it, at least ``least`` in all."""
    missing = least - len(x)
    return x if missing <= 0 else torch.cat((x, x.new_zeros(missing, *x.shape[1:])))


class SharedProjections:
    """Several linear layers of one input as a single matmul. Whichever part is asked first computes all."""

    def __init__(self, linears: list[nn.Linear]) -> None:
        self.sizes = [linear.out_features for linear in linears]
        self.linear = _concatenate(linears)
        self._input: torch.Tensor | None = None
        self._parts: list[torch.Tensor | None] = []

    def part(self, index: int, x: torch.Tensor) -> torch.Tensor:
        """Output of layer ``index`` for ``x``; kept only until every part of the same input was taken."""
        if x is not self._input:
            self._input, self._parts = x, list(self.linear(x).split(self.sizes, dim=-1))
        taken, self._parts[index] = self._parts[index], None
        if not any(part is not None for part in self._parts):
            self._input = None
        return taken


class ProjectionPart(nn.Module):
    """Takes the place of one fused linear layer under its old name."""

    def __init__(self, shared: SharedProjections, index: int) -> None:
        super().__init__()
        self.shared, self.index, self.out_features = shared, index, shared.sizes[index]
        if index == 0:
            self.fused = shared.linear

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """This layer's output, computed together with its siblings'."""
        return self.shared.part(self.index, x)


def _concatenate(linears: list[nn.Linear]) -> nn.Linear:
    if type(linears[0]) is RoundedLinear:
        return RoundedLinear.joined(linears)
    weight = torch.cat([linear.weight.detach() for linear in linears])
    fused = nn.Linear(weight.shape[1], weight.shape[0], bias=linears[0].bias is not None, device="meta")
    fused.weight = nn.Parameter(weight, requires_grad=False)
    if linears[0].bias is not None:
        bias = torch.cat([linear.bias.detach() for linear in linears])
        fused.bias = nn.Parameter(bias, requires_grad=False)
    return fused


def fuse_projections(model: nn.Module) -> int:
    """Fuse q/k/v and gate/up projections in place; returns how many groups were fused."""
    fused = 0
    for module in list(model.modules()):
        for names in GROUPS:
            linears = [getattr(module, name, None) for name in names]
            if {type(linear) for linear in linears} in ({nn.Linear}, {RoundedLinear}) and _alike(linears):
                shared = SharedProjections(linears)
                for index, name in enumerate(names):
                    setattr(module, name, ProjectionPart(shared, index))
                fused += 1
    return fused


def _alike(linears: list[nn.Linear]) -> bool:
    first = linears[0]
    return all(
        linear.in_features == first.in_features
        and (linear.bias is None) == (first.bias is None)
        and linear.weight.dtype == first.weight.dtype
        and linear.weight.device == first.weight.device
        for linear in linears
    )


def packing_works(dtype: torch.dtype) -> bool:
    """Whether torch's private packing operators exist for ``dtype`` on this CPU and agree with ``F.linear``."""
    try:
        linear = nn.Linear(64, 96, bias=False, dtype=dtype).requires_grad_(False)
        x = torch.linspace(-1, 1, 3 * 64).view(3, 64).to(dtype)
        with torch.inference_mode():
            return torch.allclose(PackedLinear(linear)(x).float(), linear(x).float(), atol=2e-2, rtol=1e-2)
    except (AttributeError, RuntimeError):
        return False


def pack_linears(model: nn.Module) -> int:
    """Replace every CPU linear layer by a packed one, in place; returns how many were packed (0: not available)."""
    return replace_linears(
        model, nn.Linear, lambda layer: PackedLinear(layer) if layer.weight.device.type == "cpu" else None
    )


def replace_linears(model: nn.Module, kind: type[nn.Linear], made: Callable[[nn.Linear], nn.Module | None]) -> int:
    """Put ``made(layer)``, where it is not ``None``, in the place of every layer of exactly this ``kind``.

    Returns how many were replaced.
    """
    replaced = 0
    for module in list(model.modules()):
        for name, child in list(module.named_children()):
            if type(child) is kind and (new := made(child)) is not None:
                setattr(module, name, new)
                replaced += 1
        shared = getattr(module, "shared", None)
        if isinstance(shared, SharedProjections):
            shared.linear = getattr(module, "fused", shared.linear)
    return replaced
