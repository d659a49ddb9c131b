"""The Llama family without detours, for fused projections and packed tokens.

Same arithmetic as the transformers modules it stands in for, fewer and larger operations: rotary embedding of queries
and keys together, no transposes to a batch of one, no keyword plumbing. The load-time self-check compares its logits
with the untouched model's. Called without a :class:`~llmlab.engine.step_view.StepView` a layer is the original one.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

from llmlab.engine.attention import Variant
from llmlab.engine.step_view import StepView
from llmlab.models.fuse import ProjectionPart, with_rows

FEW_TOKENS = 32
"""Above, the doubled width costs more than the saved operations (CPU, measured)."""

FAMILIES = frozenset({"LlamaDecoderLayer", "MistralDecoderLayer", "Qwen2DecoderLayer"})
MODELS = frozenset({"LlamaForCausalLM", "MistralForCausalLM", "Qwen2ForCausalLM"})


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
        """``(1, tokens, width)`` in and out, as the model calls it."""
        if not isinstance(cache, StepView):
            return self.original(hidden_states, *args, position_embeddings=position_embeddings, cache=cache, **kwargs)
        return self.run(hidden_states[0], cache, position_embeddings)[None]

    def run(self, hidden: torch.Tensor, view: StepView, position_embeddings: tuple) -> torch.Tensor:
        """``(tokens, width)`` in and out; what follows the view's tokens is padding."""
        rotary = view.rotary(position_embeddings, self.heads + self.kv_heads, self.kv_heads)
        hidden = hidden + self._attention(self.norm_before_attention(hidden), view, rotary)
        gate, up = self.gate_up(self.norm_before_mlp(hidden)).chunk(2, dim=-1)
        return hidden + self.down(self.activation(gate) * up)

    def _attention(self, x: torch.Tensor, view: StepView, rotary: tuple) -> torch.Tensor:
        cos, sin = rotary
        qkv = self.qkv(x)[: len(cos)].view(cos.shape)
        qkv = torch.addcmul(qkv * cos, qkv.roll(self.head_dim // 2, -1), sin).transpose(0, 1)
        query, keys_values = qkv[: self.heads], qkv[self.heads :]
        view.write(self.index, keys_values)
        keys, values = keys_values[: self.kv_heads], keys_values[self.kv_heads :]
        attended = view.attend(self.index, query, keys, values, self.variant).flatten(1)
        return self.output(with_rows(attended, len(x)))


class LeanNorm:
    """RMSNorm in few operations for few tokens."""

    def __init__(self, norm: nn.Module) -> None:
        self.weight, self.epsilon = norm.weight, norm.variance_epsilon
        self.width = len(norm.weight)
        self.doubled = torch.cat((norm.weight, norm.weight)).detach()

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """``(tokens, width)`` in and out."""
        if len(x) > FEW_TOKENS:
            return F.rms_norm(x, (self.width,), self.weight, self.epsilon)
        return rms_norm_of_few(x, self.doubled, self.epsilon)


def rms_norm_of_few(x: torch.Tensor, doubled: torch.Tensor, epsilon: float) -> torch.Tensor:
    """RMSNorm of ``(..., width)`` in fewer operations; ``doubled`` ``(2 x width,)`` is its weight twice.

    ``x`` beside ``-x`` has mean 0 and the mean square of ``x`` as variance, so the fused layer norm computes it.
    """
    both = torch.cat((x, -x), dim=-1)
    return F.layer_norm(both, (len(doubled),), doubled, None, epsilon)[..., : x.shape[-1]]


class LeanModel:
    """Embedding, lean layers, final norm and head of a causal language model, called without its wrappers.

    ``None`` instead of logits means: somebody put a hook on a layer, so call the model itself. With ``keeps_features``
    the last call's hidden states after the final norm, ``(tokens, width)``, are in ``features``. At least ``least``
    rows are computed, so that no linear layer has to pad them; those after the last token are seen by nobody.
    """

    def __init__(self, model: nn.Module, layers: list[nn.Module]) -> None:
        base = model.get_decoder()
        self.layers = layers
        self.least = getattr(layers[0].self_attn.o_proj, "least", 1)
        self.keeps_features, self.features = False, None
        self.embed, self.rotary = base.embed_tokens.forward, base.rotary_emb
        self.norm, self.head = LeanNorm(base.norm), model.get_output_embeddings().forward

    def __call__(self, input_ids, positions, view: StepView, keep: torch.Tensor) -> torch.Tensor | None:
        """Logits ``(len(keep), vocabulary)`` of packed ids and positions, both ``(1, tokens)``."""
        if any(layer._forward_hooks or layer._forward_pre_hooks for layer in self.layers):
            return None
        tokens, probe = len(input_ids[0]), view.probe
        hidden = with_rows(self.embed(input_ids[0]), self.least)
        if probe is not None:
            hidden = probe.before_layers(hidden)
        position_embeddings = self.rotary(hidden[None], positions)
        for i, layer in enumerate(self.layers):
            before = hidden
            hidden = layer.forward.run(hidden, view, position_embeddings)
            if probe is not None:
                hidden = probe.after_layer(i, before, hidden)
        if self.keeps_features:
            self.features = self.norm(hidden)[:tokens]
        return self.head(self.norm(with_rows(hidden[keep], self.least)))[: len(keep)]


def make_lean(model: nn.Module) -> LeanModel | None:
    """Give every fused decoder layer of a known family a :class:`LeanLayer`.

    When those are all layers of a known model, returns what runs it without the model's own wrappers.
    """
    layers = [layer for layer in model.modules() if type(layer).__name__ in FAMILIES and _is_fused(layer)]
    for layer in layers:
        layer.forward = LeanLayer(layer)
    whole = type(model).__name__ in MODELS and len(layers) == model.config.num_hidden_layers
    return LeanModel(model, layers) if whole else None


def _is_fused(layer: nn.Module) -> bool:
    return isinstance(layer.self_attn.q_proj, ProjectionPart) and isinstance(layer.mlp.gate_proj, ProjectionPart)
