"""``llmlab serve``: the lab's engine behind the two wire protocols."""

from __future__ import annotations

import asyncio
import os
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from llmlab.api.rules import Rules
from llmlab.commands.options import Device, Model, Threads, check_quantize, check_speculative
from llmlab.commands.serve_facts import UPSTREAM_KEY, Facts, models_of
from llmlab.commands.terminal import print_error
from llmlab.errors import InvalidParameter
from llmlab.gateway.settings import Settings
from llmlab.models.catalogue import DEFAULT_MODEL
from llmlab.trace.recorder import Recorder

if TYPE_CHECKING:
    from llmlab.gateway.engine_backend import EngineBackend

INTERRUPTED = 130

ENGINE, NETWORK, LIMITS = "Engine", "Network and access", "Limits"
BACKENDS, BEHAVIOUR, SWITCHES = "Other backends", "Behaviour", "Switches"
COUNT = "N"


def _option(panel: str, text: str, *names: str, **settings: Any) -> Any:
    return typer.Option(*names, help=text, rich_help_panel=panel, **settings)


def serve(
    model: Model = DEFAULT_MODEL,
    device: Device = "auto",
    dtype: Annotated[str, _option(ENGINE, "auto, float32, bfloat16 or float16.")] = "auto",
    threads: Threads = None,
    block_size: Annotated[int, _option(ENGINE, "Tokens in one K/V block.", min=1, metavar=COUNT)] = 16,
    num_blocks: Annotated[
        int | None,
        _option(ENGINE, "K/V blocks in the pool.", min=1, metavar=COUNT, show_default="from the free memory"),
    ] = None,
    max_num_batched_tokens: Annotated[
        int, _option(ENGINE, "Tokens of one step, so also the largest prefill chunk.", min=1, metavar=COUNT)
    ] = 512,
    max_num_seqs: Annotated[int, _option(ENGINE, "Requests in one batch.", min=1, metavar=COUNT)] = 8,
    prefix_cache: Annotated[bool, _option(SWITCHES, "Share K/V blocks of equal prefixes.")] = True,
    record: Annotated[bool, _option(SWITCHES, "Keep a trace in memory.")] = True,
    speculative: Annotated[
        str | None, _option(ENGINE, "Guess tokens ahead, verify them exactly: ngram, early-exit or head.")
    ] = None,
    quantize: Annotated[str | None, _option(ENGINE, "Linear layers on integers, on the CPU: int8 or int4.")] = None,
    tensor_parallel: Annotated[
        int, _option(ENGINE, "Processes that share every layer's heads.", min=1, metavar=COUNT)
    ] = 1,
    pipeline_parallel: Annotated[
        int, _option(ENGINE, "Processes that share the layers, one stage each.", min=1, metavar=COUNT)
    ] = 1,
    disaggregated: Annotated[
        bool, _option(SWITCHES, "Compute prompts in a process of their own; this one decodes.", "--disaggregated")
    ] = False,
    host: Annotated[str, _option(NETWORK, "Address to listen on; any but a loopback one needs --keys.")] = "127.0.0.1",
    port: Annotated[int, _option(NETWORK, "0 takes a free port.", min=0, max=65535)] = 8000,
    keys: Annotated[
        Path | None,
        _option(
            NETWORK,
            "File of API keys, KEY [NAME [TIER]] a line; TIER is standard, priority or batch; lines that begin with # "
            "are skipped. Without it no key is asked for.",
            metavar="FILE",
        ),
    ] = None,
    log: Annotated[
        bool,
        _option(
            NETWORK,
            "A line on standard error for each finished request: time, endpoint, model, status, outcome, tokens, "
            "seconds to the first token and in all, backend, id; never what was said.",
            "--log",
        ),
    ] = False,
    requests_per_minute: Annotated[int | None, _option(LIMITS, "Requests of one key.", min=1, metavar=COUNT)] = None,
    input_tokens_per_minute: Annotated[
        int | None, _option(LIMITS, "Prompt tokens of one key; reads from the cache are free.", min=1, metavar=COUNT)
    ] = None,
    output_tokens_per_minute: Annotated[
        int | None, _option(LIMITS, "Output tokens of one key.", min=1, metavar=COUNT)
    ] = None,
    max_open: Annotated[int, _option(LIMITS, "Open requests; more are refused with 529.", min=1, metavar=COUNT)] = 64,
    drain: Annotated[
        float, _option(LIMITS, "Seconds open requests have after Ctrl-C.", min=0, metavar="SECONDS")
    ] = 10.0,
    upstream: Annotated[
        list[str] | None,
        _option(
            BACKENDS, f"Base URL of an OpenAI-compatible server; repeatable. {UPSTREAM_KEY} is its key.", metavar="URL"
        ),
    ] = None,
    engine: Annotated[bool, _option(SWITCHES, "Serve --model; --no-engine: upstreams only.")] = True,
    routing: Annotated[
        Literal["round_robin", "least_loaded", "prefix_affine"],
        _option(
            BACKENDS,
            "How one of several backends of a model is chosen: round_robin, least_loaded or prefix_affine.",
            metavar="NAME",
        ),
    ] = "least_loaded",
    fallback_model: Annotated[
        bool, _option(SWITCHES, "Serve unknown model names with the first model; else 404.")
    ] = True,
    overflow: Annotated[
        Literal["refuse", "stop"],
        _option(
            BEHAVIOUR, "When prompt and max_tokens exceed the context: refuse, or serve and stop there.", metavar="NAME"
        ),
    ] = "refuse",
    cache_accounting: Annotated[
        Literal["breakpoints", "engine"],
        _option(
            BEHAVIOUR,
            "Count Anthropic cache reads by cache_control (breakpoints), or as the engine's prefix cache had them "
            "(engine).",
            metavar="NAME",
        ),
    ] = "breakpoints",
    lenient_sampling: Annotated[
        bool,
        _option(BEHAVIOUR, "Take temperature, top_p, top_k under every anthropic-version.", "--lenient-sampling"),
    ] = False,
    strict_roles: Annotated[
        bool, _option(BEHAVIOUR, "Refuse two messages of one role in a row instead of merging them.", "--strict-roles")
    ] = False,
    allow_faults: Annotated[
        bool,
        _option(BEHAVIOUR, "Honour the llmlab-fault request header, e.g. status=529x2.", "--allow-faults"),
    ] = False,
) -> None:
    """Serve a model to clients of Anthropic's Messages and OpenAI's Chat Completions.

    The first Ctrl-C lets open requests finish, the second ends them.

    Exit status: 0 stopped by one signal, 130 by two, 1 failed (the port is in use, no such model), 2 wrong usage.
    """
    settings = Settings(
        host=host,
        port=port,
        keys_file=keys,
        requests_per_minute=requests_per_minute,
        input_tokens_per_minute=input_tokens_per_minute,
        output_tokens_per_minute=output_tokens_per_minute,
        max_open=max_open,
        drain_s=drain,
        routing=routing,
        fallback_model=fallback_model,
        overflow=overflow,
        cache_accounting=cache_accounting,
        allow_faults=allow_faults,
        rules=Rules(lenient_sampling=lenient_sampling, strict_roles=strict_roles),
    )
    check_speculative(speculative)
    check_quantize(quantize)
    if not engine and not upstream:
        raise InvalidParameter("--no-engine leaves nothing to serve: give at least one --upstream URL")
    options = {
        "device": device,
        "dtype": dtype,
        "threads": threads,
        "block_size": block_size,
        "num_blocks": num_blocks,
        "max_num_batched_tokens": max_num_batched_tokens,
        "max_num_seqs": max_num_seqs,
        "prefix_cache": "hash" if prefix_cache else "off",
        "record": record,
        "speculative": speculative,
        "quantize": quantize,
        "tensor_parallel": tensor_parallel,
        "pipeline_parallel": pipeline_parallel,
        "disaggregated": disaggregated,
    }
    _serve(settings, model if engine else None, options, upstream or [], log)


def _serve(
    settings: Settings, model: str | None, options: dict[str, Any], upstreams: list[str], wants_log: bool
) -> None:
    from llmlab.gateway.app import Gateway
    from llmlab.gateway.auth import ExposedKeysFile, KeyRing
    from llmlab.gateway.foreground import run_forever
    from llmlab.gateway.server import Server, listen
    from llmlab.gateway.upstream import upstream_backends

    key = os.environ.get(UPSTREAM_KEY) or None  # not an option: those are in every process list
    with _warnings_said():
        KeyRing.load(settings.keys_file)  # mistakes show before a model is loaded
    upstream_backends(upstreams, Recorder(enabled=False), key)
    listen(settings.host, settings.port).close()
    with _own_backend(settings, model, options) as (own, recorder):
        with warnings.catch_warnings(action="ignore", category=ExposedKeysFile):  # said already
            gateway = Gateway([*own, *upstream_backends(upstreams, recorder, key)], settings, recorder)
        server = Server(gateway, log=_print_line if wants_log else None)
        facts = Facts(own, asyncio.run(models_of(upstreams, key)), settings.keys_file, len(gateway.keys))
        if not run_forever(server, _say, facts.lines(), facts.first_model):
            raise typer.Exit(INTERRUPTED)


@contextmanager
def _warnings_said() -> Iterator[None]:
    """Warnings of what runs inside, a line each on standard error."""
    with warnings.catch_warnings(record=True, action="always") as caught:
        yield
    for warning in caught:
        print_error(str(warning.message))


def _say(text: str) -> None:
    print(text, flush=True)


def _print_line(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


@contextmanager
def _own_backend(
    settings: Settings, model: str | None, options: dict[str, Any]
) -> Iterator[tuple[list[EngineBackend], Recorder]]:
    """The engine as a backend, if one is wanted, and the recorder that everything writes to."""
    if model is None:
        yield [], Recorder(enabled=options["record"])
        return
    import llmlab
    from llmlab.gateway.engine_backend import EngineBackend

    with llmlab.open(model, **options) as lab:
        yield [EngineBackend(lab, settings, lab.engine.recorder)], lab.engine.recorder
