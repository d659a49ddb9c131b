"""``llmlab plan``: what fits on a device, and how fast it could be at most. Computed, nothing is loaded."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated

import typer

from llmlab.commands.options import AsJson
from llmlab.commands.terminal import escape_controls, stdout_console, two_columns

if TYPE_CHECKING:
    from rich.table import Table

    from llmlab.planner.memory import MemoryPlan
    from llmlab.planner.report import SpeedFloor


def plan(
    model: Annotated[str, typer.Argument(help="A well-known model's name, or a folder with a config.json.")],
    device: Annotated[
        str, typer.Option(help="a100-40, a100-80, h100, h200, b200, rtx-4090, or this-machine (measured).")
    ] = "h100",
    weights: Annotated[
        str, typer.Option(help="fp32, fp16, bf16, fp8, int8, int4, int4-gN (groups of N), nvfp4 or mxfp4.")
    ] = "bf16",
    kv: Annotated[str, typer.Option(help="Format of keys and values: fp32, fp16, bf16, fp8, int8 or int4.")] = "bf16",
    context: Annotated[int, typer.Option(help="Tokens of each request, prompt and output together.")] = 8192,
    tensor_parallel: Annotated[int, typer.Option(help="Devices that share every layer.")] = 1,
    reserve: Annotated[float, typer.Option(help="Part of the memory that stays free.")] = 0.1,
    step_tokens: Annotated[int, typer.Option(help="Tokens of the largest step, for its activations.")] = 2048,
    as_json: AsJson = False,
) -> None:
    """Compute what fits on a device: weights, K/V, activations; how many requests; the least time of a step.

    From the config and the maker's figures alone: no weights are needed, and nothing is run unless the device is
    this-machine, whose memory and speed are measured for a second or two.
    """
    from llmlab.planner.memory import plan_memory
    from llmlab.planner.report import report_object, speed_floors

    made = plan_memory(
        model, device, weights=weights, kv=kv, context=context, num_devices=tensor_parallel, reserve=reserve,
        step_tokens=step_tokens,
    )  # fmt: skip
    floors = speed_floors(made)
    if as_json:
        print(json.dumps(report_object(made, floors)))
    else:
        _show(made, floors)


def _show(made: MemoryPlan, floors: list[SpeedFloor]) -> None:
    from llmlab.planner.report import fit_rows, memory_rows, model_rows, notes, speed_rows

    console = stdout_console()
    many = f"{made.num_devices} x " if made.num_devices > 1 else ""
    console.print(two_columns(model_rows(made.shape, made), title=escape_controls(made.shape.name)))
    console.print()
    console.print(f"{many}{made.device.name}, {made.weights.name} weights")
    console.print(_numbers(["memory", "GB", "share"], memory_rows(made)))
    console.print(two_columns(fit_rows(made)))
    if floors:
        console.print()
        header = ["a step takes at least", "ms", "of it communication", "tokens/s at most"]
        console.print(_numbers(header, speed_rows(floors)))
    for line in notes(made):
        console.print(escape_controls(line), style="dim")


def _numbers(header: list[str], rows: list[tuple[str, ...]]) -> Table:
    from rich.table import Table

    table = Table()
    for number, name in enumerate(header):
        table.add_column(name, justify="right" if number else "left")
    for row in rows:
        table.add_row(*row)
    return table
