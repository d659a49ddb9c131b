"""The parts of ``llmlab bench`` that measure one thing only."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from llmlab.commands.terminal import escape_controls, stderr_console, stdout_console
from llmlab.errors import LabError

if TYPE_CHECKING:
    from rich.table import Table

TO_STDOUT = "-"


def bench_wire(rounds: int, json_file: str | None) -> None:
    """``--wire``."""
    from llmlab.bench.wire import measure_wire, wire_object, wire_table

    check_target(json_file)
    with stderr_console().status("measuring the wire"):
        figures = measure_wire(rounds)
    show(wire_table(figures), wire_object(figures), json_file)


def bench_probes(rounds: int, model: str, device: str, json_file: str | None) -> None:
    """``--probes``."""
    from llmlab.bench.probes import measure_probes, probe_object, probe_table

    check_target(json_file)
    with stderr_console().status("measuring probes"):
        figures = measure_probes(rounds, model=model, device=device)
    show(probe_table(figures), probe_object(figures), json_file)


def bench_tiers(rounds: int, model: str, device: str, json_file: str | None) -> None:
    """``--tiers``."""
    from llmlab.bench.tiers import measure_tiers, tier_object, tier_tables

    check_target(json_file)
    with watched("starting") as progress:
        figures = measure_tiers(rounds, model=model, device=device, progress=progress)
    resumed, hits = tier_tables(figures)
    if json_file != TO_STDOUT:
        stdout_console().print(resumed)
    show(hits, tier_object(figures), json_file)


def bench_panels(rounds: int, quick: bool, json_file: str | None) -> None:
    """``--panels``."""
    from llmlab.bench.panels import FULL, QUICK, measure_panels, panel_object, panel_table

    check_target(json_file)
    with watched("starting") as progress:
        figures = measure_panels(rounds, effort=QUICK if quick else FULL, progress=progress)
    show(panel_table(figures), panel_object(figures), json_file)


def bench_speculation(
    rounds: int,
    quick: bool,
    batches: list[int],
    model: str,
    device: str,
    draft_model: str | None,
    json_file: str | None,
) -> None:
    """``--speculative``."""
    from llmlab.bench.speculative import measure_speculation, speculation_object, speculation_table

    check_target(json_file)
    with watched("starting") as progress:
        result = measure_speculation(
            rounds, model=model, device=device, quick=quick, batches=batches, draft_model=draft_model, progress=progress
        )
    show(speculation_table(result), speculation_object(result), json_file)


def bench_steps(quick: bool, model: str, device: str, target: str | None, json_file: str | None) -> None:
    """``--calibrate``: step times go to ``target``, or to the cache."""
    import llmlab
    from llmlab.bench.fleet import calibration_object, calibration_tables
    from llmlab.planner.calibrate import calibrate, default_path, save_step_times

    check_target(json_file)
    where = {"device": device, "threads": 1, "num_blocks": 1024, "background": False}
    with watched("opening the model") as progress, llmlab.open(model, **where) as lab:
        found = calibrate(lab, quick=quick, progress=progress)
    sums, cells = calibration_tables(found)
    if json_file != TO_STDOUT:
        stdout_console().print(cells)
    show(sums, calibration_object(found), json_file)
    saved = save_step_times(found.times, target or default_path(found.info))
    stderr_console().print(f"step times saved in {escape_controls(str(saved))}")


def bench_fleet(quick: bool, model: str, device: str, json_file: str | None) -> None:
    """``--fleet``."""
    from llmlab.bench.fleet import fleet_object, fleet_table, measure_fleet

    check_target(json_file)
    with watched("starting") as progress:
        figures = measure_fleet(model=model, device=device, quick=quick, progress=progress)
    show(fleet_table(figures), fleet_object(figures), json_file)


def bench_quantization(rounds: int, quick: bool, model: str, json_file: str | None) -> None:
    """``--quantize``."""
    from llmlab.bench.quantize import measure_quantization, pass_table, quantization_object, quantization_table

    check_target(json_file)
    with watched("starting") as progress:
        result = measure_quantization(rounds, model=model, quick=quick, progress=progress)
    show(quantization_table(result), quantization_object(result), json_file)
    if json_file != TO_STDOUT:
        stdout_console().print(pass_table(result))


def bench_routing(quick: bool, model: str, device: str, json_file: str | None) -> None:
    """``--routing``: two servers where ``quick``, else three."""
    from llmlab.bench.routing import measure_routing, routing_object, routing_table
    from llmlab.parallel.replicas import Replicas

    check_target(json_file)
    n = 2 if quick else 3
    with (
        watched("starting servers") as progress,
        Replicas(n, model, device=device, threads=1, num_blocks=1024) as replicas,
    ):
        figures = measure_routing(replicas, sessions=2 * n + 1, num_turns=3 if quick else 6, progress=progress)
    show(routing_table(figures), routing_object(figures), json_file)


def bench_phases(quick: bool, model: str, device: str, json_file: str | None) -> None:
    """``--phases``."""
    from llmlab.bench.phases import measure_phases, phase_object, phase_table

    check_target(json_file)
    with watched("starting") as progress:
        figures = measure_phases(model, prompt_tokens=400 if quick else 1500, device=device, progress=progress)
    show(phase_table(figures), phase_object(figures), json_file)


@contextmanager
def watched(text: str) -> Iterator[Callable[[str], None]]:
    """A line on standard error: ``text``, then whatever the function that it gives is told."""
    from rich.text import Text

    with stderr_console().status(text) as status:
        yield lambda doing: status.update(Text(escape_controls(doing)))


def show(table: Table, measured: dict[str, Any], json_file: str | None) -> None:
    """Print the table, unless the measurements themselves go there, and write those where they are wanted."""
    if json_file != TO_STDOUT:
        stdout_console().print(table)
    if json_file is not None:
        write(json_file, json.dumps(measured, indent=1))


def check_target(path: str | None) -> None:
    """Refuse a file in a folder that does not exist, before anything is measured."""
    if path not in (None, TO_STDOUT) and not Path(path).absolute().parent.is_dir():
        raise typer.BadParameter(f"there is no folder {Path(path).absolute().parent}", param_hint="--json")


def write(path: str, text: str) -> None:
    """Write a file, or print where it is ``-``. Raises ``LabError``."""
    if path == TO_STDOUT:
        print(text)
        return
    try:
        Path(path).write_text(text + "\n", "utf-8")
    except OSError as error:
        raise LabError(f"the measurements were not written to {path}: {error.strerror or error}") from error
