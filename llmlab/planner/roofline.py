"""Operations and bytes of one engine step, from a model's shape and the rows of the batch; and the time they take.

A step cannot be faster than its operations at the device's peak, nor than its bytes at the memory's
(the roofline, Williams, Waterman and Patterson 2009; article A, sections 1 and 5.7).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from llmlab.errors import InvalidParameter
from llmlab.planner.devices import Device, device
from llmlab.planner.formats import WeightFormat, number_bytes, weight_format
from llmlab.planner.layer_shape import Layer, parameters_of
from llmlab.planner.model_shape import ModelShape
from llmlab.planner.weights import head_bytes, layer_bytes, plain_bytes


@dataclass(frozen=True, slots=True)
class Row:
    """One request in a step: ``num_tokens`` new tokens after ``num_cached`` that are in the cache already.

    A decode row has one new token, a prefill row a prompt or a chunk of it; ``num_logits`` positions go through the
    head.
    """

    num_tokens: int
    num_cached: int = 0
    num_logits: int = 1

    @property
    def context(self) -> int:
        """Positions in the cache after the step."""
        return self.num_cached + self.num_tokens


@dataclass(frozen=True, slots=True)
class StepWork:
    """What one step takes. Operations: a multiplication and an addition are two.

    ``linear_flops`` (projections, MLP, experts), ``attention_flops`` (scores and sums), ``head_flops``. Bytes from and
    to the device's memory: ``weight_bytes`` (each weight read once; of routed experts those expected to be touched),
    ``kv_read_bytes`` and ``kv_write_bytes``. Activations stay in caches and are not counted.
    """

    num_tokens: int
    num_rows: int
    linear_flops: float
    attention_flops: float
    head_flops: float
    weight_bytes: float
    kv_read_bytes: float
    kv_write_bytes: float
    arithmetic: str = "bf16"

    @property
    def flops(self) -> float:
        """All operations."""
        return self.linear_flops + self.attention_flops + self.head_flops

    @property
    def kv_bytes(self) -> float:
        """K/V read and written."""
        return self.kv_read_bytes + self.kv_write_bytes

    @property
    def nbytes(self) -> float:
        """All bytes."""
        return self.weight_bytes + self.kv_bytes

    @property
    def intensity(self) -> float:
        """Operations per byte."""
        return self.flops / self.nbytes

    def compute_s(self, on: str | Device) -> float:
        """Seconds its operations take at the device's peak."""
        return self.flops / device(on).peak(self.arithmetic)

    def memory_s(self, on: str | Device) -> float:
        """Seconds its bytes take at the memory's peak."""
        return self.nbytes / device(on).bytes_per_s

    def time_s(self, on: str | Device) -> float:
        """The larger of the two: a floor, computed, for a device that loses nothing anywhere."""
        on = device(on)
        return max(self.compute_s(on), self.memory_s(on))

    def bound(self, on: str | Device) -> str:
        """``memory`` or ``compute``, whichever takes longer."""
        on = device(on)
        return "memory" if self.memory_s(on) >= self.compute_s(on) else "compute"


def prefill(num_tokens: int, num_cached: int = 0) -> list[Row]:
    """One prompt (or the rest of it after a prefix hit)."""
    return [Row(num_tokens, num_cached)]


def decode(num_requests: int, context: int) -> list[Row]:
    """``num_requests`` rows of one token each, ``context`` positions in the cache after the step."""
    return [Row(1, context - 1)] * num_requests


def step_work(
    shape: ModelShape,
    rows: Iterable[Row],
    *,
    weights: str | WeightFormat = "bf16",
    kv: str = "bf16",
    layout: str = "latent",
    scope: str = "layers",
) -> StepWork:
    """What a step of these rows takes.

    MLA with the ``latent`` layout: rows of one token attend on the latent itself (the key and value matrices absorbed
    into the query's and the output's), longer ones on keys and values expanded from it.
    Raises ``InvalidParameter`` for an empty step, or a row without new tokens or with a negative context.
    """
    rows, form = _checked(rows), weight_format(weights)
    tokens, logits = sum(row.num_tokens for row in rows), sum(row.num_logits for row in rows)
    table = shape.vocab_size * shape.hidden_size
    per_number = number_bytes(kv)
    read = written = attention = 0.0
    for layer, count in shape.kinds:
        numbers = layer.attention.cached_numbers(layout) * count * per_number
        read += numbers * sum(layer.attention.read_tokens(row.num_tokens, row.num_cached) for row in rows)
        written += numbers * tokens
        attention += count * _attention_flops(layer, rows, layout)
    return StepWork(
        num_tokens=tokens,
        num_rows=len(rows),
        linear_flops=2 * tokens * sum(count * _active_weights(layer) for layer, count in shape.kinds),
        attention_flops=attention,
        head_flops=2 * logits * table,
        weight_bytes=read_bytes(shape, tokens, form, scope, head=logits > 0),
        kv_read_bytes=read,
        kv_write_bytes=written,
        arithmetic=form.arithmetic,
    )


def read_bytes(
    shape: ModelShape,
    num_tokens: int,
    weights: str | WeightFormat = "bf16",
    scope: str = "layers",
    *,
    head: bool = True,
) -> float:
    """Bytes of weights that a step of ``num_tokens`` reads: everything once, of the routed experts those expected to
    be touched, of the embedding one row per token; the ``head`` where any position goes through it."""
    form = weight_format(weights)
    plain = plain_bytes(form)
    layers = sum(n * layer_bytes(layer, form, layer.mlp.experts_touched(num_tokens)) for layer, n in shape.kinds)
    embedding = num_tokens * shape.hidden_size * plain
    end = (shape.final_norm + shape.head_bias) * plain + head_bytes(shape, form, scope)
    return layers + embedding + (end if head else 0)


def _checked(rows: Iterable[Row]) -> Sequence[Row]:
    rows = list(rows)
    if not rows:
        raise InvalidParameter("a step needs at least one row")
    for row in rows:
        if row.num_tokens < 1 or row.num_cached < 0 or row.num_logits < 0:
            raise InvalidParameter(f"{row} is no row: at least one new token, and nothing negative")
    return rows


def _active_weights(layer: Layer) -> int:
    mlp = layer.mlp
    return parameters_of(layer.attention.matrices + mlp.matrices) + mlp.top_k * parameters_of(mlp.expert)


def _attention_flops(layer: Layer, rows: Sequence[Row], layout: str) -> float:
    attention = layer.attention
    total = 0.0
    for row in rows:
        absorbed = layout == "latent" and row.num_tokens == 1
        total += attention.pairs(row.num_tokens, row.num_cached) * attention.flops_per_pair(absorbed=absorbed)
    return total
