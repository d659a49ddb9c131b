"""This machine as a :class:`~llmlab.planner.devices.Device`: memory asked for, bandwidth and arithmetic measured."""

from __future__ import annotations

import platform
from collections.abc import Callable
from time import perf_counter
from types import MappingProxyType

from llmlab.planner.devices import Device

_SIDE = 6144  # squared in 32-bit numbers that is 151 MB: more than a processor keeps in its caches
_REPEATS = 5


def this_machine(repeats: int = _REPEATS) -> Device:
    """Memory from psutil; best of ``repeats`` matrix-vector and matrix-matrix products, torch's threads as they are.

    Takes a second or two, and tells about the moment: run nothing else beside it. A busy machine looks slower.
    """
    import psutil
    import torch

    with torch.inference_mode():
        flops = {"fp32": _flops(torch.float32, repeats), "bf16": _flops(torch.bfloat16, repeats)}
        bytes_per_s = _bytes_per_s(repeats)
    threads = torch.get_num_threads()
    ran_on = f"{platform.machine()}, {threads} thread{'s' if threads > 1 else ''}"
    return Device(
        name="this machine",
        memory_bytes=psutil.virtual_memory().total,
        bytes_per_s=bytes_per_s,
        flops=MappingProxyType(flops),
        links=("loopback",),
        source=f"measured here on {ran_on}, best of {repeats}",
        is_measured=True,
    )


def _bytes_per_s(repeats: int) -> float:
    """Reading a matrix once, as decode reads weights."""
    import torch

    matrix, vector = torch.rand(_SIDE, _SIDE), torch.rand(_SIDE)
    return matrix.nbytes / _best_s(lambda: matrix @ vector, repeats)


def _flops(dtype, repeats: int) -> float:
    """A product of the size of a prefill's."""
    import torch

    rows, inputs, outputs = 512, 1024, 2048
    x, w = torch.rand(rows, inputs).to(dtype), torch.rand(inputs, outputs).to(dtype)
    return 2 * rows * inputs * outputs / _best_s(lambda: x @ w, repeats)


def _best_s(work: Callable[[], object], repeats: int) -> float:
    times = []
    for _ in range(repeats + 1):  # the first one warms up and counts too: it is never the best
        start = perf_counter()
        work()
        times.append(perf_counter() - start)
    return min(times)
