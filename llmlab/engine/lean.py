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

FEW_TOKENS = 32
"""Above, the doubled width costs more than the saved operations (CPU, measured)."""

FAMILIES = frozenset({"LlamaDecoderLayer", "MistralDecoderLayer", "Qwen2DecoderLayer"})


class LeanLayer:
    """Takes the place of ``layer.forward``; hooks on the layer itself still fire, those inside it do not."""

    def __init__(self, layer: nn.Module) -> None:
        attention, mlp = layer.self_attn, layer.mlp
        self.original = layer.forward
        self.index = attention.layer_idx
        self.head_dim = attention.head_dim
        self.kv_heads = attention.k_proj.out_features // self.head_dim
        self.heads = attention.q_proj.out_features // self.head_dim
        self.qkv, self.output = attention.q_proj.shared.linear.forward, attention.o_proj.forward
        self.gate_up, self.down = mlp.gate_proj.shared.linear.forward, mlp.down_proj.forward
        self.activation = mlp.act_fn.forward
        self.norm_before_attention = LeanNorm(layer.input_layernorm)
        self.norm_before_mlp = LeanNorm(layer.post_attention_layernorm)
        # Mistral reads its window from the config, and Qwen 2 decides it layer by layer
        owner = attention.config if type(layer).__name__ == "MistralDecoderLayer" else attention
        window = getattr(owner, "sliding_window", None) or 0
        self.variant = Variant(scale=attention.scaling, window=window)

    def __call__(self, hidden_states, *args, position_embeddings=None, cache=None, **kwargs):
        """``(1, tokens, width)`` in and out."""
        if not isinstance(cache, StepView):
            return self.original(hidden_states, *args, position_embeddings=position_embeddings, cache=cache, **kwargs)
        hidden = hidden_states[0]
        rotary = cache.rotary(position_embeddings, self.heads + self.kv_heads, self.kv_heads)
        hidden = hidden + self._attention(self.norm_before_attention(hidden), cache, rotary)
        gate, up = self.gate_up(self.norm_before_mlp(hidden)).chunk(2, dim=-1)
        return (hidden + self.down(self.activation(gate) * up))[None]

    def _attention(self, x: torch.Tensor, view: StepView, rotary: tuple) -> torch.Tensor:
        cos, sin = rotary
        qkv = self.qkv(x).view(cos.shape)
        qkv = torch.addcmul(qkv * cos, qkv.roll(self.head_dim // 2, -1), sin).transpose(0, 1)
        query, keys_values = qkv[: self.heads], qkv[self.heads :]
        view.write(self.index, keys_values)
        keys, values = keys_values[: self.kv_heads], keys_values[self.kv_heads :]
        return self.output(view.attend(self.index, query, keys, values, self.variant).flatten(1))


class LeanNorm:
    """RMSNorm in few operations for few tokens.

    ``x`` beside ``-x`` has mean 0 and the mean square of ``x`` as variance, so the fused layer norm computes it.
    """

    def __init__(self, norm: nn.Module) -> None:
        self.weight, self.epsilon = norm.weight, norm.variance_epsilon
        self.width = len(norm.weight)
        self.doubled = torch.cat((norm.weight, norm.weight)).detach()

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """``(tokens, width)`` in and out."""
        if len(x) > FEW_TOKENS:
            return F.rms_norm(x, (self.width,), self.weight, self.epsilon)
        both = torch.cat((x, -x), dim=-1)
        return F.layer_norm(both, (2 * self.width,), self.doubled, None, self.epsilon)[:, : self.width]


def make_lean(model: nn.Module) -> int:
    """Give every fused decoder layer of a known family a :class:`LeanLayer`; returns how many."""
    layers = [layer for layer in model.modules() if type(layer).__name__ in FAMILIES and _is_fused(layer)]
    for layer in layers:
        layer.forward = LeanLayer(layer)
    return len(layers)


def _is_fused(layer: nn.Module) -> bool:
    return isinstance(layer.self_attn.q_proj, ProjectionPart) and isinstance(layer.mlp.gate_proj, ProjectionPart)
