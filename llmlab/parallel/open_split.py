"""Opening a model that is divided over processes: devices, threads, number format."""

from __future__ import annotations

import gc
from pathlib import Path
from typing import Any

import torch

from llmlab.errors import InvalidParameter
from llmlab.models.hardware import measured_cpu_dtype
from llmlab.models.load import LoadedModel, ResolvedModel, check_architecture, choose_device, load, resolve
from llmlab.parallel.divided import build_divided
from llmlab.parallel.share import check
from llmlab.parallel.split import Split


def open_split(
    model: str | Path,
    device: str,
    dtype: str,
    threads: int | None,
    optimize: bool,
    shape: dict[str, Any],
    split: Split,
) -> tuple:
    """Runner, tokenizer, ids that end a generation, and rank 0's share of the model. See :func:`llmlab.open`."""
    _check(resolve(model), split)  # what cannot work fails before anything is started
    chosen = _device(device, split)
    threads = _threads(split.size) if threads is None else threads
    torch.set_num_threads(threads)
    if dtype == "auto" and chosen == "cpu":
        dtype = measured_cpu_dtype()
    gc.collect()  # a lab that was closed is a cycle of objects

    def fresh() -> LoadedModel:
        return load(model, device=chosen, dtype=dtype)

    runner, loaded = build_divided(fresh, split, optimize=optimize, threads=threads, **shape)
    return runner, loaded.tokenizer, loaded.eos_token_ids, loaded


def _check(found: ResolvedModel, split: Split) -> None:
    """Ask the model's shape, without weights, whether it can be divided so."""
    from transformers import AutoConfig, AutoModelForCausalLM

    try:
        config = AutoConfig.from_pretrained(found.path_or_id, trust_remote_code=False, local_files_only=True)
    except (OSError, ValueError, KeyError):
        return  # a model of the hub that is not here yet, or a folder whose problem is named when it is loaded
    check_architecture(config)
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config, trust_remote_code=False)
    check(split.role, model, split.size)


def _device(device: str, split: Split) -> str:
    """Every process has a CUDA device of its own, or all share the CPU."""
    if choose_device(device).type != "cuda":
        return device if device != "auto" else "cpu"
    found = torch.cuda.device_count()
    if found >= split.size:
        return "cuda:0"
    if device == "auto":
        return "cpu"
    raise InvalidParameter(
        f"{split.role}_parallel={split.size} on CUDA takes {split.size} devices, one for each process, and torch sees "
        f"{found}: use device='cpu'"
    )


def _threads(size: int) -> int:
    """The physical cores, shared out."""
    import psutil

    return max(1, (psutil.cpu_count(logical=False) or 1) // size)
