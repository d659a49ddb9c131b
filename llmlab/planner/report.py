"""A plan in words and numbers, for a terminal."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from llmlab.errors import InvalidParameter
from llmlab.planner.bars import figure
from llmlab.planner.memory import MemoryPlan, devices_needed
from llmlab.planner.model_shape import ModelShape
from llmlab.planner.roofline import Row, decode, prefill
from llmlab.planner.split_step import SplitStep, split_step


@dataclass(frozen=True, slots=True)
class SpeedFloor:
    """The least time of one step of the plan, split as the plan is. COMPUTED."""

    name: str
    step: SplitStep
    tokens_out: int

    @property
    def tokens_per_s(self) -> float:
        """New tokens a second at most, over all requests of the step."""
        return self.tokens_out / self.step.time_s


def model_rows(shape: ModelShape, plan: MemoryPlan) -> dict[str, str]:
    """Sizes of the model."""
    active = shape.active_parameters
    part = (
        "" if active == shape.num_parameters else f", {active:,} for each token ({active / shape.num_parameters:.1%})"
    )
    first = shape.layers[0].attention
    latent = "" if first.latent is None else f", {first.latent} numbers cached per layer"
    rows = {
        "parameters": f"{shape.num_parameters:,}{part}",
        "layers": f"{shape.num_layers} of width {shape.hidden_size:,}",
        "attention": f"{shape.attention_kind}: {first.num_heads} query, {first.num_kv_heads} K/V heads{latent}",
        "K/V": f"{shape.kv_bytes_per_token(plan.kv, plan.layout):,} bytes a token in {plan.kv}",
    }
    mixture = next((layer.mlp for layer in shape.layers if layer.mlp.num_experts), None)
    if mixture is not None:
        rows["experts"] = f"{mixture.num_experts}, {mixture.top_k} for each token"
    return rows


def memory_rows(plan: MemoryPlan) -> list[tuple[str, str, str]]:
    """Part, gigabytes, share of the memory; with what is missing where it does not fit."""
    total = plan.device.memory_bytes
    rows = [(name, f"{value / 1e9:,.2f}", f"{value / total:.1%}") for name, value in plan.parts().items() if value]
    if not plan.weights_fit:
        rows.append(("missing", f"{-plan.room_bytes / 1e9:,.2f}", f"{-plan.room_bytes / total:.1%}"))
    return rows


def fit_rows(plan: MemoryPlan) -> dict[str, str]:
    """What fits, or what it would take."""
    if not plan.num_requests:
        why = "the weights do not fit" if not plan.weights_fit else f"not one request of {plan.context:,} tokens fits"
        return {"fits": f"no: {why}", "would fit": _enough(plan)}
    return {
        "fits": f"{plan.num_requests:,} requests of {plan.context:,} tokens at once",
        "tokens": f"{plan.num_tokens:,} in all",
        "longest": f"{plan.longest_request:,} tokens, one request alone",
    }


def _enough(plan: MemoryPlan) -> str:
    settings = {"weights": plan.weights, "kv": plan.kv, "context": plan.context, "layout": plan.layout}
    try:
        found = devices_needed(plan.shape, plan.device, scope=plan.scope, **settings)
    except InvalidParameter:
        return f"on no number of {plan.device.name}: use a smaller format or a shorter context"
    count = f"{found.num_devices} x {plan.device.name}" if found.num_devices > 1 else f"one {plan.device.name}"
    return f"on {count}: {found.num_requests:,} requests"


def speed_floors(plan: MemoryPlan) -> list[SpeedFloor]:
    """Prefill of the context, decode of one request and of as many as fit, at the context's end."""
    if not plan.num_requests:
        return []
    most = plan.num_requests
    steps = [(f"prefill of {plan.context:,} tokens", prefill(plan.context), 0)]
    for count in dict.fromkeys((1, most)):
        name = f"decode of {count:,} request{'s' if count > 1 else ''}"
        steps.append((name, decode(count, plan.context), count))
    return [SpeedFloor(name, _step(plan, rows), out) for name, rows, out in steps]


def _step(plan: MemoryPlan, rows: list[Row]) -> SplitStep:
    over = plan.device.links[0]
    return split_step(plan.shape, rows, "tensor", plan.num_devices, plan.device, over, weights=plan.weights, kv=plan.kv)


def speed_rows(floors: list[SpeedFloor]) -> list[tuple[str, str, str, str]]:
    """Step, milliseconds, of them communication, tokens a second."""
    return [
        (
            each.name,
            figure(each.step.time_s * 1e3),
            figure(each.step.communication_s * 1e3),
            figure(each.tokens_per_s) if each.tokens_out else "",
        )
        for each in floors
    ]


def notes(plan: MemoryPlan) -> list[str]:
    """Where the figures are from, and what they leave out."""
    shape, on = plan.shape, plan.device
    lines = [
        f"COMPUTED from the config and limits {on.source}: floors and capacities, not measurements of this model."
        if on.is_measured
        else f"COMPUTED, nothing was run: {on.source}."
    ]
    if plan.num_devices > 1:
        lines.append(
            f"Each device holds 1/{plan.num_devices} (tensor parallel over {on.links[0]}); bytes are one device's."
        )
    if not shape.is_exact:
        lines.append(f"The family {shape.family!r} is not known here: its parameters are counted as Llama's are.")
    if shape.max_tokens is not None and plan.context > shape.max_tokens:
        lines.append(f"The model itself goes to {shape.max_tokens:,} tokens only.")
    return lines


def report_object(plan: MemoryPlan, floors: list[SpeedFloor]) -> dict[str, Any]:
    """The whole report as plain values, for JSON."""
    steps = [
        {
            "step": each.name,
            "time_ms": each.step.time_s * 1e3,
            "communication_ms": each.step.communication_s * 1e3,
            "tokens_per_s": each.tokens_per_s if each.tokens_out else None,
        }
        for each in floors
    ]
    return plan.to_dict() | {"floors": steps, "notes": notes(plan)}
