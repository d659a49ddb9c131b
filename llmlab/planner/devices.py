"""Devices by their makers' figures: memory, bandwidth, peak arithmetic (dense, without sparsity)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from llmlab.errors import InvalidParameter


@dataclass(frozen=True, slots=True)
class Device:
    """One accelerator, or one processor.

    ``memory_bytes`` is the nominal figure in plain gigabytes (10^9; drivers report a little more or less).
    ``bytes_per_s`` is the peak of its memory; ``flops`` operations a second by number format. ``links`` are names of
    :data:`llmlab.planner.links.LINKS`, the fastest first. ``source`` says where the figures are from, ``is_measured``
    that they were measured here instead.
    """

    name: str
    memory_bytes: float
    bytes_per_s: float
    flops: Mapping[str, float] = field(hash=False)
    links: tuple[str, ...]
    source: str
    is_measured: bool = False

    def peak(self, dtype: str = "bf16") -> float:
        """Operations a second in ``dtype``. A format the device has no units for is computed in the next wider one."""
        wider = {"fp4": "fp8", "fp8": "bf16", "int8": "bf16", "int4": "bf16", "fp16": "bf16", "bf16": "fp32"}
        name = dtype
        while name not in self.flops:
            if name not in wider:
                known = ", ".join(self.flops)
                raise InvalidParameter(f"{self.name} has no arithmetic in {dtype!r}: its figures are for {known}")
            name = wider[name]
        return self.flops[name]

    def ridge(self, dtype: str = "bf16") -> float:
        """Operations per byte from which arithmetic, not memory, is the limit."""
        return self.peak(dtype) / self.bytes_per_s


def _nvidia(name: str, gigabytes: float, gb_per_s: float, tera: dict[str, float], links: str, source: str) -> Device:
    flops = MappingProxyType({dtype: value * 1e12 for dtype, value in tera.items()})
    return Device(name, gigabytes * 1e9, gb_per_s * 1e9, flops, tuple(links.split()), source)


_AMPERE = {"fp32": 19.5, "bf16": 312, "fp16": 312, "int8": 624, "int4": 1248}
_HOPPER = {"fp32": 67, "bf16": 989.4, "fp16": 989.4, "fp8": 1978.9, "int8": 1978.9}
_ADA = {"fp32": 82.6, "bf16": 165.2, "fp16": 165.2, "fp8": 330.3, "int8": 660.6, "int4": 1321.2}
_BLACKWELL = {"fp32": 80, "bf16": 2250, "fp16": 2250, "fp8": 4500, "int8": 4500, "fp4": 9000}

DEVICES: Mapping[str, Device] = MappingProxyType(
    {
        "a100-40": _nvidia("A100 40 GB", 40, 1555, _AMPERE, "nvlink3 pcie4", "NVIDIA A100 data sheet, SXM"),
        "a100-80": _nvidia("A100 80 GB", 80, 2039, _AMPERE, "nvlink3 pcie4", "NVIDIA A100 data sheet, SXM"),
        "h100": _nvidia(
            "H100 SXM", 80, 3350, _HOPPER,
            "nvlink4 pcie5", "NVIDIA H100 data sheet, SXM; arithmetic with sparsity, halved"
        ),
        "h200": _nvidia(
            "H200", 141, 4800, _HOPPER,
            "nvlink4 pcie5", "NVIDIA H200 data sheet, SXM; arithmetic with sparsity, halved"
        ),
        "b200": _nvidia(
            "B200", 180, 8000, _BLACKWELL, "nvlink5 pcie5",
            "NVIDIA HGX B200 data sheet, an eighth of the board; arithmetic with sparsity, halved",
        ),
        "rtx-4090": _nvidia(
            "RTX 4090", 24, 1008, _ADA, "pcie4",
            "NVIDIA Ada architecture paper, products accumulated in 32 bits, without sparsity",
        ),
    }
)  # fmt: skip
ALIASES: Mapping[str, str] = MappingProxyType(
    {"a100": "a100-80", "h100-sxm": "h100", "4090": "rtx-4090", "rtx4090": "rtx-4090", "hgx-b200": "b200"}
)
THIS_MACHINE = "this-machine"


def device(name: str | Device) -> Device:
    """A device by name, in any case; ``this-machine`` measures this one (a few seconds).

    Raises ``InvalidParameter`` for one that is not known, with those that are.
    """
    if isinstance(name, Device):
        return name
    key = str(name).casefold().replace("_", "-").replace(" ", "-")
    if key in (THIS_MACHINE, "here"):
        from llmlab.planner.this_machine import this_machine

        return this_machine()
    key = ALIASES.get(key, key)
    if key not in DEVICES:
        raise InvalidParameter(f"{name!r} is no known device: use one of {', '.join(DEVICES)}, or {THIS_MACHINE}")
    return DEVICES[key]
