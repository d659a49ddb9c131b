"""The attention of a config's layers: grouped, multi-query, multi-head or latent, full or sliding."""

from __future__ import annotations

from llmlab.errors import UnknownShape
from llmlab.planner.config_fields import Fields
from llmlab.planner.families import Family
from llmlab.planner.layer_shape import AttentionShape, Matrix

FULL, SLIDING = "full_attention", "sliding_attention"


def windows(fields: Fields, family: Family) -> list[int | None]:
    """Of each layer, its window or None. Raises ``UnknownShape`` for layers of another type."""
    count = fields.num_layers
    types = fields.get("layer_types")
    if types is None:
        slides = [_slides(fields, family, index) for index in range(count)]
    elif other := [each for each in fields.listed("layer_types", count) if each not in (FULL, SLIDING)]:
        raise UnknownShape(f"layers of type {other[0]!r} are not computed here: {FULL} and {SLIDING} are")
    else:
        slides = [each == SLIDING for each in types]
    window = fields.get("sliding_window")
    if window is None or fields.get("use_sliding_window") is False:
        return [None] * count
    size = fields.size("sliding_window")
    return [size if each else None for each in slides[:count]]


def _slides(fields: Fields, family: Family, index: int) -> bool:
    if family.windows == "every other":
        return index % 2 == 0
    if family.windows == "all but every n-th":
        return bool((index + 1) % fields.size("sliding_window_pattern", "_sliding_window_pattern", default=6))
    if family.windows == "from max_window_layers":
        return index >= fields.size("max_window_layers", default=28, least=0)
    return family.windows == "all"


def attention_shape(fields: Fields, family: Family, hidden: int, window: int | None) -> AttentionShape:
    """Attention of a layer with this window. Raises ``UnknownShape`` for a missing field, named in the message."""
    if family.mla or fields.get("kv_lora_rank") is not None:
        return _latent(fields, hidden, window)
    heads = fields.size("num_attention_heads", "n_head")
    if fields.get("head_dim") is None and family.head_dim is None and hidden % heads:
        raise UnknownShape(f"hidden_size={hidden} is not divisible by {heads} heads and head_dim is missing")
    kv_heads = fields.size("num_key_value_heads", "num_kv_heads", default=heads)
    dim = fields.size("head_dim", default=family.head_dim or hidden // heads)
    if heads % kv_heads:
        raise UnknownShape(f"{heads} query heads cannot share {kv_heads} K/V heads evenly")
    matrices = (
        Matrix("q", heads * dim, hidden),
        Matrix("k", kv_heads * dim, hidden),
        Matrix("v", kv_heads * dim, hidden),
        Matrix("o", hidden, heads * dim),
    )
    vectors = _vectors(fields, family, hidden, heads * dim, kv_heads * dim, dim) + heads * family.sinks
    return AttentionShape(heads, kv_heads, dim, dim, matrices, vectors, window)


def _vectors(fields: Fields, family: Family, hidden: int, queries: int, keys: int, dim: int) -> int:
    biases = fields.flag(family.qkv_bias) * (queries + 2 * keys) + fields.flag(family.out_bias) * hidden
    return biases + {"head": 2 * dim, "full": queries + keys, "": 0}[family.qk_norm]


def _latent(fields: Fields, hidden: int, window: int | None) -> AttentionShape:
    """MLA (DeepSeek-V2, section 2.1): a latent of ``kv_lora_rank`` numbers and one rotary key for all heads."""
    heads, rank = fields.size("num_attention_heads"), fields.size("kv_lora_rank")
    rope, nope = fields.size("qk_rope_head_dim"), fields.size("qk_nope_head_dim")
    value = fields.size("v_head_dim")
    query_rank = None if fields.get("q_lora_rank") is None else fields.size("q_lora_rank")
    bias = fields.flag("attention_bias")
    queries = heads * (nope + rope)
    if query_rank is None:
        query, query_vectors = (Matrix("q", queries, hidden),), 0
    else:
        query = (Matrix("q_a", query_rank, hidden), Matrix("q_b", queries, query_rank))
        query_vectors = query_rank * (1 + bias)
    matrices = (
        *query,
        Matrix("kv_a", rank + rope, hidden),
        Matrix("kv_b", heads * (nope + value), rank),
        Matrix("o", hidden, heads * value),
    )
    vectors = query_vectors + rank + bias * (rank + rope + hidden)
    return AttentionShape(heads, heads, nope + rope, value, matrices, vectors, window, rank + rope, rank)
