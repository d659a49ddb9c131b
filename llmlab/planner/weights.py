"""Bytes of a model's weights in a format, part by part."""

from __future__ import annotations

from llmlab.errors import InvalidParameter
from llmlab.planner.formats import WeightFormat, number_bytes, weight_format
from llmlab.planner.layer_shape import Layer
from llmlab.planner.model_shape import ModelShape

SCOPES = ("layers", "head", "all")


def weight_bytes(shape: ModelShape, weights: str | WeightFormat = "bf16", scope: str = "layers") -> int:
    """Bytes of all weights.

    A 16- or 32-bit format holds everything. Of a smaller one ``scope`` says what it holds: the matrices of the
    ``layers`` (embedding, head, router, norms and biases stay in 16 bits, as servers keep them), the ``head`` too (a
    tied one then exists twice: the embedding in 16 bits, the head in the format), or ``all`` of the parameters without
    any scales: the nominal figure of articles and data sheets, parameters x bits / 8.
    Raises ``InvalidParameter`` for an unknown format or scope.
    """
    return sum(weight_bytes_by_part(shape, weights, scope).values())


def weight_bytes_by_part(
    shape: ModelShape, weights: str | WeightFormat = "bf16", scope: str = "layers"
) -> dict[str, int]:
    """As :func:`weight_bytes`, of ``embedding``, ``layers`` and ``head`` (the last norm counts to the layers)."""
    form = weight_format(weights)
    if scope not in SCOPES:
        raise InvalidParameter(f"scope={scope!r} is none: use one of {', '.join(SCOPES)}")
    if scope == "all" and not form.is_float:
        parts = shape.parameters_by_part
        sizes = {name: parts[name] for name in ("embedding", "head")}
        sizes["layers"] = shape.num_parameters - sum(sizes.values())
        return {name: round(sizes[name] * form.bits / 8) for name in ("embedding", "layers", "head")}
    plain = plain_bytes(form)
    has_own_head = not shape.tied or (scope == "head" and not form.is_float)
    return {
        "embedding": round((shape.vocab_size * shape.hidden_size + shape.positions) * plain),
        "layers": sum(n * layer_bytes(layer, form) for layer, n in shape.kinds) + round(shape.final_norm * plain),
        "head": (head_bytes(shape, form, scope) if has_own_head else 0) + round(shape.head_bias * plain),
    }


def plain_bytes(form: WeightFormat) -> float:
    """Bytes of a parameter that stays out of a small format: 2, or what a 16- or 32-bit format says."""
    return number_bytes(form.name) if form.is_float else 2


def layer_bytes(layer: Layer, form: WeightFormat, experts: float | None = None) -> int:
    """Bytes of a layer; ``experts`` is how many routed experts to count, all by default. The router stays plain."""
    plain, mlp = plain_bytes(form), layer.mlp
    count = mlp.num_experts if experts is None else experts
    router = sum(matrix.parameters for matrix in mlp.matrices if matrix.name == "router")
    always = [matrix for matrix in (*layer.attention.matrices, *mlp.matrices) if matrix.name != "router"]
    vectors = layer.norms + layer.attention.vectors + mlp.vectors + router
    per_expert = sum(form.nbytes(m.rows, m.columns) for m in mlp.expert) + mlp.expert_vectors * plain
    return round(sum(form.nbytes(m.rows, m.columns) for m in always) + vectors * plain + count * per_expert)


def head_bytes(shape: ModelShape, form: WeightFormat, scope: str = "layers") -> int:
    """Bytes of the output matrix as a step reads it, tied or not."""
    if scope == "layers" or form.is_float:
        return round(shape.vocab_size * shape.hidden_size * plain_bytes(form))
    return form.nbytes(shape.vocab_size, shape.hidden_size)
