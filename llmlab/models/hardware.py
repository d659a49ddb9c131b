"""What this machine is, and the two choices that follow from it: threads and number format."""

from __future__ import annotations

import json
import platform
from pathlib import Path
from time import perf_counter

from llmlab.models.cache import cache_dir


def cpu_name() -> str:
    """The processor's name as the operating system gives it."""
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        for line in cpuinfo.read_text(errors="replace").splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine()


def default_threads() -> int:
    """Physical cores minus one, at least 1.

    With as many threads as cores, every parallel region waits for the slowest thread whenever anything else runs
    (a notebook server, a browser): a step can take ten times as long.
    """
    import psutil

    return max(1, (psutil.cpu_count(logical=False) or 1) - 1)


def measured_cpu_dtype() -> str:
    """``bfloat16`` or ``float32``, whichever runs a decode-shaped linear layer faster here."""
    seconds = cpu_dtype_seconds()
    return min(seconds, key=seconds.get)


def cpu_dtype_seconds(rows: int = 8, width: int = 1024, repeats: int = 5) -> dict[str, float]:
    """Seconds of a decode-shaped linear layer per number format.

    Measured once per processor, torch version and thread count, then remembered in the cache folder.
    """
    import torch

    path = cache_dir() / "cpu_dtype.json"
    key = f"{cpu_name()} | torch {torch.__version__} | {torch.get_num_threads()} threads"
    known = _read(path)
    if key not in known:
        known[key] = {
            name: _time_linear(getattr(torch, name), rows, width, repeats) for name in ("float32", "bfloat16")
        }
        _write(path, known)
    return known[key]


def _time_linear(dtype, rows: int, width: int, repeats: int) -> float:
    """Best seconds of one pass through eight different layers, more weights than a cache holds."""
    import torch

    from llmlab.models.fuse import PackedLinear, packing_works

    layers = [torch.nn.Linear(width, 3 * width, bias=False, dtype=dtype) for _ in range(8)]
    if packing_works(dtype):
        layers = [PackedLinear(layer) for layer in layers]
    x = torch.ones(rows, width, dtype=dtype)
    times = []
    with torch.inference_mode():
        for _ in range(repeats + 1):
            start = perf_counter()
            for layer in layers:
                layer(x)
            times.append(perf_counter() - start)
    return min(times[1:])


def _read(path: Path) -> dict:
    try:
        return json.loads(path.read_text())
    except (OSError, ValueError):
        return {}


def _write(path: Path, value: dict) -> None:
    """Remembering is a convenience: a cache folder that cannot be written only costs the measurement again."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(value, indent=1))
    except OSError:
        return
