"""Opening a lab: model, runner, engine."""

from __future__ import annotations

import gc
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, get_args

from llmlab.engine.blocks import PrefixCache
from llmlab.engine.engine import Engine
from llmlab.engine.host_copies import check_swapping
from llmlab.engine.runner import Runner
from llmlab.engine.scheduler import Policy, SchedulerConfig
from llmlab.engine.sizes import check_sizes, check_threads
from llmlab.engine.speculative.build import with_proposer
from llmlab.engine.speculative.config import Speculation
from llmlab.engine.swap_policy import Swapping
from llmlab.errors import InvalidParameter
from llmlab.lab import Lab
from llmlab.models.catalogue import DEFAULT_MODEL
from llmlab.models.quantized_format import Quantization
from llmlab.parallel.split import Split
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
    prefix_cache: PrefixCache = "hash",
    policy: Policy = "continuous",
    background: bool = True,
    threads: int | None = None,
    optimize: bool = True,
    record: bool = True,
    speculative: Any = None,
    disaggregated: bool | str = False,
    host_blocks: int = 0,
    swap: Swapping = "auto",
    tensor_parallel: int = 1,
    pipeline_parallel: int = 1,
    expert_parallel: int = 1,
    micro_batches: int | None = None,
    quantize: str | Quantization | None = None,
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
    ``prefix_cache``: ``hash`` finds whole blocks by their hashes, ``radix`` keeps prefixes in a tree and also copies
    the part of a block that two of them share. ``host_blocks``: blocks of a second pool in host memory, to which
    preempted requests and evicted prefixes are copied; with ``swap="auto"`` where that was measured to be cheaper than
    computing them again, else ``"always"`` or ``"never"``.
    ``disaggregated``: another process computes the prompts and hands their K/V over, by ``"shared memory"`` (or
    ``True``) or ``"socket"``; this one decodes (:mod:`llmlab.parallel.disaggregated`).
    ``tensor_parallel``, ``pipeline_parallel``, ``expert_parallel``: over how many processes of this machine the model
    is divided, by heads, layers or experts (one of the three); ``micro_batches``: in how many parts a batch goes
    through the stages of a pipeline (default: one per stage). ``threads`` are then those of each process.
    ``quantize``: linear layers on integers, on the CPU: ``"int8"``, ``"int4"``, or all settings as a
    :class:`~llmlab.models.quantized_format.Quantization`; ``dtype="auto"`` is then bfloat16, the kernels' own format.

    Raises ``UnknownModel``, ``UnsupportedModel``, ``FetchError``, ``InvalidParameter``, ``RankFailed``,
    ``QuantizationUnavailable``.
    """
    config = SchedulerConfig(max_num_batched_tokens, max_num_seqs, policy)
    speculation, quantization = Speculation.of(speculative), Quantization.of(quantize)
    split = Split.of(micro_batches, tensor=tensor_parallel, pipeline=pipeline_parallel, expert=expert_parallel)
    check_threads(threads)
    _check_caches(prefix_cache, host_blocks, swap, disaggregated)
    if split is not None:
        split.check_speculation(speculation)
        split.check_others(model == MOCK, disaggregated=disaggregated, host_blocks=host_blocks, quantize=quantize)
    if quantization is not None:
        _check_quantization(model == MOCK, disaggregated, quantize)
    shape = {"block_size": block_size, "num_blocks": num_blocks}
    if model == MOCK:
        runner, tokenizer, eos, loaded = _mock(**shape)
    elif split is not None:
        from llmlab.parallel.open_split import open_split

        runner, tokenizer, eos, loaded = open_split(model, device, dtype, threads, optimize, shape, split)
    else:
        runner, tokenizer, eos, loaded = _real(model, device, dtype, threads, optimize, shape, quantization)
    if speculation is not None:
        speculation = with_proposer(speculation, runner, loaded)
    prefill = {"device": device, "dtype": dtype, "threads": threads, "optimize": optimize, "quantize": quantize}
    engine = _engine_type(disaggregated, model, prefill, runner, config, prefix_cache)(
        runner,
        tokenizer,
        eos_token_ids=eos,
        config=config,
        prefix_cache=prefix_cache,
        recorder=Recorder(enabled=record),
        speculation=speculation,
        host_blocks=host_blocks,
        swap=swap,
    )
    if split is not None:
        runner.recorder = engine.recorder
    if background:
        engine.start()
    return Lab(engine, tokenizer, runner.model, loaded and loaded.path, loaded)


def _engine_type(
    disaggregated: bool | str,
    model: str | Path,
    options: dict[str, Any],
    runner: Runner,
    config: SchedulerConfig,
    prefix_cache: PrefixCache,
) -> Callable[..., Engine]:
    """What to build the engine with; ``options`` are those of :func:`open` for a process that computes the prompts."""
    if disaggregated is False:
        return Engine
    from llmlab.parallel.disaggregated import DecodeEngine
    from llmlab.parallel.prefill_process import PrefillSettings

    worker = options | {
        "num_blocks": runner.capacity.num_blocks,
        "block_size": runner.capacity.block_size,
        "max_num_batched_tokens": config.max_num_batched_tokens,
        "max_num_seqs": config.max_num_seqs,
        "prefix_cache": prefix_cache,
    }
    if model != MOCK:
        worker["dtype"] = runner.dtype  # the one that was chosen here, not one measured again there
    return partial(DecodeEngine, prefill=PrefillSettings(str(model), worker, _medium(disaggregated)))


def _medium(disaggregated: bool | str) -> str:
    return "shared memory" if disaggregated is True else disaggregated


def _check_caches(prefix_cache: str, host_blocks: int, swap: str, disaggregated: bool | str) -> None:
    if prefix_cache not in get_args(PrefixCache):
        raise InvalidParameter(f"prefix_cache={prefix_cache!r} must be 'hash', 'radix' or 'off'")
    check_swapping(host_blocks, swap)
    if disaggregated is False:
        return
    if host_blocks:
        raise InvalidParameter(f"host_blocks={host_blocks} with disaggregated={disaggregated!r}: choose one of the two")
    from llmlab.parallel.prefill_process import PrefillSettings

    PrefillSettings("", {}, _medium(disaggregated))  # a wrong medium fails before a model is loaded


def _check_quantization(is_mock: bool, disaggregated: bool | str, quantize: Any) -> None:
    if is_mock:
        raise InvalidParameter("the mock model has no weights to quantize: leave quantize out, or open a real one")
    if disaggregated is not False and not isinstance(quantize, str):
        raise InvalidParameter("disaggregated=... takes quantize='int8' or 'int4', without further settings")


def _mock(block_size: int, num_blocks: int | None) -> tuple:
    from llmlab.engine.mock_runner import MockModel
    from llmlab.models.byte_tokenizer import ByteTokenizer

    check_sizes(block_size, num_blocks)
    tokenizer = ByteTokenizer()
    return MockModel(num_blocks or 256, block_size), tokenizer, (tokenizer.eos_token_id,), None


def _real(
    model: str | Path,
    device: str,
    dtype: str,
    threads: int | None,
    optimize: bool,
    shape: dict[str, Any],
    quantization: Quantization | None = None,
) -> tuple:
    import torch

    from llmlab.engine.build import build_runner
    from llmlab.models.hardware import default_threads, measured_cpu_dtype
    from llmlab.models.load import choose_device, load, resolve

    resolve(model)  # a wrong name fails before anything is measured
    torch.set_num_threads(default_threads() if threads is None else threads)
    if dtype == "auto" and choose_device(device).type == "cpu":
        dtype = measured_cpu_dtype() if quantization is None else "bfloat16"

    # a lab that was closed is a cycle of objects, so its gigabytes stay beside the new one's until they are collected
    gc.collect()

    def fresh():
        return load(model, device=device, dtype=dtype)

    loaded = fresh()
    runner = build_runner(loaded, optimize=optimize, reload=fresh, quantization=quantization, **shape)
    return runner, loaded.tokenizer, loaded.eos_token_ids, loaded
