"""What fits: a device's memory divided into weights, K/V, activations and a reserve."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

from llmlab.errors import InvalidParameter
from llmlab.planner.activations import activation_bytes
from llmlab.planner.devices import Device, device
from llmlab.planner.formats import WeightFormat, number_bytes, weight_format
from llmlab.planner.layer_shape import AttentionShape
from llmlab.planner.model_shape import ModelShape
from llmlab.planner.shards import tensor_shard
from llmlab.planner.weights import weight_bytes

RESERVE = 0.1  # of a device's memory, for its driver, graphs and fragments: what serving engines leave by default
STEP_TOKENS = 2048  # a usual token budget of one step


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """One model on ``num_devices`` devices, its tensors split evenly: bytes are those of the fullest device.

    ``shard`` is that device's share of the model. ``reserve_bytes`` stay free. Figures are COMPUTED.
    """

    shape: ModelShape
    shard: ModelShape
    device: Device
    num_devices: int
    weights: WeightFormat
    scope: str
    kv: str
    layout: str
    context: int
    weight_bytes: int
    activation_bytes: int
    reserve_bytes: int

    @property
    def room_bytes(self) -> int:
        """What is left for K/V; negative where the rest alone does not fit."""
        used = self.weight_bytes + self.activation_bytes + self.reserve_bytes
        return math.floor(self.device.memory_bytes) - used

    @property
    def weights_fit(self) -> bool:
        """Whether anything is left for K/V."""
        return self.room_bytes > 0

    @property
    def kv_bytes_per_token(self) -> int:
        """On each device, for one more token."""
        return self.shard.kv_bytes_per_token(self.kv, self.layout)

    @property
    def kv_bytes_per_request(self) -> int:
        """On each device, for a request of ``context`` positions."""
        return self.shard.kv_bytes(self.context, self.kv, self.layout)

    @property
    def num_requests(self) -> int:
        """How many requests of ``context`` positions fit at once."""
        return max(0, self.room_bytes // self.kv_bytes_per_request)

    @property
    def num_tokens(self) -> int:
        """How many positions fit in all, counted as one request's after another's (windows do not help here)."""
        return max(0, self.room_bytes // self.kv_bytes_per_token)

    @property
    def longest_request(self) -> int:
        """How many positions one request alone could have; windows respected, the model's own limit not."""
        return _longest(self.shard, self.room_bytes, self.kv, self.layout)

    def parts(self) -> dict[str, int]:
        """Bytes of the fullest device: ``weights``, ``activations``, ``K/V`` of the requests that fit, ``free`` of
        what no further request fits into, ``reserve``. They sum to its memory where the weights fit."""
        used = self.num_requests * self.kv_bytes_per_request
        return {
            "weights": self.weight_bytes,
            "activations": self.activation_bytes,
            "K/V": used,
            "free": max(0, self.room_bytes - used),
            "reserve": self.reserve_bytes,
        }

    def to_dict(self) -> dict[str, Any]:
        """Inputs and results as plain values, for JSON."""
        return {
            "computed": True,
            **{name.replace(" ", "_"): value for name, value in self.shape.facts().items()},
            "device": self.device.name,
            "device_source": self.device.source,
            "device_memory_bytes": math.floor(self.device.memory_bytes),
            "num_devices": self.num_devices,
            "weights": self.weights.name,
            "weights_scope": self.scope,
            "kv": self.kv,
            "kv_layout": self.layout,
            "context": self.context,
            "bytes": self.parts(),
            "kv_bytes_per_token": self.kv_bytes_per_token,
            "kv_bytes_per_request": self.kv_bytes_per_request,
            "room_bytes": self.room_bytes,
            "weights_fit": self.weights_fit,
            "num_requests": self.num_requests,
            "num_tokens": self.num_tokens,
            "longest_request": self.longest_request,
        }


def plan_memory(
    model: ModelShape | Any,
    on: str | Device,
    *,
    weights: str | WeightFormat = "bf16",
    kv: str = "bf16",
    context: int = 8192,
    num_devices: int = 1,
    reserve: float = RESERVE,
    step_tokens: int = STEP_TOKENS,
    layout: str = "latent",
    scope: str = "layers",
) -> MemoryPlan:
    """Divide each device's memory for a model split over ``num_devices`` (tensor parallel).

    ``model`` is anything :meth:`ModelShape.of` takes. ``reserve`` is a share of the memory, ``step_tokens`` the largest
    step (its activations; 0 to leave them out). Raises ``InvalidParameter`` for values that make no sense.
    """
    shape, on, form = ModelShape.of(model), device(on), weight_format(weights)
    _check(context, num_devices, reserve, step_tokens)
    number_bytes(kv)
    shard = tensor_shard(shape, num_devices)
    return MemoryPlan(
        shape=shape,
        shard=shard,
        device=on,
        num_devices=num_devices,
        weights=form,
        scope=scope,
        kv=kv,
        layout=layout,
        context=context,
        weight_bytes=weight_bytes(shard, form, scope),
        activation_bytes=activation_bytes(shard, step_tokens, min(step_tokens, 256)) if step_tokens else 0,
        reserve_bytes=math.ceil(reserve * on.memory_bytes),
    )


def devices_needed(model: ModelShape | Any, on: str | Device, *, requests: int = 1, **settings: Any) -> MemoryPlan:
    """The plan with the fewest devices on which ``requests`` requests fit; ``settings`` as :func:`plan_memory` takes.

    Raises ``InvalidParameter`` when no split of the model's heads is enough, with what is missing.
    """
    shape = ModelShape.of(model)
    plan = None
    for count in splits(shape):
        plan = plan_memory(shape, on, **settings | {"num_devices": count})
        if plan.num_requests >= requests:
            return plan
    assert plan is not None, "one device is always a split"
    raise InvalidParameter(
        f"{shape.name} with {requests:,} requests of {plan.context:,} tokens does not fit on {plan.num_devices} x "
        f"{plan.device.name}, the widest split of its heads: use a smaller format, a shorter context or fewer requests"
    )


def splits(shape: ModelShape) -> list[int]:
    """Numbers of devices over which query and K/V heads divide evenly, K/V heads copied where there are too few."""
    attentions = [layer.attention for layer, _ in shape.kinds]
    most = max(attention.num_heads for attention in attentions)
    return [n for n in range(1, most + 1) if all(_divides(attention, n) for attention in attentions)]


def _divides(attention: AttentionShape, count: int) -> bool:
    kv_heads = attention.num_kv_heads
    return attention.num_heads % count == 0 and (kv_heads % count == 0 or count % kv_heads == 0)


def what_fits(
    model: ModelShape | Any, on: str | Device, contexts: list[int], formats: list[str], **settings: Any
) -> list[list[MemoryPlan]]:
    """A plan for every weight format (rows) and context (columns)."""
    shape = ModelShape.of(model)
    return [
        [plan_memory(shape, on, **settings | {"weights": form, "context": context}) for context in contexts]
        for form in formats
    ]


def with_memory(on: str | Device, memory_bytes: float) -> Device:
    """The device with another amount of memory, as a driver reports it."""
    return replace(device(on), memory_bytes=memory_bytes)


def _check(context: int, num_devices: int, reserve: float, step_tokens: int) -> None:
    if context < 1:
        raise InvalidParameter(f"context={context}: a request has at least one position")
    if num_devices < 1:
        raise InvalidParameter(f"num_devices={num_devices}: at least one is needed")
    if not 0 <= reserve < 1:
        raise InvalidParameter(f"reserve={reserve} is a share of the memory: from 0 to below 1")
    if step_tokens < 0:
        raise InvalidParameter(f"step_tokens={step_tokens} is negative")


def _longest(shape: ModelShape, room: int, kv: str, layout: str) -> int:
    """The most positions whose K/V fits in ``room`` bytes, by bisection: the bytes only grow."""
    low, high = 0, 1
    while shape.kv_bytes(high, kv, layout) <= room:
        low, high = high, high * 2
        if high > 2**40:  # every layer has a window: no length is too long
            return high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if shape.kv_bytes(middle, kv, layout) <= room else (low, middle)
    return low
