"""Memory that a step's intermediate results take at most."""

from __future__ import annotations

from llmlab.planner.layer_shape import Layer
from llmlab.planner.model_shape import ModelShape


def activation_bytes(shape: ModelShape, num_tokens: int, num_logits: int = 1, number_bytes: int = 2) -> int:
    """Bytes of one step's activations: an upper estimate for an engine that frees a layer's results with the layer.

    Per token: the residual stream and its norm, and the larger of attention's results (queries, keys, values, output)
    and the MLP's (gate, up, their product; of a mixture for ``top_k`` experts and the shared ones). Per position that
    goes through the head: 32-bit logits. Attention scores are not counted: kernels work on them in tiles.
    """
    widest = max(max(_attention_numbers(layer), _mlp_numbers(layer)) for layer, _ in shape.kinds)
    return num_tokens * (2 * shape.hidden_size + widest) * number_bytes + num_logits * shape.vocab_size * 4


def _attention_numbers(layer: Layer) -> int:
    attention = layer.attention
    queries = attention.num_heads * (attention.key_dim + attention.value_dim)
    return queries + attention.num_kv_heads * (attention.key_dim + attention.value_dim)


def _mlp_numbers(layer: Layer) -> int:
    mlp = layer.mlp
    always = sum(matrix.rows for matrix in mlp.matrices if matrix.name.removeprefix("shared_") in ("gate", "up"))
    product = max((matrix.columns for matrix in mlp.matrices if matrix.name.endswith("down")), default=0)
    expert = sum(matrix.rows for matrix in mlp.expert if matrix.name != "down")
    expert += max((matrix.columns for matrix in mlp.expert if matrix.name == "down"), default=0)
    return always + product + mlp.top_k * expert
