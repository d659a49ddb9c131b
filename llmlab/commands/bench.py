"""``llmlab bench``: llmlab beside its peers, on this machine, in one run."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated

import typer

from llmlab.commands.options import Device, Model
from llmlab.commands.terminal import escape_controls, stderr_console, stdout_console
from llmlab.errors import InvalidParameter, LabError
from llmlab.models.catalogue import DEFAULT_MODEL

TO_STDOUT = "-"


def bench(
    workloads: Annotated[
        str, typer.Option(help="Comma-separated: W1, W2, W3, W4, prefix_ttft, overhead, tracing.")
    ] = "W1,W2,W3,W4,prefix_ttft,overhead,tracing",
    dtype: Annotated[str, typer.Option(help="Comma-separated: bf16, fp32.")] = "bf16,fp32",
    contenders: Annotated[
        str, typer.Option(help="Comma-separated: llmlab, generate, generate_batch.")
    ] = "llmlab,generate,generate_batch",
    repeats: Annotated[
        int | None, typer.Option(min=1, help="Rounds that count.", show_default="5, with --quick 2")
    ] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Shorter workloads; targets are not judged.")] = False,
    wire: Annotated[
        bool, typer.Option("--wire", help="Only what HTTP and server-sent events add, on the model without weights.")
    ] = False,
    model: Model = DEFAULT_MODEL,
    device: Device = "cpu",
    json_file: Annotated[
        str | None, typer.Option("--json", metavar="FILE", help="Write all measurements; - prints them.")
    ] = None,
) -> None:
    """Measure llmlab and transformers on the same work, one thread each, taking turns.

    generate is transformers' generate in static batches of 8; generate_batch is its continuous batching. Close other
    programs first. All workloads take half an hour or more; --quick takes some minutes.
    """
    from rich.text import Text

    if wire:
        _bench_wire(repeats or (2 if quick else 5), json_file)
        return
    from llmlab.bench.measure import Plan, run_benchmark
    from llmlab.bench.report import report_object, report_tables

    plan = Plan.make(
        workloads=_names(workloads),
        dtypes=_names(dtype),
        contenders=_names(contenders),
        repeats=repeats or (2 if quick else 5),
        quick=quick,
        model=model,
        device=device,
    )
    _check_target(json_file)
    with stderr_console().status("starting") as status:
        samples = run_benchmark(plan, progress=lambda doing: status.update(Text(escape_controls(doing))))
    if json_file != TO_STDOUT:
        console = stdout_console()
        for table in report_tables(plan, samples):
            console.print(table)
    if json_file is not None:
        _write(json_file, json.dumps(report_object(plan, samples, sys.argv[1:]), indent=1))


def _bench_wire(rounds: int, json_file: str | None) -> None:
    from llmlab.bench.wire import measure_wire, wire_object, wire_table

    _check_target(json_file)
    with stderr_console().status("measuring the wire"):
        figures = measure_wire(rounds)
    if json_file != TO_STDOUT:
        stdout_console().print(wire_table(figures))
    if json_file is not None:
        _write(json_file, json.dumps(wire_object(figures), indent=1))


def _names(text: str) -> list[str]:
    names = [name.strip() for name in text.split(",") if name.strip()]
    if not names:
        raise InvalidParameter(f"{text!r} names nothing: give names separated by commas")
    return names


def _check_target(path: str | None) -> None:
    if path not in (None, TO_STDOUT) and not Path(path).absolute().parent.is_dir():
        raise typer.BadParameter(f"there is no folder {Path(path).absolute().parent}", param_hint="--json")


def _write(path: str, text: str) -> None:
    if path == TO_STDOUT:
        print(text)
        return
    try:
        Path(path).write_text(text + "\n", "utf-8")
    except OSError as error:
        raise LabError(f"the measurements were not written to {path}: {error.strerror or error}") from error
