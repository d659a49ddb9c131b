"""A draft head: one decoder layer that foresees the target's next feature from its last one.

At index ``i`` the head reads the target's feature of position ``i`` (the state after the final norm, which the
target's own head turns into logits) and the embedding of token ``i + 1``, and yields an estimate of the feature of
position ``i + 1``. The target's output rows turn that into a distribution over a reduced vocabulary, and the estimate
is the next input. Embedding and output rows are the target's: only the layer and its norms are the head's own.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from functools import cached_property

import torch
import torch.nn.functional as F
from torch import nn

from llmlab.engine.lean import FEW_TOKENS, rms_norm_of_few


@dataclass(frozen=True, slots=True)
class HeadConfig:
    """Shape of a head. ``width`` is the target's; ``window`` the number of earlier positions it attends to."""

    width: int
    heads: int
    kv_heads: int
    head_dim: int
    mlp_width: int
    rope_theta: float = 10_000.0
    eps: float = 1e-5
    window: int = 256

    @classmethod
    def for_target(cls, config) -> HeadConfig:
        """The shape of one layer of a target with this transformers configuration."""
        config = config.get_text_config()
        heads = config.num_attention_heads
        return cls(
            width=config.hidden_size,
            heads=heads,
            kv_heads=getattr(config, "num_key_value_heads", None) or heads,
            head_dim=getattr(config, "head_dim", None) or config.hidden_size // heads,
            mlp_width=getattr(config, "intermediate_size", None) or 4 * config.hidden_size,
        )

    def to_dict(self) -> dict[str, int | float]:
        """Plain numbers by field name."""
        return asdict(self)


@dataclass(slots=True)
class Projected:
    """Of each index, before attention: ``residual (rows, n, width)``, ``query (rows, heads, n, head_dim)``, and
    ``key`` and ``value (rows, kv_heads, n, head_dim)``; rotary embedding is applied."""

    residual: torch.Tensor
    query: torch.Tensor
    key: torch.Tensor
    value: torch.Tensor


class DraftHead(nn.Module):
    """The layer. ``rows`` and ``n`` are free dimensions; linear layers have no bias."""

    def __init__(self, config: HeadConfig) -> None:
        super().__init__()
        self.config = config
        width, inner = config.width, config.heads * config.head_dim
        self.norm_feature, self.norm_embedding = _norm(config), _norm(config)
        self.fuse = nn.Linear(2 * width, width, bias=False)
        self.norm_attention, self.norm_mlp, self.norm_out = _norm(config), _norm(config), _norm(config)
        self.qkv = nn.Linear(width, inner + 2 * config.kv_heads * config.head_dim, bias=False)
        self.output = nn.Linear(inner, width, bias=False)
        self.gate_up = nn.Linear(width, 2 * config.mlp_width, bias=False)
        self.down = nn.Linear(config.mlp_width, width, bias=False)
        # at first the layer adds nothing to what it is given, and its estimates are small: both train faster
        nn.init.zeros_(self.output.weight)
        nn.init.zeros_(self.down.weight)
        nn.init.constant_(self.norm_out.weight, 0.5)

    def project(self, features: torch.Tensor, embeddings: torch.Tensor, positions: torch.Tensor) -> Projected:
        """``features`` and ``embeddings`` ``(rows, n, width)``, ``positions`` ``(rows, n)`` or ``(n,)``."""
        config = self.config
        fused = self.fuse(torch.cat((self.norm_embedding(embeddings), self.norm_feature(features)), dim=-1))
        qkv = self.qkv(self.norm_attention(fused)).unflatten(-1, (-1, config.head_dim)).transpose(-2, -3)
        query, key, value = qkv.split((config.heads, config.kv_heads, config.kv_heads), dim=-3)
        cos, sin = _rotary(positions, config, qkv.dtype)
        return Projected(fused, _rotate(query, cos, sin), _rotate(key, cos, sin), value)

    def finish(self, projected: Projected, attended: torch.Tensor) -> torch.Tensor:
        """The estimated features ``(rows, n, width)`` from the attention's result, shaped as the query."""
        hidden = projected.residual + self.output(attended.transpose(-2, -3).flatten(-2))
        gate, up = self.gate_up(self.norm_mlp(hidden)).chunk(2, dim=-1)
        return self.norm_out(hidden + self.down(F.silu(gate) * up))


def attend(
    query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, mask: torch.Tensor | None = None
) -> torch.Tensor:
    """Attention of ``query`` over ``keys`` where the boolean ``mask`` ``(n, number of keys)`` is true."""
    return F.scaled_dot_product_attention(query, keys, values, attn_mask=mask, enable_gqa=True)


class Norm(nn.RMSNorm):
    """RMSNorm in the precision of its input."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.training or x.shape[-2] > FEW_TOKENS:
            return F.rms_norm(x, self.normalized_shape, self.weight.to(x.dtype), self.eps)
        return rms_norm_of_few(x, self._doubled, self.eps)

    @cached_property
    def _doubled(self) -> torch.Tensor:
        return torch.cat((self.weight, self.weight)).detach()


def _norm(config: HeadConfig) -> Norm:
    return Norm(config.width, eps=config.eps)


def _rotary(positions: torch.Tensor, config: HeadConfig, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    half = torch.arange(0, config.head_dim, 2, device=positions.device, dtype=torch.float32) / config.head_dim
    angles = (positions[..., None].float() * config.rope_theta**-half).unsqueeze(-3)
    return angles.cos().to(dtype), angles.sin().to(dtype)


def _rotate(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    first, second = x.chunk(2, dim=-1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)
