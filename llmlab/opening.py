"""Opening a lab: model, runner, engine."""

from __future__ import annotations

import gc
from pathlib import Path
from typing import Any, Literal

from llmlab.engine.engine import Engine
from llmlab.engine.scheduler import Policy, SchedulerConfig
from llmlab.engine.speculative.build import with_proposer
from llmlab.engine.speculative.config import Speculation
from llmlab.errors import InvalidParameter
from llmlab.lab import Lab
from llmlab.models.catalogue import DEFAULT_MODEL
from llmlab.trace.recorder import Recorder

MOCK = "mock"


def open(
    model: str | Path = DEFAULT_MODEL,
    *,
    device: str = "auto",
    dtype: str = "auto",
    block_size: int = 16,
    num_blocks: int | None = None,
    max_num_batched_tokens: int = 512,
    max_num_seqs: int = 8,
    prefix_cache: Literal["hash", "off"] = "hash",
    policy: Policy = "continuous",
    background: bool = True,
    threads: int | None = None,
    optimize: bool = True,
    record: bool = True,
    speculative: Any = None,
) -> Lab:
    """Open a model for serving.

    ``model``: a catalogue name, a local folder, ``hub:org/name``, or ``"mock"`` (no weights, byte tokenizer).
    ``device``: ``auto``, ``cpu``, ``cuda``, ``cuda:N``. ``dtype``: ``auto`` (bfloat16 on CUDA; on CPU whichever of
    float32 and bfloat16 a short measurement finds faster, remembered), ``float32``, ``bfloat16``, ``float16``.
    ``block_size``: tokens per K/V block. ``num_blocks``: size of the pool (default: from the free memory).
    ``max_num_batched_tokens``: token budget of a step, so also the largest prefill chunk. ``max_num_seqs``: requests
    per batch. ``policy``: ``continuous`` or ``static`` batching. ``background=False``: nothing runs until you call
    ``lab.engine.step()`` or wait on a run. ``threads``: CPU threads of torch (default: physical cores minus one; a
    setting of the whole process). ``optimize=False`` keeps the model's modules untouched. ``record=False``: no trace.
    ``speculative``: guess tokens ahead and verify them together: ``"ngram"``, ``"early-exit"``, ``"head"``, or all
    settings as a :class:`~llmlab.engine.speculative.config.Speculation`.

    Raises ``UnknownModel``, ``UnsupportedModel``, ``FetchError``, ``InvalidParameter``.
    """
    if prefix_cache not in ("hash", "off"):
        raise InvalidParameter(f"prefix_cache={prefix_cache!r} must be 'hash' or 'off'")
    config = SchedulerConfig(max_num_batched_tokens, max_num_seqs, policy)
    speculation = Speculation.of(speculative)
    shape = {"block_size": block_size, "num_blocks": num_blocks}
    if model == MOCK:
        runner, tokenizer, eos, loaded = _mock(**shape)
    else:
        runner, tokenizer, eos, loaded = _real(model, device, dtype, threads, optimize, shape)
    if speculation is not None:
        speculation = with_proposer(speculation, runner, loaded)
    engine = Engine(
        runner,
        tokenizer,
        eos_token_ids=eos,
        config=config,
        prefix_cache=prefix_cache == "hash",
        recorder=Recorder(enabled=record),
        speculation=speculation,
    )
    if background:
        engine.start()
    return Lab(engine, tokenizer, runner.model, loaded and loaded.path, loaded)


def _mock(block_size: int, num_blocks: int | None) -> tuple:
    from llmlab.engine.build import check_sizes
    from llmlab.engine.mock_runner import MockModel
    from llmlab.models.byte_tokenizer import ByteTokenizer

    check_sizes(block_size, num_blocks)
    tokenizer = ByteTokenizer()
    return MockModel(num_blocks or 256, block_size), tokenizer, (tokenizer.eos_token_id,), None


def _real(
    model: str | Path, device: str, dtype: str, threads: int | None, optimize: bool, shape: dict[str, Any]
) -> tuple:
    import torch

    from llmlab.engine.build import build_runner
    from llmlab.models.hardware import default_threads, measured_cpu_dtype
    from llmlab.models.load import choose_device, load, resolve

    if threads is not None and (type(threads) is not int or threads < 1):
        raise InvalidParameter(f"threads={threads!r} must be an integer of at least 1")
    resolve(model)  # a wrong name fails before anything is measured
    torch.set_num_threads(default_threads() if threads is None else threads)
    if dtype == "auto" and choose_device(device).type == "cpu":
        dtype = measured_cpu_dtype()

    # a lab that was closed is a cycle of objects, so its gigabytes stay beside the new one's until they are collected
    gc.collect()

    def fresh():
        return load(model, device=device, dtype=dtype)

    loaded = fresh()
    runner = build_runner(loaded, optimize=optimize, reload=fresh, **shape)
    return runner, loaded.tokenizer, loaded.eos_token_ids, loaded
