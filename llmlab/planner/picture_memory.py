"""Pictures of plans: a device's memory as a stack, and what fits as a grid."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from llmlab.errors import InvalidParameter
from llmlab.planner.bars import Bar, Segment, figure, stacked
from llmlab.planner.grid_scene import grid_scene
from llmlab.planner.memory import MemoryPlan
from llmlab.planner.picture_parts import check_some, computed, number, scopes, sources
from llmlab.views.view import View

_PARTS = {
    "weights": {"role": "c0"},
    "activations": {"role": "c3"},
    "K/V": {"role": "c2"},
    "free": {"role": ""},
    "reserve": {"role": "faint", "hatch": True},
}
_ABOUT_PARTS = (
    "Activations are an upper estimate of one step's; the reserve stays free for driver, graphs and fragments. "
    "The line is the device's memory."
)


def memory_stack(plans: MemoryPlan | Sequence[MemoryPlan], *, width: float = 900) -> View:
    """What each plan's fullest device holds: weights, activations, K/V, what is free and the reserve.

    A bar that goes beyond the line at its device's memory does not fit. Raises ``InvalidParameter`` for no plan.
    """
    plans = [plans] if isinstance(plans, MemoryPlan) else list(plans)
    check_some(plans, "plan")
    bars = [Bar(_about(plan), _result(plan), _segments(plan), plan.device.memory_bytes) for plan in plans]
    alt = f"Memory of {number(plans, 'plan')}: weights, activations, K/V, free and reserve of the fullest device."
    notes = [*sources(plan.device for plan in plans), *scopes(plans), _ABOUT_PARTS]
    scene = stacked(bars, "GB", 1e9, width)
    title = "what a device's memory holds"
    return computed("memory_stack", title, alt, map(_line, plans), scene, map(_row, plans), notes)


def fits_grid(grid: Sequence[Sequence[MemoryPlan]], *, width: float = 900) -> View:
    """How many requests fit, by weight format (rows) and context (columns), as :func:`what_fits` gives the plans.

    Raises ``InvalidParameter`` for an empty grid or rows of different contexts.
    """
    plans = [plan for row in grid for plan in row]
    check_some(plans, "plan", 24 * 24)
    if len({tuple(plan.context for plan in row) for row in grid}) != 1:
        raise InvalidParameter("every row of the grid needs the same contexts: make it with what_fits")
    first = plans[0]
    rows = [f"{row[0].weights.name}, {figure(row[0].weight_bytes / 1e9)} GB" for row in grid]
    counts = [[plan.num_requests if plan.weights_fit else None for plan in row] for row in grid]
    columns = [f"{plan.context:,}" for plan in grid[0]]
    title = f"requests of {first.shape.name} that fit on {_where(first)}"
    alt = f"Requests that fit, for {number(grid, 'weight format')} and {number(columns, 'context')}, {first.kv} K/V."
    notes = [*sources([first.device]), _about_k_v(first), *scopes(row[0] for row in grid)]
    scene = grid_scene(rows, columns, counts, "tokens per request", width)
    return computed("fits_grid", title, alt, _grid_lines(grid, rows), scene, map(_row, plans), notes)


def _grid_lines(grid: Sequence[Sequence[MemoryPlan]], rows: Sequence[str]) -> Iterable[str]:
    for name, plans in zip(rows, grid, strict=True):
        fit = [f"{plan.num_requests:,} of {plan.context:,}" for plan in plans if plan.num_requests]
        told = f": {', '.join(fit) or 'none'}" if not plans[0].device.is_measured else ""
        yield f"{name}{told}"


def _about_k_v(plan: MemoryPlan) -> str:
    size = f"{plan.kv_bytes_per_token:,} bytes a token and device"
    return f"K/V in {plan.kv}: {size}. Struck out: the weights do not fit."


def _segments(plan: MemoryPlan) -> tuple[Segment, ...]:
    return tuple(Segment(name, value, **_PARTS[name]) for name, value in plan.parts().items())


def _where(plan: MemoryPlan) -> str:
    return f"{plan.num_devices} x {plan.device.name}" if plan.num_devices > 1 else plan.device.name


def _about(plan: MemoryPlan) -> str:
    return f"{plan.shape.name}, {plan.weights.name} weights, {plan.kv} K/V on {_where(plan)}"


def _result(plan: MemoryPlan) -> str:
    if not plan.weights_fit:
        return f"does not fit: {figure(-plan.room_bytes / 1e9)} GB too much"
    return f"{number(plan.num_requests, 'request')} of {plan.context:,} tokens"


def _line(plan: MemoryPlan) -> str:
    told = f"{figure(plan.weight_bytes / 1e9)} GB of weights" if plan.device.is_measured else _result(plan)
    return f"{_about(plan)}: {told}"


def _row(plan: MemoryPlan) -> dict[str, Any]:
    return {
        "model": plan.shape.name,
        "device": plan.device.name,
        "devices": plan.num_devices,
        "weights": plan.weights.name,
        "kv": plan.kv,
        "context": plan.context,
        **{f"{name}_bytes": value for name, value in plan.parts().items()},
        "device_memory_bytes": plan.device.memory_bytes,
        "room_bytes": plan.room_bytes,
        "requests": plan.num_requests,
        "tokens": plan.num_tokens,
    }
