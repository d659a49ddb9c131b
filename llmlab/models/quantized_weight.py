"""Rounding a weight matrix to integers with scales, and what it is then."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from llmlab.models.quantized_format import GROUP, Quantization

LEVELS4, MIDDLE4 = 15, 8
LARGEST8 = 127
STORED = torch.bfloat16
"""Number format of scales and zeros."""


@dataclass(frozen=True, slots=True, eq=False)
class RoundedWeight:
    """A weight ``(out, in)`` as integers: ``codes`` ``(out, in)``, ``scales`` and ``zeros`` ``(out, groups)``.

    int8: code in -127..127, weight = code x scale, one group. int4: code in 0..15, weight = (code - 8) x scale + zero,
    ``in / 32`` groups. Codes were chosen for scales and zeros as they are stored, so nothing is rounded twice.
    """

    format: str
    codes: torch.Tensor
    scales: torch.Tensor
    zeros: torch.Tensor | None = None

    def dequantized(self, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        """The weight ``(out, in)`` that these integers stand for."""
        if self.zeros is None:
            return (self.codes.float() * self.scales.float()).to(dtype)
        grouped = (self.codes.float() - MIDDLE4).unflatten(1, (-1, GROUP))
        values = torch.addcmul(self.zeros.float().unsqueeze(-1), grouped, self.scales.float().unsqueeze(-1))
        return values.flatten(1).to(dtype)

    @property
    def nbytes(self) -> int:
        """Bytes once packed: codes at their width, scales and zeros as stored."""
        bits = 4 if self.format == "int4" else 8
        zeros = 0 if self.zeros is None else self.zeros.nbytes
        return self.codes.numel() * bits // 8 + self.scales.nbytes + zeros


def can_round(weight: torch.Tensor, quantization: Quantization) -> bool:
    """Whether the matrix divides into the format's groups."""
    return quantization.format == "int8" or weight.shape[1] % GROUP == 0


def round_weight(weight: torch.Tensor, quantization: Quantization) -> RoundedWeight:
    """Round to nearest, scales from the largest (int8) or from the smallest and largest weight (int4) they cover."""
    return (_round8 if quantization.format == "int8" else _round4)(weight.float(), quantization.shared_by)


def _round8(weight: torch.Tensor, shared_by: str) -> RoundedWeight:
    largest = weight.abs().amax(1, keepdim=True)
    if shared_by == "tensor":
        largest = largest.amax().expand_as(largest)
    scales = _not_zero(largest / LARGEST8).to(STORED)
    codes = (weight / scales.float()).round_().clamp_(-LARGEST8, LARGEST8).to(torch.int8)
    return RoundedWeight("int8", codes, scales)


def _round4(weight: torch.Tensor, shared_by: str) -> RoundedWeight:
    grouped = weight.unflatten(1, (-1, GROUP))
    low, high = grouped.amin(-1), grouped.amax(-1)
    if shared_by != "group":
        axes = (1,) if shared_by == "channel" else (0, 1)
        low, high = low.amin(axes, keepdim=True).expand_as(low), high.amax(axes, keepdim=True).expand_as(high)
    scales = _not_zero((high - low) / LEVELS4).to(STORED)
    zeros = (low + MIDDLE4 * scales.float()).to(STORED)
    codes = (grouped - zeros.float().unsqueeze(-1)).div_(scales.float().unsqueeze(-1)).round_().add_(MIDDLE4)
    return RoundedWeight("int4", codes.clamp_(0, LEVELS4).to(torch.uint8).flatten(1), scales, zeros)


def _not_zero(scales: torch.Tensor) -> torch.Tensor:
    """Where all weights are equal any scale does."""
    return torch.where(scales == 0, torch.ones_like(scales), scales)


def joined(parts: Sequence[RoundedWeight]) -> RoundedWeight:
    """Several weights of one input one below the other. Scales belong to output channels, so nothing else changes."""
    zeros = None if parts[0].zeros is None else torch.cat([part.zeros for part in parts])
    codes, scales = torch.cat([part.codes for part in parts]), torch.cat([part.scales for part in parts])
    return RoundedWeight(parts[0].format, codes, scales, zeros)
