"""How model families differ where their configs do not say: biases, norms, gates, windows, ties.

Facts of transformers' implementations, each checked against a model built on the meta device.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType


@dataclass(frozen=True, slots=True)
class Family:
    """One ``model_type``.

    ``qkv_bias``, ``out_bias``, ``mlp_bias``: True, False, or the config field that says so. ``qk_norm``: ``head`` (one
    norm of head_dim for queries, one for keys), ``full`` (over all heads at once) or empty. ``windows``: which layers
    slide when the config has no ``layer_types``: ``all``, ``from max_window_layers``, ``every other``, ``all but every
    n-th`` or ``none``. ``tied`` and ``head_dim`` are what a config without the field means. ``moe`` names the kind of
    its sparse layers: experts of ``mixtral`` and ``gpt_oss`` are as wide as ``intermediate_size`` says.
    """

    qkv_bias: bool | str = "attention_bias"
    out_bias: bool | str = "attention_bias"
    mlp_bias: bool | str = "mlp_bias"
    gated: bool = True
    norms: int = 2
    norm_bias: bool = False
    qk_norm: str = ""
    sinks: bool = False
    head_bias: bool = False
    learned_positions: bool = False
    tied: bool = False
    head_dim: int | None = None
    windows: str = "none"
    moe: str = ""
    mla: bool = False


LLAMA = Family()
_PLAIN = {"qkv_bias": False, "out_bias": False, "mlp_bias": False}
_BIASED = {"qkv_bias": True, "out_bias": True, "mlp_bias": True}

FAMILIES: Mapping[str, Family] = MappingProxyType(
    {
        "llama": LLAMA,
        "granite": LLAMA,
        "smollm3": LLAMA,
        "mistral": Family(**_PLAIN, windows="all"),
        "phi3": Family(**_PLAIN, windows="all"),
        "qwen2": Family(qkv_bias=True, out_bias=False, mlp_bias=False, windows="from max_window_layers"),
        "qwen3": Family(mlp_bias=False, qk_norm="head", head_dim=128, windows="from max_window_layers"),
        "gemma": Family(mlp_bias=False, tied=True, head_dim=256),
        "gemma2": Family(mlp_bias=False, norms=4, tied=True, head_dim=256, windows="every other"),
        "gemma3_text": Family(
            mlp_bias=False, norms=4, qk_norm="head", tied=True, head_dim=256, windows="all but every n-th"
        ),
        "olmo2": Family(mlp_bias=False, qk_norm="full"),
        "cohere": Family(mlp_bias=False, norms=1, tied=True),
        "gpt2": Family(**_BIASED, gated=False, norm_bias=True, learned_positions=True, tied=True),
        "gpt_neox": Family(mlp_bias=True, gated=False, norm_bias=True),
        "phi": Family(**_BIASED, gated=False, norms=1, norm_bias=True, head_bias=True),
        "starcoder2": Family(
            qkv_bias="use_bias", out_bias="use_bias", mlp_bias="use_bias", gated=False, norm_bias=True, tied=True,
            windows="all",
        ),
        "mixtral": Family(**_PLAIN, windows="all", moe="mixtral"),
        "qwen2_moe": Family(
            qkv_bias="qkv_bias", out_bias=False, mlp_bias=False, windows="from max_window_layers", moe="qwen"
        ),
        "qwen3_moe": Family(mlp_bias=False, qk_norm="head", windows="from max_window_layers", moe="qwen"),
        "olmoe": Family(mlp_bias=False, qk_norm="full", moe="mixtral"),
        "granitemoe": Family(mlp_bias=False, moe="mixtral"),
        "gpt_oss": Family(mlp_bias=True, sinks=True, head_dim=64, windows="every other", moe="gpt_oss"),
        "deepseek_v2": Family(moe="deepseek", mla=True),
        "deepseek_v3": Family(mlp_bias=False, moe="deepseek", mla=True),
    }
)  # fmt: skip
ALIASES: Mapping[str, str] = MappingProxyType({"gemma3": "gemma3_text"})  # a config of text and images: its text part
