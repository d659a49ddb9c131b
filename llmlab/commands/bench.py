"""``llmlab bench``: llmlab beside its peers, on this machine, in one run."""

from __future__ import annotations

import json
import sys
from typing import Annotated

import typer

from llmlab.commands.bench_parts import (
    TO_STDOUT,
    bench_fleet,
    bench_panels,
    bench_phases,
    bench_probes,
    bench_quantization,
    bench_routing,
    bench_speculation,
    bench_steps,
    bench_tiers,
    bench_wire,
    check_target,
    watched,
    write,
)
from llmlab.commands.options import Device, Model
from llmlab.commands.terminal import stdout_console
from llmlab.errors import InvalidParameter
from llmlab.models.catalogue import DEFAULT_MODEL


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
    parts = {
        "--wire": (wire, lambda: bench_wire(repeats or (2 if quick else 5), json_file)),
        "--speculative": (
            speculative,
            lambda: bench_speculation(
                repeats or (1 if quick else 3), quick, _batches(batch), model, device, draft_model, json_file
            ),
        ),
        "--probes": (probes, lambda: bench_probes(repeats or (1 if quick else 5), model, device, json_file)),
        "--panels": (panels, lambda: bench_panels(repeats or (3 if quick else 15), quick, json_file)),
        "--calibrate": (calibrate, lambda: bench_steps(quick, model, device, step_times, json_file)),
        "--tiers": (tiers, lambda: bench_tiers(repeats or (2 if quick else 7), model, device, json_file)),
        "--fleet": (fleet, lambda: bench_fleet(quick, model, device, json_file)),
        "--quantize": (quantize, lambda: bench_quantization(repeats or (1 if quick else 5), quick, model, json_file)),
        "--routing": (routing, lambda: bench_routing(quick, model, device, json_file)),
        "--phases": (phases, lambda: bench_phases(quick, model, device, json_file)),
    }
    asked = {name: measure for name, (is_asked, measure) in parts.items() if is_asked}
    if len(asked) > 1:
        raise InvalidParameter(f"{' and '.join(asked)} exclude each other: measure one thing at a time")
    for measure in asked.values():
        measure()
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
    check_target(json_file)
    with watched("starting") as progress:
        samples = run_benchmark(plan, progress=progress)
    if json_file != TO_STDOUT:
        console = stdout_console()
        for table in report_tables(plan, samples):
            console.print(table)
    if json_file is not None:
        write(json_file, json.dumps(report_object(plan, samples, sys.argv[1:]), indent=1))


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
