"""A device's share of a model that is split over several: again a :class:`ModelShape`, so its bytes are computed alike.

Tensor parallel divides heads, MLP columns and vocabulary; pipeline parallel layers; expert parallel routed experts.
"""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import pairwise

from llmlab.errors import InvalidParameter
from llmlab.planner.layer_shape import AttentionShape, Layer, Matrix, MlpShape
from llmlab.planner.model_shape import ModelShape


def tensor_shard(shape: ModelShape, ranks: int) -> ModelShape:
    """The share of the fullest of ``ranks`` tensor-parallel ranks.

    K/V heads are divided with their query heads (the fullest rank has one more where they do not divide evenly); with
    more ranks than K/V heads each rank keeps a copy of one. MLA's latent is kept whole by every rank. The inner width
    of each MLP and expert is divided, and embedding and head by rows of the vocabulary. Norms and biases are copied.
    Raises ``InvalidParameter`` where query heads cannot be divided so.
    """
    if ranks < 1:
        raise InvalidParameter(f"ranks={ranks}: at least one is needed")
    if ranks == 1:
        return shape
    layers = {layer: _tensor_layer(shape, layer, ranks) for layer, _ in shape.kinds}
    name = f"1/{ranks} of {shape.name}"
    vocabulary = math.ceil(shape.vocab_size / ranks)
    head_bias = math.ceil(shape.head_bias / ranks)
    split = tuple(layers[layer] for layer in shape.layers)
    return replace(shape, name=name, vocab_size=vocabulary, head_bias=head_bias, layers=split)


def _tensor_layer(shape: ModelShape, layer: Layer, ranks: int) -> Layer:
    attention = _latent_shard if layer.attention.latent is not None else _grouped_shard
    return replace(layer, attention=attention(shape, layer.attention, ranks), mlp=_mlp_shard(layer.mlp, ranks))


def _grouped_shard(shape: ModelShape, attention: AttentionShape, ranks: int) -> AttentionShape:
    heads, kv_heads = attention.num_heads, attention.num_kv_heads
    if ranks > kv_heads and (ranks % kv_heads or heads % ranks):
        raise _not_divisible(shape, attention, ranks)
    own_kv = max(1, math.ceil(kv_heads / ranks))
    own = heads // ranks if ranks > kv_heads else own_kv * (heads // kv_heads)
    share = {"q": own / heads, "k": own_kv / kv_heads, "v": own_kv / kv_heads}
    matrices = tuple(
        replace(m, columns=round(m.columns * own / heads)) if m.name == "o" else _rows(m, share[m.name])
        for m in attention.matrices
    )
    return replace(attention, num_heads=own, num_kv_heads=own_kv, matrices=matrices)


def _latent_shard(shape: ModelShape, attention: AttentionShape, ranks: int) -> AttentionShape:
    if attention.num_heads % ranks:
        raise _not_divisible(shape, attention, ranks)
    divided = {"q": 1 / ranks, "q_b": 1 / ranks, "kv_b": 1 / ranks}
    matrices = tuple(
        replace(m, columns=m.columns // ranks) if m.name == "o" else _rows(m, divided.get(m.name, 1))
        for m in attention.matrices
    )
    heads = attention.num_heads // ranks
    return replace(attention, num_heads=heads, num_kv_heads=heads, matrices=matrices)


def _rows(matrix: Matrix, share: float) -> Matrix:
    return replace(matrix, rows=round(matrix.rows * share))


def _mlp_shard(mlp: MlpShape, ranks: int) -> MlpShape:
    return replace(mlp, matrices=_inner(mlp.matrices, ranks), expert=_inner(mlp.expert, ranks))


def _inner(matrices: tuple[Matrix, ...], ranks: int) -> tuple[Matrix, ...]:
    """Gate and up by rows, down by columns; router and the gate of shared experts are copied."""

    def part(matrix: Matrix) -> Matrix:
        if matrix.name.endswith("down"):
            return replace(matrix, columns=math.ceil(matrix.columns / ranks))
        if matrix.name.endswith(("gate", "up")) and matrix.rows > 1:
            return replace(matrix, rows=math.ceil(matrix.rows / ranks))
        return matrix

    return tuple(part(matrix) for matrix in matrices)


def _not_divisible(shape: ModelShape, attention: AttentionShape, ranks: int) -> InvalidParameter:
    heads, kv_heads = attention.num_heads, attention.num_kv_heads
    return InvalidParameter(
        f"{shape.name} has {heads} query and {kv_heads} K/V heads, which {ranks} ranks cannot share: use at most "
        f"{kv_heads} ranks, or a multiple of {kv_heads} that divides {heads}"
    )


def layer_ranges(num_layers: int, stages: int) -> list[range]:
    """Contiguous layers of each stage, the first stages one longer where they do not divide evenly.

    Raises ``InvalidParameter`` for more stages than layers, or none.
    """
    if not 1 <= stages <= num_layers:
        raise InvalidParameter(f"{num_layers} layers cannot be divided into {stages} stages: use 1 to {num_layers}")
    return runs(num_layers, stages)


def runs(total: int, parts: int) -> list[range]:
    """``total`` things in ``parts`` runs as equal as they can be, longer ones first; too few leave some empty."""
    share, rest = divmod(total, parts)
    starts = [part * share + min(part, rest) for part in range(parts + 1)]
    return [range(*pair) for pair in pairwise(starts)]


def pipeline_shard(shape: ModelShape, stages: int, stage: int) -> ModelShape:
    """The layers of one stage; the first has the embedding too, the last the head (a tied one is then kept twice)."""
    own = layer_ranges(shape.num_layers, stages)
    if not 0 <= stage < stages:
        raise InvalidParameter(f"stage {stage} is none of the {stages} stages, counted from 0")
    if stages == 1:
        return shape
    is_first, is_last = stage == 0, stage == stages - 1
    return replace(
        shape,
        name=f"stage {stage} of {stages} of {shape.name}",
        layers=tuple(shape.layers[i] for i in own[stage]),
        vocab_size=shape.vocab_size if is_first or is_last else 0,
        tied=True,  # one table per stage: the embedding, or the head
        positions=shape.positions if is_first else 0,
        final_norm=shape.final_norm if is_last else 0,
        head_bias=shape.head_bias if is_last else 0,
    )


def expert_shard(shape: ModelShape, ranks: int) -> ModelShape:
    """The fullest rank's share when routed experts are divided and all the rest is copied.

    Raises ``InvalidParameter`` for a model without experts, or fewer experts than ranks.
    """
    experts = [layer.mlp.num_experts for layer, _ in shape.kinds if layer.mlp.num_experts]
    if not experts:
        raise InvalidParameter(f"{shape.name} has no experts to divide: use a mixture of experts")
    if not 1 <= ranks <= min(experts):
        raise InvalidParameter(f"{min(experts)} experts cannot be divided over {ranks} ranks: use 1 to {min(experts)}")
    layers = tuple(
        replace(layer, mlp=replace(layer.mlp, num_experts=math.ceil(layer.mlp.num_experts / ranks)))
        if layer.mlp.num_experts
        else layer
        for layer in shape.layers
    )
    return replace(shape, name=f"1/{ranks} of the experts of {shape.name}", layers=layers)
