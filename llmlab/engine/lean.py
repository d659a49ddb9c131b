"""The decoder layer of the Llama family without detours, for fused projections and packed tokens.

Same arithmetic as the transformers module it stands in for, fewer and larger operations: rotary embedding of queries
and keys together, no transposes to a batch of one, no keyword plumbing. The load-time self-check compares its logits
with the untouched model's. Called without a :class:`~llmlab.engine.step_view.StepView` it is the original layer.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

from llmlab.engine.attention import Variant
from llmlab.engine.step_view import StepView
from llmlab.models.fuse import ProjectionPart

FAMILIES = frozenset({"LlamaDecoderLayer", "MistralDecoderLayer", "Qwen2DecoderLayer"})


class LeanLayer:
    """Takes the place of ``layer.forward``; hooks on the layer itself still fire, those inside it do not."""

    def __init__(self, layer: nn.Module) -> None:
        attention, mlp = layer.self_attn, layer.mlp
        self.original = layer.forward
        self.index = attention.layer_idx
        self.head_dim = attention.head_dim
        self.kv = attention.k_proj.out_features
        self.kv_heads = self.kv // self.head_dim
        self.qkv, self.output = attention.q_proj.shared.linear, attention.o_proj
        self.gate_up, self.down, self.activation = mlp.gate_proj.shared.linear, mlp.down_proj, mlp.act_fn
        self.norms = [
            (norm.weight, norm.variance_epsilon) for norm in (layer.input_layernorm, layer.post_attention_layernorm)
        ]
        # Mistral reads its window from the config, and Qwen 2 decides it layer by layer
        owner = attention.config if type(layer).__name__ == "MistralDecoderLayer" else attention
        window = getattr(owner, "sliding_window", None) or 0
        self.variant = Variant(scale=attention.scaling, window=window)

    def __call__(self, hidden_states, *args, position_embeddings=None, cache=None, **kwargs):
        """``(1, tokens, width)`` in and out."""
        if not isinstance(cache, StepView):
            return self.original(hidden_states, *args, position_embeddings=position_embeddings, cache=cache, **kwargs)
        hidden = hidden_states[0]
        hidden = hidden + self._attention(self._norm(hidden, 0), cache, cache.rotary(position_embeddings))
        gate, up = self.gate_up(self._norm(hidden, 1)).chunk(2, dim=-1)
        return (hidden + self.down(self.activation(gate) * up))[None]

    def _norm(self, hidden: torch.Tensor, which: int) -> torch.Tensor:
        weight, epsilon = self.norms[which]
        return F.rms_norm(hidden, weight.shape, weight, epsilon)

    def _attention(self, x: torch.Tensor, view: StepView, rotary: tuple) -> torch.Tensor:
        qk, values = self.qkv(x).tensor_split((-self.kv,), dim=-1)
        cos, sin = rotary
        qk = qk.unflatten(-1, (-1, self.head_dim))
        qk = torch.addcmul(qk * cos, torch.roll(qk, self.head_dim // 2, -1), sin).transpose(0, 1)
        query, keys = qk[: -self.kv_heads], qk[-self.kv_heads :]
        values = values.unflatten(-1, (self.kv_heads, self.head_dim)).transpose(0, 1)
        view.write(self.index, keys, values)
        return self.output(view.attend(self.index, query, keys, values, self.variant).flatten(1))


def make_lean(model: nn.Module) -> int:
    """Give every fused decoder layer of a known family a :class:`LeanLayer`; returns how many."""
    layers = [layer for layer in model.modules() if type(layer).__name__ in FAMILIES and _is_fused(layer)]
    for layer in layers:
        layer.forward = LeanLayer(layer)
    return len(layers)


def _is_fused(layer: nn.Module) -> bool:
    return isinstance(layer.self_attn.q_proj, ProjectionPart) and isinstance(layer.mlp.gate_proj, ProjectionPart)
