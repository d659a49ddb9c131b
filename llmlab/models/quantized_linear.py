"""Linear layers on rounded weights: by the definition, and on packed integers."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import nn

from llmlab.models import quantized_kernels as kernels
from llmlab.models.quantized_format import GROUP
from llmlab.models.quantized_weight import RoundedWeight, joined


class RoundedLinear(nn.Linear):
    """What a rounded layer is by definition: its dequantized weight in float32 times the input, slow and exact.

    What the packed layer computes is checked against this one. ``weight`` has no memory, only shape and number format.
    """

    def __init__(self, rounded: RoundedWeight, bias: nn.Parameter | None, dtype: torch.dtype) -> None:
        out_features, in_features = rounded.codes.shape
        super().__init__(in_features, out_features, bias=bias is not None, device="meta")
        self.weight = nn.Parameter(self.weight.to(dtype), requires_grad=False)
        self.bias = bias
        self.rounded = rounded

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """``(..., in_features)`` to ``(..., out_features)``."""
        bias = None if self.bias is None else self.bias.float()
        return F.linear(x.float(), self.rounded.dequantized(), bias).to(x.dtype)

    @classmethod
    def joined(cls, layers: Sequence[RoundedLinear]) -> RoundedLinear:
        """Several layers of one input as one."""
        biases = [layer.bias for layer in layers]
        bias = None if biases[0] is None else nn.Parameter(torch.cat(biases).detach(), requires_grad=False)
        return cls(joined([layer.rounded for layer in layers]), bias, layers[0].weight.dtype)


class QuantizedLinear(nn.Module, ABC):
    """A linear layer on packed integers. CPU only, inference only.

    Fewer than ``dequantize_from`` rows go through the integer kernel, more through weights expanded for this pass and
    thrown away. The kernels are made for bfloat16; other number formats always expand (``dequantize_from`` is 0).
    ``nbytes``: of the integers, scales and zeros.
    """

    nbytes: int

    def __init__(self, layer: RoundedLinear, dequantize_from: int | None = None) -> None:
        super().__init__()
        self.in_features, self.out_features = layer.in_features, layer.out_features
        self.bias, self.format, self.least = layer.bias, layer.rounded.format, 1
        usual = kernels.DEQUANTIZE_FROM[self.format] if layer.weight.dtype == torch.bfloat16 else 0
        self.dequantize_from = usual if dequantize_from is None else dequantize_from

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """``(..., in_features)`` to ``(..., out_features)``."""
        flat = x if x.dim() == 2 else x.reshape(-1, self.in_features)
        y = self.by_kernel(flat) if len(flat) < self.dequantize_from else self.by_expanding(flat)
        if y.shape[1] != self.out_features:
            y = y[:, : self.out_features]
        if x.dim() != 2:
            y = y.view(*x.shape[:-1], self.out_features)
        return y if self.bias is None else y + self.bias

    @abstractmethod
    def by_kernel(self, x: torch.Tensor) -> torch.Tensor:
        """``(rows, in)`` times the integers."""

    @abstractmethod
    def by_expanding(self, x: torch.Tensor) -> torch.Tensor:
        """``(rows, in)`` times weights expanded to the number format of ``x``."""


class Int8Linear(QuantizedLinear):
    """A byte a weight, a scale per output channel."""

    def __init__(self, layer: RoundedLinear, dequantize_from: int | None = None) -> None:
        super().__init__(layer, dequantize_from)
        self.codes, self.scales = layer.rounded.codes, layer.rounded.scales[:, 0].contiguous()
        self.nbytes = self.codes.nbytes + self.scales.nbytes
        self._matmul = kernels.operator8()

    def by_kernel(self, x: torch.Tensor) -> torch.Tensor:
        """``(rows, in)`` to ``(rows, out)``."""
        return self._matmul(x.contiguous(), self.codes, self.scales.to(x.dtype))

    def by_expanding(self, x: torch.Tensor) -> torch.Tensor:
        """``(rows, in)`` to ``(rows, out)``; scales belong to output channels, so they are applied to the result."""
        return F.linear(x, self.codes.to(x.dtype)).mul_(self.scales)


class Int4Linear(QuantizedLinear):
    """Half a byte a weight, a scale and a zero per 32 of them.

    ``block``: what :func:`~llmlab.models.quantized_kernels.block4` says.
    """

    def __init__(self, layer: RoundedLinear, dequantize_from: int | None = None, block: int | None = None) -> None:
        super().__init__(layer, dequantize_from)
        self.packed, self.scales_zeros = kernels.pack4(layer.rounded)
        self.nbytes = self.packed.nbytes + self.scales_zeros.nbytes
        self._matmul = kernels.operator4()
        self.block = kernels.block4() if block is None else block
        if not self.block:
            self.dequantize_from = 1 << 62  # an unknown layout can be multiplied by, not read

    def by_kernel(self, x: torch.Tensor) -> torch.Tensor:
        """``(rows, in)`` to ``(rows, padded out)``."""
        return self._matmul(x.contiguous(), self.packed, GROUP, self.scales_zeros.to(x.dtype))

    def by_expanding(self, x: torch.Tensor) -> torch.Tensor:
        """``(rows, in)`` to ``(rows, padded out)``."""
        return x @ kernels.expand4(self.packed, self.scales_zeros, self.block, x.dtype)


def packed_layer(layer: RoundedLinear, dequantize_from: int | None = None, block: int | None = None) -> QuantizedLinear:
    """The layer on packed integers that computes what ``layer`` computes.

    ``block``: what :func:`~llmlab.models.quantized_kernels.block4` says, to ask it once for many layers.
    """
    if layer.rounded.format == "int8":
        return Int8Linear(layer, dequantize_from)
    return Int4Linear(layer, dequantize_from, block)
