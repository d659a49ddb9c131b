"""From a Hugging Face config to a :class:`~llmlab.planner.model_shape.ModelShape`."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from llmlab.errors import UnknownModel, UnknownShape
from llmlab.planner.attention_config import attention_shape, windows
from llmlab.planner.config_fields import Fields, read_config
from llmlab.planner.families import ALIASES, FAMILIES, LLAMA, Family
from llmlab.planner.known import find_known, known_models
from llmlab.planner.layer_shape import Layer
from llmlab.planner.mlp_config import mlp_shape
from llmlab.planner.model_shape import ModelShape

# state that does not grow by a key and a value per token, by what gives it away in a config
_OTHER_STATE = ("ssm_cfg", "state_size", "mamba_d_state", "linear_num_key_heads", "conv_L_cache", "lru_width", "wkv")
_OTHER_FAMILIES = ("mamba", "rwkv", "recurrent_gemma", "jamba", "bamba", "lfm2", "zamba", "falcon_h1", "xlstm")


def shape_of(source: Any, name: str | None = None) -> ModelShape:
    """See :meth:`ModelShape.of <llmlab.planner.model_shape.ModelShape.of>`."""
    if isinstance(source, ModelShape):
        return source
    if isinstance(source, Mapping):
        return _from_fields(Fields(source), name)
    if hasattr(source, "to_dict"):
        return _from_fields(Fields(source.to_dict()), name)
    if isinstance(source, str) and (known := find_known(source)) is not None:
        return _from_fields(Fields(known.config), name or known.name)
    return _from_folder(source, name)


def _from_folder(source: str | os.PathLike, name: str | None) -> ModelShape:
    folder = Path(source)
    if not folder.is_dir():
        raise UnknownModel(
            f"{str(source)!r} is neither a folder with a config.json nor a model whose sizes are known here: "
            f"{', '.join(known_models())}"
        )
    return _from_fields(Fields(read_config(folder)), name or folder.name)


def _from_fields(fields: Fields, name: str | None) -> ModelShape:
    _refuse_other_state(fields)
    kind = ALIASES.get(fields.family, fields.family)
    family = FAMILIES.get(kind, LLAMA)
    hidden, vocabulary = fields.size("hidden_size", "n_embd"), fields.size("vocab_size")
    limit = fields.get("max_position_embeddings", "n_positions")
    return ModelShape(
        name=name or fields.family or "model",
        family=fields.family,
        hidden_size=hidden,
        vocab_size=vocabulary,
        layers=_layers(fields, family, hidden),
        tied=bool(fields.get("tie_word_embeddings", default=family.tied)),
        final_norm=hidden * (2 if family.norm_bias else 1),
        positions=hidden * fields.size("n_positions") if family.learned_positions else 0,
        head_bias=vocabulary if family.head_bias else 0,
        max_tokens=limit if type(limit) is int else None,
        is_exact=kind in FAMILIES,
    )


def _layers(fields: Fields, family: Family, hidden: int) -> tuple[Layer, ...]:
    norms = family.norms * hidden * (2 if family.norm_bias else 1)
    attention = {window: attention_shape(fields, family, hidden, window) for window in set(windows(fields, family))}
    return tuple(
        Layer(attention[window], mlp_shape(fields, family, hidden, index), norms)
        for index, window in enumerate(windows(fields, family))
    )


def _refuse_other_state(fields: Fields) -> None:
    telling = [name for name in _OTHER_STATE if fields.get(name) is not None]
    if telling or fields.family.startswith(_OTHER_FAMILIES):
        why = f" (it has the field {telling[0]!r})" if telling else ""
        raise UnknownShape(
            f"{fields.family!r} keeps recurrent or convolutional state{why}: what is cached is not a key and a value "
            f"per token, and these sizes are not computed here"
        )
    if fields.get("is_encoder_decoder"):
        raise UnknownShape(f"{fields.family!r} is an encoder-decoder model: only decoder-only models are computed here")
