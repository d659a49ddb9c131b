"""``llmlab send``: one request over the wire, every piece of it as it passes, and where the time went."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from llmlab.commands.arguments import check_trace_target, clean, save_trace, some_prompt
from llmlab.commands.connection import IDLE_S, here, there
from llmlab.commands.options import Device, Quantize, Speculative, Threads, check_quantize, check_speculative
from llmlab.commands.sending import Request, Sending
from llmlab.commands.terminal import stderr_console, two_columns
from llmlab.commands.wire_summary import Outcome, as_object, as_rows, stage_rows
from llmlab.errors import LabError
from llmlab.models.catalogue import DEFAULT_MODEL


def send(
    prompt: Annotated[str, typer.Argument(help="One user message; - reads it from standard input.")],
    system: Annotated[str | None, typer.Option(help="System prompt.")] = None,
    max_tokens: Annotated[int, typer.Option(min=1, help="Most output tokens, thinking included.")] = 256,
    temperature: Annotated[
        float | None, typer.Option(help="0 takes the likeliest token every time.", show_default="not sent")
    ] = None,
    thinking: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Let the model think first, for at most N tokens.")
    ] = None,
    tools: Annotated[
        bool, typer.Option("--tools", help="Offer the three local tools; what the model asks for is not run.")
    ] = False,
    model: Annotated[
        str | None,
        typer.Option(
            help="A catalogue name, a folder, hub:ORG/NAME, or mock (no weights); with --url, any name.",
            show_default=f"{DEFAULT_MODEL}; with --url the first that the server lists",
        ),
    ] = None,
    device: Device = "auto",
    threads: Threads = None,
    speculative: Speculative = None,
    quantize: Quantize = None,
    url: Annotated[
        str | None, typer.Option(help="Send to this server of the Messages API instead of one of our own.")
    ] = None,
    api_key_env: Annotated[
        str | None, typer.Option(metavar="NAME", help="Environment variable that holds the key for --url.")
    ] = None,
    fault: Annotated[
        str | None,
        typer.Option(
            metavar="PLAN",
            help="Let our own server fail. status=529x2: refuse twice; drop=200: cut after 200 bytes; stall=3x1: "
            "silence for 1 s after 3 frames, without x1 for good; delay=0.5: wait 0.5 s before the answer; split=1: "
            f"send byte by byte. Put ; between several. The client then bears {IDLE_S:g} s of silence, not 300.",
        ),
    ] = None,
    raw: Annotated[
        bool, typer.Option("--raw", help="Print the bytes of the response's body, exactly and only those.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object at the end.")] = False,
    trace: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Save the trace, e.g. to send.trace.jsonl.gz.")
    ] = None,
) -> None:
    """Send one request to a server and watch it: what leaves, what comes back and when.

    The server is one of our own, in this process, unless --url is given. Request, response and events go to standard
    output as they pass; retries, warnings and, at the end, a table follow on standard error.
    """
    from llmlab.client.assemble import Options

    if raw and as_json:
        raise typer.BadParameter("--raw and --json exclude each other", param_hint="--json")
    check_trace_target(trace)
    _check_fault(fault, url)
    _check_ours("--speculative", speculative, url, check_speculative)
    _check_ours("--quantize", quantize, url, check_quantize)
    key = _key(api_key_env, url)
    budget = None if thinking is None else {"type": "enabled", "budget_tokens": thinking}
    options = Options(max_tokens=max_tokens, temperature=temperature, thinking=budget)
    request = Request(some_prompt(prompt), system and clean(system), tools, options)
    request.body("checked before a model is loaded")
    if url is not None:
        connected = there(url, key, model)
    else:
        engine = {"device": device, "threads": threads, "speculative": speculative, "quantize": quantize}
        connected = here(model or DEFAULT_MODEL, fault, **engine)
    with connected as connection:
        sent = Sending(connection, request, raw, as_json)
        sent.run()
    outcome = sent.outcome(connection.recorded())
    if trace is not None:
        save_trace(outcome.trace, trace)
    _report(outcome, sent.events if as_json else None)
    if sent.failure is not None:
        raise sent.failure


def _key(name: str | None, url: str | None) -> str | None:
    if name is None:
        return None
    if url is None:
        raise typer.BadParameter("only --url needs a key", param_hint="--api-key-env")
    if not os.environ.get(name):
        raise typer.BadParameter(f"the environment has no variable {name}, or it is empty", param_hint="--api-key-env")
    return os.environ[name]


def _check_fault(fault: str | None, url: str | None) -> None:
    from llmlab.gateway.faults import parse_plan

    if fault is None:
        return
    if url is not None:
        raise typer.BadParameter(
            "things go wrong on purpose only at our own server: leave out --url", param_hint="--fault"
        )
    try:
        parse_plan(fault)
    except LabError as error:
        raise typer.BadParameter(str(error), param_hint="--fault") from error


def _check_ours(option: str, name: str | None, url: str | None, check: Callable[[str | None], None]) -> None:
    if name is not None and url is not None:
        raise typer.BadParameter("that server decides itself: leave out --url", param_hint=option)
    check(name)


def _report(outcome: Outcome, events: list[dict[str, Any]] | None) -> None:
    if events is not None:
        print(json.dumps(as_object(outcome, events)))
        return
    console = stderr_console()
    console.print("\nThe last attempt, times since it was sent:", two_columns(as_rows(outcome)), sep="\n")
    console.print("\nWhere its time went, stage by stage:", two_columns(stage_rows(outcome)), sep="\n")
