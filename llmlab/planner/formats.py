"""Number formats by name: bytes of a cached number, and bits of a weight with the scales it needs."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from llmlab.errors import InvalidParameter

NUMBER_BYTES: Mapping[str, float] = MappingProxyType(
    {"fp32": 4, "float32": 4, "bf16": 2, "bfloat16": 2, "fp16": 2, "float16": 2, "fp8": 1, "int8": 1, "int4": 0.5}
)
SHORT: Mapping[str, str] = MappingProxyType({"float32": "fp32", "bfloat16": "bf16", "float16": "fp16"})
_GROUPED = re.compile(r"int4-g(\d{1,5})")


def number_bytes(dtype: str) -> float:
    """Bytes of one number. Raises ``InvalidParameter`` for a format that is not known."""
    name = str(dtype).removeprefix("torch.")
    if name not in NUMBER_BYTES:
        raise InvalidParameter(f"{dtype!r} is no number format: use one of {', '.join(NUMBER_BYTES)}")
    return NUMBER_BYTES[name]


@dataclass(frozen=True, slots=True)
class WeightFormat:
    """How a weight matrix is stored: ``bits`` per weight, and ``scale_bits`` for every ``group`` inputs of each output.

    ``group`` 0 is one scale for a whole output row (per channel). ``scale_bits`` counts a group's scale and its zero
    point; 0 where there is neither. ``arithmetic`` is the format the products are computed in.
    """

    name: str
    bits: float
    scale_bits: int = 0
    group: int = 0
    arithmetic: str = "bf16"

    @property
    def is_float(self) -> bool:
        """Whether it is a plain 16- or 32-bit format, in which whole models are stored, embedding and norms too."""
        return self.bits >= 16

    def nbytes(self, rows: int, columns: int) -> int:
        """Bytes of a matrix of ``rows`` outputs and ``columns`` inputs, scales included (whole bytes, rounded up)."""
        groups = rows * (math.ceil(columns / self.group) if self.group else 1)
        return math.ceil((rows * columns * self.bits + groups * self.scale_bits) / 8)


WEIGHT_FORMATS: Mapping[str, WeightFormat] = MappingProxyType(
    {
        each.name: each
        for each in (
            WeightFormat("fp32", 32, arithmetic="fp32"),
            WeightFormat("fp16", 16, arithmetic="fp16"),
            WeightFormat("bf16", 16),
            WeightFormat("fp8", 8, scale_bits=32, arithmetic="fp8"),  # one 32-bit scale per output
            WeightFormat("int8", 8, scale_bits=16),  # weight only, one 16-bit scale per output
            WeightFormat("int4", 4, scale_bits=32, group=32),  # weight only, 16-bit scale and zero point per 32
            WeightFormat("nvfp4", 4, scale_bits=8, group=16, arithmetic="fp4"),  # an 8-bit scale per 16
            WeightFormat("mxfp4", 4, scale_bits=8, group=32),  # an 8-bit exponent per 32
        )
    }
)


def weight_format(weights: str | WeightFormat) -> WeightFormat:
    """The format of a name; ``int4-g128`` is 4 bits in groups of 128.

    Raises ``InvalidParameter`` for a name that is not known, with those that are.
    """
    if isinstance(weights, WeightFormat):
        return weights
    name = SHORT.get(str(weights).removeprefix("torch."), str(weights))
    if (grouped := _GROUPED.fullmatch(name)) and int(grouped[1]):
        return WeightFormat(name, 4, scale_bits=32, group=int(grouped[1]))
    if name not in WEIGHT_FORMATS:
        known = ", ".join(WEIGHT_FORMATS)
        raise InvalidParameter(f"{weights!r} is no weight format: use one of {known}, or int4-g128 for groups of 128")
    return WEIGHT_FORMATS[name]
