"""``llmlab bench``: llmlab beside its peers, on this machine, in one run."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from llmlab.commands.options import Device, Model
from llmlab.commands.terminal import escape_controls, stderr_console, stdout_console
from llmlab.errors import InvalidParameter, LabError
from llmlab.models.catalogue import DEFAULT_MODEL

if TYPE_CHECKING:
    from rich.table import Table

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
    speculative: Annotated[
        bool, typer.Option("--speculative", help="Only what speculation gains, for every proposer and kind of prompt.")
    ] = False,
    probes: Annotated[bool, typer.Option("--probes", help="Only what looking inside costs a decode step.")] = False,
    panels: Annotated[
        bool, typer.Option("--panels", help="Only what live panels cost the engine and, with Chromium, the page.")
    ] = False,
    draft_model: Annotated[
        str | None, typer.Option(help="With --speculative: a draft model to measure as well.")
    ] = None,
    batch: Annotated[str, typer.Option(help="With --speculative: how many requests at once.")] = "1,4,16",
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
    if speculative:
        _bench_speculation(
            repeats or (1 if quick else 3), quick, _batches(batch), model, device, draft_model, json_file
        )
        return
    if probes:
        _bench_probes(repeats or (1 if quick else 5), model, device, json_file)
        return
    if panels:
        _bench_panels(repeats or (3 if quick else 15), quick, json_file)
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
    _show(wire_table(figures), wire_object(figures), json_file)


def _bench_probes(rounds: int, model: str, device: str, json_file: str | None) -> None:
    from llmlab.bench.probes import measure_probes, probe_object, probe_table

    _check_target(json_file)
    with stderr_console().status("measuring probes"):
        figures = measure_probes(rounds, model=model, device=device)
    _show(probe_table(figures), probe_object(figures), json_file)


def _bench_panels(rounds: int, quick: bool, json_file: str | None) -> None:
    from rich.text import Text

    from llmlab.bench.panels import FULL, QUICK, measure_panels, panel_object, panel_table

    _check_target(json_file)
    with stderr_console().status("starting") as status:
        figures = measure_panels(
            rounds,
            effort=QUICK if quick else FULL,
            progress=lambda doing: status.update(Text(escape_controls(doing))),
        )
    _show(panel_table(figures), panel_object(figures), json_file)


def _bench_speculation(
    rounds: int,
    quick: bool,
    batches: list[int],
    model: str,
    device: str,
    draft_model: str | None,
    json_file: str | None,
) -> None:
    from rich.text import Text

    from llmlab.bench.speculative import measure_speculation, speculation_object, speculation_table

    _check_target(json_file)
    with stderr_console().status("starting") as status:
        result = measure_speculation(
            rounds,
            model=model,
            device=device,
            quick=quick,
            batches=batches,
            draft_model=draft_model,
            progress=lambda doing: status.update(Text(escape_controls(doing))),
        )
    _show(speculation_table(result), speculation_object(result), json_file)


def _show(table: Table, measured: dict[str, Any], json_file: str | None) -> None:
    """Print the table, unless the measurements themselves go there, and write those where they are wanted."""
    if json_file != TO_STDOUT:
        stdout_console().print(table)
    if json_file is not None:
        _write(json_file, json.dumps(measured, indent=1))


def _batches(text: str) -> list[int]:
    try:
        return [int(name) for name in _names(text)]
    except ValueError:
        raise InvalidParameter(f"--batch {text}: give whole numbers separated by commas") from None


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
