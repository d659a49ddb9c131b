"""What weights are rounded to, as the user asks for it. Imports no torch, so a wrong name costs no loading."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from llmlab.errors import InvalidParameter

FORMATS = ("int8", "int4")
SCALES = ("group", "channel", "tensor")
GROUP = 32
"""Input features that share a scale and a zero in int4."""


@dataclass(frozen=True, slots=True)
class Quantization:
    """Weight-only quantization: weights are integers with scales, activations keep their number format.

    ``format``: ``int8`` (a scale per output channel, symmetric) or ``int4`` (a scale and a zero per group of 32 input
    features). ``scales`` shares them more coarsely on purpose: ``channel`` or ``tensor`` (``group`` is int4's own,
    ``channel`` int8's; ``None`` means that). ``head``: whether the output head is rounded too. It is not by default:
    there four bits cost perplexity (measured on the default model: 28.1 with, 26.2 without) and gain a millisecond a
    token, int8 is slower than packed bfloat16. The token embedding never is rounded.
    ``dequantize_from``: from so many rows in a pass on, weights are expanded once and multiplied as ordinary ones,
    because the integer kernels expand them anew for every few rows; ``None`` is what was measured to pay.

    Raises ``InvalidParameter``.
    """

    format: Literal["int8", "int4"]
    scales: Literal["group", "channel", "tensor"] | None = None
    head: bool = False
    dequantize_from: int | None = None

    def __post_init__(self) -> None:
        if self.format not in FORMATS:
            raise InvalidParameter(f"quantize={self.format!r} must be one of {', '.join(FORMATS)}, or left out")
        if self.scales is not None and self.scales not in SCALES:
            raise InvalidParameter(f"scales={self.scales!r} must be one of {', '.join(SCALES)}")
        if self.scales == "group" and self.format == "int8":
            raise InvalidParameter("int8 has a scale per channel: give scales='channel' or 'tensor', or format='int4'")
        if type(self.head) is not bool:
            raise InvalidParameter(f"head={self.head!r} must be True or False")
        rows = self.dequantize_from
        if rows is not None and (type(rows) is not int or rows < 0):
            raise InvalidParameter(f"dequantize_from={rows!r} must be a number of rows: 0 is always")

    @classmethod
    def of(cls, value: Any) -> Quantization | None:
        """``None``, a format's name, or a :class:`Quantization` as it is. Raises ``InvalidParameter``."""
        if value is None or isinstance(value, cls):
            return value
        if isinstance(value, str):
            return cls(value)
        raise InvalidParameter(f"quantize={value!r} must be 'int8', 'int4', a Quantization, or left out")

    @property
    def shared_by(self) -> str:
        """What shares a scale: ``group``, ``channel`` or ``tensor``."""
        return self.scales or ("group" if self.format == "int4" else "channel")

    def __str__(self) -> str:
        usual = "group" if self.format == "int4" else "channel"
        coarse = "" if self.shared_by == usual else f", a scale per {self.shared_by}"
        return f"{self.format}{coarse}{', head too' if self.head else ''}"
