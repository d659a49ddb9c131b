"""The one place that calls torch's integer kernels for CPUs. They are private to torch, so ask :func:`kernels_work`.

Weights stay integers in memory; the kernels expand them in registers, for a few rows of the input at a time. That is
why they win where reading weights is all the work, and lose when there are many rows.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from llmlab.models.quantized_format import GROUP
from llmlab.models.quantized_weight import MIDDLE4, RoundedWeight

BLOCK4 = 64
"""Output channels are padded to a multiple of this: every block of the packed form is then of the same kind."""
LAYOUTS = (64, 32)
"""Output channels per block of the packed form: with AVX-512, with AVX2."""
DEQUANTIZE_FROM = {"int8": 9, "int4": 96}
"""Rows from which expanding all weights once is faster than the kernel (CPU with AVX-512, measured)."""


def pack4(weight: RoundedWeight) -> tuple[torch.Tensor, torch.Tensor]:
    """Codes two to a byte in the kernel's order, and scales beside zeros ``(groups, out, 2)``; ``out`` is padded."""
    missing = -len(weight.codes) % BLOCK4
    codes = torch.nn.functional.pad(weight.codes, (0, 0, 0, missing), value=MIDDLE4)
    packed = torch.ops.aten._convert_weight_to_int4pack_for_cpu(codes.to(torch.int32), 1)
    both = torch.stack((weight.scales, weight.zeros), dim=-1).transpose(0, 1)
    return packed, torch.nn.functional.pad(both, (0, 0, 0, missing)).contiguous()


def operator4() -> Callable[..., torch.Tensor]:
    """Takes ``(rows, in)`` without gaps, what :func:`pack4` made (the packed form, group size, scales beside zeros in
    the number format of the rows), and gives ``(rows, padded out)``. Raises ``AttributeError`` where torch has none."""
    return torch.ops.aten._weight_int4pack_mm_for_cpu.default


def expand4(packed: torch.Tensor, scales_zeros: torch.Tensor, block: int, dtype: torch.dtype) -> torch.Tensor:
    """The weight ``(in, padded out)``, transposed, from what :func:`pack4` made; ``block`` as :func:`block4` tells.

    A block holds ``(in, block / 2)`` bytes: output channel ``j`` in the low half of byte ``j``, ``j + block / 2`` in
    its high half.
    """
    groups, out, _ = scales_zeros.shape
    pairs = packed.view(out // block, groups * GROUP, block // 2)
    values = torch.cat((pairs & 15, pairs >> 4), dim=-1).to(dtype).view(out // block, groups, GROUP, block)
    scales, zeros = scales_zeros.to(dtype).view(groups, out // block, 1, block, 2).transpose(0, 1).unbind(-1)
    values.sub_(MIDDLE4).mul_(scales.contiguous())
    weight = torch.empty(groups, GROUP, out // block, block, dtype=dtype)
    torch.add(values, zeros.contiguous(), out=weight.permute(2, 0, 1, 3))
    return weight.view(-1, out)


def block4() -> int:
    """Output channels per block of the packed form on this CPU, 0 where the form is not a known one."""
    weight = _sample4()
    packed, both = pack4(weight)
    expected = weight.dequantized()
    for block in LAYOUTS:
        if torch.allclose(expand4(packed, both, block, torch.float32)[:, : len(expected)].T, expected, atol=1e-6):
            return block
    return 0


def operator8() -> Callable[..., torch.Tensor]:
    """Takes ``(rows, in)`` without gaps, codes ``(out, in)`` and scales ``(out,)`` in the number format of the rows,
    and gives ``(rows, out)``. Raises ``AttributeError`` where torch has none."""
    return torch.ops.aten._weight_int8pack_mm.default


def kernels_work(kind: str, dtype: torch.dtype = torch.bfloat16) -> bool:
    """Whether torch has the kernel of format ``kind`` on this CPU and it agrees with its own dequantized weights."""
    weight = _sample4() if kind == "int4" else _sample8()
    x = torch.linspace(-1, 1, 3 * weight.codes.shape[1]).view(3, -1).to(dtype)
    expected = x.float() @ weight.dequantized().T
    try:
        found = _by_kernel4(x, weight) if kind == "int4" else _by_kernel8(x, weight)
    except (AttributeError, RuntimeError):
        return False
    return torch.allclose(
        found[:, : len(weight.codes)].float(), expected, rtol=2e-2, atol=2e-2 * float(expected.abs().max())
    )


def _by_kernel4(x: torch.Tensor, weight: RoundedWeight) -> torch.Tensor:
    packed, scales_zeros = pack4(weight)
    return operator4()(x, packed, GROUP, scales_zeros.to(x.dtype))


def _by_kernel8(x: torch.Tensor, weight: RoundedWeight) -> torch.Tensor:
    return operator8()(x, weight.codes, weight.scales[:, 0].to(x.dtype))


def _sample4() -> RoundedWeight:
    out, groups = 2 * BLOCK4, 2
    codes = (torch.arange(out * groups * GROUP).view(out, -1) * 7 % 16).to(torch.uint8)
    scales = torch.linspace(0.5, 1.5, out * groups, dtype=torch.bfloat16).view(out, groups)
    return RoundedWeight("int4", codes, scales, scales.flip(0) - 1)


def _sample8() -> RoundedWeight:
    codes = (torch.arange(96 * 64).view(96, 64) * 37 % 255 - 127).to(torch.int8)
    return RoundedWeight("int8", codes, torch.linspace(0.5, 1.5, 96, dtype=torch.bfloat16).view(-1, 1))
