"""Pictures of steps: under a roofline, and split over devices."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from llmlab.errors import InvalidParameter
from llmlab.planner.bars import Bar, Segment, figure, stacked
from llmlab.planner.devices import Device, device
from llmlab.planner.links import Link, link
from llmlab.planner.picture_parts import check_some, computed, number, sources
from llmlab.planner.roofline import StepWork
from llmlab.planner.roofline_scene import Point, roofline_scene
from llmlab.planner.split_step import SplitStep
from llmlab.views.view import View

_FLOORS = "Floors: computing and reading overlap fully; weights are read once a step, activations stay in caches."


def roofline_chart(works: Mapping[str, StepWork], on: str | Device, *, width: float = 900) -> View:
    """Steps under a device's roofline: operations per byte, and operations a second that the two limits allow.

    Raises ``InvalidParameter`` for no step, or steps that compute in different formats.
    """
    check_some(list(works), "step")
    on = device(on)
    if len(formats := {work.arithmetic for work in works.values()}) > 1:
        raise InvalidParameter(f"these steps compute in {', '.join(sorted(formats))}: draw one format at a time")
    dtype = formats.pop()
    bend = "" if on.is_measured else f", from {figure(on.ridge(dtype))} operations a byte on bound by arithmetic"
    alt = f"{number(list(works), 'step')} under the roofline of {on.name} in {dtype}{bend}."
    lines = [f"{name}: {figure(work.intensity)} operations a byte" for name, work in works.items()]
    points = [_point(name, work, on) for name, work in works.items()]
    scene = roofline_scene(points, on.peak(dtype), on.bytes_per_s, width)
    rows = [_work_row(name, work, on) for name, work in works.items()]
    title = f"steps under the roofline of {on.name}"
    return computed("roofline", title, alt, lines, scene, rows, [*sources([on]), _FLOORS])


def _point(name: str, work: StepWork, on: Device) -> Point:
    seconds = work.time_s(on)
    return Point(name, work.intensity, work.flops / seconds, f"{figure(seconds * 1e3)} ms, {work.bound(on)}")


def _work_row(name: str, work: StepWork, on: Device) -> dict[str, Any]:
    return {
        "step": name,
        "tokens": work.num_tokens,
        "flops": work.flops,
        "weight_bytes": work.weight_bytes,
        "kv_bytes": work.kv_bytes,
        "flops_per_byte": work.intensity,
        "time_ms": work.time_s(on) * 1e3,
        "bound": work.bound(on),
        "device_flops_per_s": on.peak(work.arithmetic),
        "device_bytes_per_s": on.bytes_per_s,
    }


def parallel_chart(steps: Mapping[str, SplitStep], on: str | Device, over: str | Link, *, width: float = 900) -> View:
    """One step, split in different ways over devices ``on`` and a link: computing, communication, idling.

    ``on`` and ``over`` are what the steps were computed for, and are told in the notes. Raises ``InvalidParameter`` for
    no step.
    """
    check_some(list(steps), "step")
    on, over = device(on), link(over)
    bars = [_bar(name, step) for name, step in steps.items()]
    alt = f"{number(bars, 'split')} of one step: time for computing, communication and idling."
    lines = [
        f"{name}: {number(step.ranks, 'device')}, {figure(step.sent_bytes)} bytes sent by each"
        for name, step in steps.items()
    ]
    notes = [*sources([on]), _link_note(over), "Nothing overlaps; a device computes at its roofline."]
    rows = [_step_row(name, step) for name, step in steps.items()]
    title = f"one step, split over {on.name} and {over.name}"
    return computed("parallel", title, alt, lines, stacked(bars, "ms", 1e-3, width), rows, notes)


def _bar(name: str, step: SplitStep) -> Bar:
    result = f"{figure(step.time_s * 1e3)} ms, {figure(step.weight_bytes / 1e9)} GB of weights on each"
    segments = (
        Segment("computing", step.compute_s, "c0"),
        Segment("communication", step.communication_s, "c1"),
        Segment("idle", step.idle_s, "faint", dash=True),
    )
    return Bar(f"{name} ({number(step.ranks, 'device')})", result, segments)


def _link_note(over: Link) -> str:
    rate, latency = figure(over.bytes_per_s / 1e9), figure(over.latency_s * 1e6)
    return f"Link {over.name}: {rate} GB/s one way ({over.source}); assumed: {latency} µs a message."


def _step_row(name: str, step: SplitStep) -> dict[str, Any]:
    return {
        "name": name,
        "split": step.split,
        "devices": step.ranks,
        "weight_bytes": step.weight_bytes,
        "computing_ms": step.compute_s * 1e3,
        "communication_ms": step.communication_s * 1e3,
        "idle_ms": step.idle_s * 1e3,
        "time_ms": step.time_s * 1e3,
        "sent_bytes": step.sent_bytes,
    }
