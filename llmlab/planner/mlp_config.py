"""The feed-forward part of a config's layers: dense, or a router and experts."""

from __future__ import annotations

from llmlab.errors import UnknownShape
from llmlab.planner.config_fields import Fields
from llmlab.planner.families import Family
from llmlab.planner.layer_shape import Matrix, MlpShape

_EXPERTS = ("num_local_experts", "num_experts", "n_routed_experts")


def mlp_shape(fields: Fields, family: Family, hidden: int, index: int) -> MlpShape:
    """The MLP of layer ``index``. Raises ``UnknownShape`` for a missing field, named in the message."""
    if is_sparse(fields, family, index):
        return _sparse(fields, family, hidden)
    usual = 4 * hidden if family.learned_positions else None  # GPT-2 configs leave it null
    inner = fields.size("intermediate_size", "n_inner", "ffn_dim", default=usual)
    up = inner * (2 if family.gated else 1)
    return MlpShape(_mlp(hidden, inner, family.gated), (up + hidden) * fields.flag(family.mlp_bias))


def is_sparse(fields: Fields, family: Family, index: int) -> bool:
    """Whether layer ``index`` has experts."""
    if not family.moe and fields.get(*_EXPERTS) is None:
        return False
    if fields.get(*_EXPERTS) == 0:
        return False
    if index < fields.size("first_k_dense_replace", default=0, least=0):
        return False
    if fields.get("mlp_layer_types") is not None:
        return fields.listed("mlp_layer_types", index + 1)[index] == "sparse"
    step = fields.size("decoder_sparse_step", "moe_layer_freq", default=1)
    dense = () if fields.get("mlp_only_layers") is None else fields.listed("mlp_only_layers", 0)
    return index not in dense and (index + 1) % step == 0


def _mlp(hidden: int, inner: int, gated: bool, prefix: str = "") -> tuple[Matrix, ...]:
    gate = (Matrix(f"{prefix}gate", inner, hidden),) if gated else ()
    return (*gate, Matrix(f"{prefix}up", inner, hidden), Matrix(f"{prefix}down", hidden, inner))


def _sparse(fields: Fields, family: Family, hidden: int) -> MlpShape:
    count = fields.size(*_EXPERTS)
    top_k = fields.size("num_experts_per_tok", "experts_per_token", "moe_topk")
    if top_k > count:
        raise UnknownShape(f"{top_k} experts per token cannot be chosen from {count}")
    own_width = () if family.moe in ("mixtral", "gpt_oss") else ("moe_intermediate_size",)
    inner = fields.size(*own_width, "intermediate_size")
    shared, gate = _shared(fields, hidden, inner)
    is_gpt_oss = family.moe == "gpt_oss"  # biases in router and experts
    return MlpShape(
        matrices=(Matrix("router", count, hidden), *shared, *gate),
        vectors=count * is_gpt_oss,
        expert=_mlp(hidden, inner, True),
        expert_vectors=(2 * inner + hidden) * is_gpt_oss,
        num_experts=count,
        top_k=top_k,
    )


def _shared(fields: Fields, hidden: int, inner: int) -> tuple[tuple[Matrix, ...], tuple[Matrix, ...]]:
    """Matrices of shared experts, and the gate that weighs them in Qwen's models."""
    if fields.get("shared_expert_intermediate_size") is not None:
        width = fields.size("shared_expert_intermediate_size", least=0)
        return _mlp(hidden, width, True, "shared_"), (Matrix("shared_gate", 1, hidden),)
    if count := fields.size("n_shared_experts", "num_shared_experts", default=0, least=0):
        return _mlp(hidden, count * inner, True, "shared_"), ()
    return (), ()
