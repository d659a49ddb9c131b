"""The one place that knows how transformers calls a cache and an attention function.

Every attention module of transformers 5.24 first calls ``cache.update(k, v, layer_idx, kwargs=kwargs)`` and then the
attention function registered under ``config._attn_implementation`` with the same ``kwargs``. We pass a
:class:`~llmlab.engine.step_view.StepView` as the cache and register our own function. A registered name without a mask
function means that no mask is built, so causality is ours to keep.
"""

from __future__ import annotations

import inspect

import torch
from transformers import AttentionInterface, PreTrainedModel

from llmlab.engine.attention import Variant
from llmlab.engine.step_view import KWARG, StepView

ATTENTION_NAME = "llmlab_paged"


def paged_attention(module, query, key, value, attention_mask, scaling=None, dropout=0.0, **kwargs):
    """The registered attention function: ``(1, heads, tokens, dim)`` in, ``(1, tokens, heads, dim)`` out."""
    view: StepView = kwargs[KWARG]
    variant = Variant(
        scale=query.shape[-1] ** -0.5 if scaling is None else scaling,
        window=kwargs.get("sliding_window") or 0,
        softcap=kwargs.get("softcap") or 0.0,
        sinks=kwargs.get("s_aux"),
    )
    return view.attend(module.layer_idx, query[0], key[0], value[0], variant)[None], None


def install(model: PreTrainedModel) -> None:
    """Make the model's attention layers call :func:`paged_attention`."""
    AttentionInterface.register(ATTENTION_NAME, paged_attention)
    model.set_attn_implementation(ATTENTION_NAME)


def cache_argument(model: PreTrainedModel) -> str:
    """The name under which this model takes its cache: ``cache``, or ``past_key_values`` in older modules."""
    parameters = inspect.signature(model.forward).parameters
    return "cache" if "cache" in parameters else "past_key_values"


def depends_on_neighbours(model: PreTrainedModel) -> bool:
    """Whether rotary frequencies depend on the longest position of the packed row (dynamic and longrope scaling).

    Such requests must run one by one, or a long neighbour would change a short request's logits.
    """
    rope = getattr(model.config.get_text_config(), "rope_parameters", None) or {}
    kinds = [rope.get("rope_type")] + [part.get("rope_type") for part in rope.values() if isinstance(part, dict)]
    return any(kind in ("dynamic", "longrope") for kind in kinds)


def longest_context(model: PreTrainedModel) -> int | None:
    """Where longrope switches frequencies: beyond, keys that are cached already would be of the wrong kind."""
    rope = getattr(model.config.get_text_config(), "rope_parameters", None) or {}
    parts = [rope, *(part for part in rope.values() if isinstance(part, dict))]
    limits = [p["original_max_position_embeddings"] for p in parts if p.get("rope_type") == "longrope"]
    return min(limits, default=None)


def call(
    model: PreTrainedModel,
    argument: str,
    input_ids: torch.Tensor,
    positions: torch.Tensor,
    cache,
    keep: torch.Tensor,
) -> torch.Tensor:
    """Logits ``(len(keep), vocabulary)`` of packed ``input_ids`` and ``positions`` (both ``(1, tokens)``)."""
    output = model(
        input_ids=input_ids,
        position_ids=positions,
        use_cache=False,
        logits_to_keep=keep,
        **{argument: cache},
    )
    return output.logits[0]
