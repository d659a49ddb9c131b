"""The header of a trace: what was recorded on what."""

from __future__ import annotations

import platform
from importlib.metadata import PackageNotFoundError, version
from time import perf_counter_ns, time
from typing import TYPE_CHECKING

from llmlab.trace.events import EngineInfo

if TYPE_CHECKING:
    from llmlab.engine.engine import Engine


def versions() -> dict[str, str]:
    """Versions of Python and of the packages that can change what is computed."""
    found = {"python": platform.python_version()}
    for package in ("llmlab", "torch", "transformers"):
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = "not installed"
    return found


def engine_info(engine: Engine) -> EngineInfo:
    """Describe an engine for the head of its trace."""
    runner, capacity, config = engine.runner, engine.capacity, engine.scheduler.config
    return EngineInfo(
        t_ns=perf_counter_ns(),
        wall_time=time(),
        model=runner.model,
        device=runner.device,
        dtype=runner.dtype,
        num_layers=capacity.num_layers,
        num_kv_heads=capacity.num_kv_heads,
        head_dim=capacity.head_dim,
        vocab_size=capacity.vocab_size,
        block_size=capacity.block_size,
        num_blocks=capacity.num_blocks,
        kv_bytes_per_token=capacity.kv_bytes_per_token,
        max_num_batched_tokens=config.max_num_batched_tokens,
        max_num_seqs=config.max_num_seqs,
        max_model_len=capacity.max_model_len,
        policy=config.policy,
        prefix_cache="off" if engine.pool.index is None else engine.pool.index.name,
        versions=versions(),
        speculative="off" if engine.speculator is None else str(engine.speculator),
        num_heads=capacity.num_heads,
        quantized=getattr(runner, "quantized", "off"),
        num_host_blocks=0 if engine.pool.host is None else engine.pool.host.num_blocks,
        swap="off" if engine.pool.host is None else engine.pool.host.policy.mode,
        split=getattr(engine, "split", None) or getattr(runner, "split", "off"),
    )
