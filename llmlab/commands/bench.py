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
    calibrate: Annotated[
        bool, typer.Option("--calibrate", help="Only what a step costs; saved for the fleet simulator.")
    ] = False,
    fleet: Annotated[
        bool, typer.Option("--fleet", help="Only whether the fleet simulator predicts a minute of the real engine.")
    ] = False,
    tiers: Annotated[
        bool, typer.Option("--tiers", help="Only swapping against computing again, and hash against radix prefix hits.")
    ] = False,
    routing: Annotated[
        bool, typer.Option("--routing", help="Only prefix hits and first tokens by routing, before three servers.")
    ] = False,
    phases: Annotated[
        bool,
        typer.Option("--phases", help="Only what a long prompt does to others: in one process, in chunks, in two."),
    ] = False,
    step_times: Annotated[
        str | None, typer.Option(metavar="FILE", help="With --calibrate: where to save.", show_default="in the cache")
    ] = None,
    quantize: Annotated[
        bool, typer.Option("--quantize", help="Only what weights on integers save, cost and gain, on the CPU.")
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
    if calibrate:
        _bench_steps(quick, model, device, step_times, json_file)
        return
    if tiers:
        _bench_tiers(repeats or (2 if quick else 7), model, device, json_file)
        return
    if fleet:
        _bench_fleet(quick, model, device, json_file)
        return
    if quantize:
        _bench_quantization(repeats or (1 if quick else 5), quick, model, json_file)
        return
    if routing:
        _bench_routing(quick, model, device, json_file)
        return
    if phases:
        _bench_phases(quick, model, device, json_file)
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


def _bench_tiers(rounds: int, model: str, device: str, json_file: str | None) -> None:
    from rich.text import Text

    from llmlab.bench.tiers import measure_tiers, tier_object, tier_tables

    _check_target(json_file)
    with stderr_console().status("starting") as status:
        figures = measure_tiers(
            rounds,
            model=model,
            device=device,
            progress=lambda doing: status.update(Text(escape_controls(doing))),
        )
    resumed, hits = tier_tables(figures)
    if json_file != TO_STDOUT:
        stdout_console().print(resumed)
    _show(hits, tier_object(figures), json_file)


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


def _bench_steps(quick: bool, model: str, device: str, target: str | None, json_file: str | None) -> None:
    from rich.text import Text

    import llmlab
    from llmlab.bench.fleet import calibration_object, calibration_tables
    from llmlab.planner.calibrate import calibrate, default_path, save_step_times

    _check_target(json_file)
    where = {"device": device, "threads": 1, "num_blocks": 1024, "background": False}
    with stderr_console().status("opening the model") as status, llmlab.open(model, **where) as lab:
        found = calibrate(lab, quick=quick, progress=lambda doing: status.update(Text(escape_controls(doing))))
    sums, cells = calibration_tables(found)
    if json_file != TO_STDOUT:
        stdout_console().print(cells)
    _show(sums, calibration_object(found), json_file)
    saved = save_step_times(found.times, target or default_path(found.info))
    stderr_console().print(Text(f"step times saved in {saved}"))


def _bench_fleet(quick: bool, model: str, device: str, json_file: str | None) -> None:
    from rich.text import Text

    from llmlab.bench.fleet import fleet_object, fleet_table, measure_fleet

    _check_target(json_file)
    with stderr_console().status("starting") as status:
        figures = measure_fleet(
            model=model,
            device=device,
            quick=quick,
            progress=lambda doing: status.update(Text(escape_controls(doing))),
        )
    _show(fleet_table(figures), fleet_object(figures), json_file)


def _bench_quantization(rounds: int, quick: bool, model: str, json_file: str | None) -> None:
    from rich.text import Text

    from llmlab.bench.quantize import measure_quantization, pass_table, quantization_object, quantization_table

    _check_target(json_file)
    with stderr_console().status("starting") as status:
        result = measure_quantization(
            rounds,
            model=model,
            quick=quick,
            progress=lambda doing: status.update(Text(escape_controls(doing))),
        )
    _show(quantization_table(result), quantization_object(result), json_file)
    if json_file != TO_STDOUT:
        stdout_console().print(pass_table(result))


def _bench_routing(quick: bool, model: str, device: str, json_file: str | None) -> None:
    from rich.text import Text

    from llmlab.bench.routing import measure_routing, routing_object, routing_table
    from llmlab.parallel.replicas import Replicas

    _check_target(json_file)
    n = 2 if quick else 3
    with (
        stderr_console().status("starting servers") as status,
        Replicas(n, model, device=device, threads=1, num_blocks=1024) as replicas,
    ):
        figures = measure_routing(
            replicas,
            sessions=2 * n + 1,
            num_turns=3 if quick else 6,
            progress=lambda doing: status.update(Text(escape_controls(doing))),
        )
    _show(routing_table(figures), routing_object(figures), json_file)


def _bench_phases(quick: bool, model: str, device: str, json_file: str | None) -> None:
    from rich.text import Text

    from llmlab.bench.phases import measure_phases, phase_object, phase_table

    _check_target(json_file)
    with stderr_console().status("starting") as status:
        figures = measure_phases(
            model,
            prompt_tokens=400 if quick else 1500,
            device=device,
            progress=lambda doing: status.update(Text(escape_controls(doing))),
        )
    _show(phase_table(figures), phase_object(figures), json_file)


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
