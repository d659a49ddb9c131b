"""Where the parts of a transformers model are: layers, final norm, head, embedding, routers."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property

import torch
from torch import nn

from llmlab.errors import InvalidParameter

NORM_NAMES = ("norm", "ln_f", "final_layernorm", "final_layer_norm", "final_norm", "ln_out")


class Anatomy:
    """The parts of a causal language model that probes look at; made once per model.

    ``layer_names[i]`` is the Hugging Face module name of decoder layer ``i``. Modules are called through ``forward``,
    so that hooks somebody put on them do not fire for a look.
    """

    def __init__(self, model: nn.Module) -> None:
        config = model.config.get_text_config()
        self.model, self.num_heads, self.width = model, config.num_attention_heads, config.hidden_size
        name, self.layers = _layers(model, config.num_hidden_layers)
        self.layer_names = tuple(f"{name}.{i}" for i in range(len(self.layers)))
        self.norm = _final_norm(model.get_submodule(name.rpartition(".")[0]))
        self.embedding, self.head = model.get_input_embeddings(), model.get_output_embeddings()
        self.routers = {i: router for i, layer in enumerate(self.layers) if (router := _router(layer)) is not None}
        self._scale_logits = _logit_scaling(config)

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """What the model would say after ``hidden`` ``(n, width)``: final norm, head, the model's own scaling.

        ``(n, vocabulary)`` in float32.
        """
        if self.norm is not None:
            hidden = self.norm.forward(hidden.to(_device(self.norm, hidden)))
        return self._scale_logits(self.head.forward(hidden.to(_device(self.head, hidden))).float())

    @cached_property
    def embedding_lengths(self) -> torch.Tensor:
        """Euclidean lengths ``(vocabulary,)`` of the embedding rows."""
        return self.embedding.weight.float().norm(dim=-1).clamp(min=1e-12)

    def embed(self, ids: torch.Tensor) -> torch.Tensor:
        """Embedding rows ``(n, width)`` of token ids ``(n,)``, as the model feeds them in."""
        return self.embedding.forward(ids.to(self.embedding.weight.device))


def _device(module: nn.Module, hidden: torch.Tensor) -> torch.device:
    return next((p.device for p in module.parameters()), hidden.device)


def _layers(model: nn.Module, count: int) -> tuple[str, nn.ModuleList]:
    for name, module in model.named_modules():
        if isinstance(module, nn.ModuleList) and len(module) == count and _attends(module[0]):
            return name, module
    raise InvalidParameter(f"the decoder layers of {type(model).__name__} were not found: it cannot be looked into")


def _attends(layer: nn.Module) -> bool:
    return any(hasattr(module, "layer_idx") for module in layer.modules())


def _final_norm(decoder: nn.Module) -> nn.Module | None:
    return next((module for name in NORM_NAMES if (module := getattr(decoder, name, None)) is not None), None)


def _router(layer: nn.Module) -> nn.Module | None:
    return next((module for module in layer.modules() if type(module).__name__.endswith("Router")), None)


def _logit_scaling(config) -> Callable[[torch.Tensor], torch.Tensor]:
    cap = getattr(config, "final_logit_softcapping", None)
    divisor, factor = getattr(config, "logits_scaling", None) or 1.0, getattr(config, "logit_scale", None) or 1.0

    def scaled(logits: torch.Tensor) -> torch.Tensor:
        logits = logits * (factor / divisor)
        return torch.tanh(logits / cap) * cap if cap else logits

    return scaled
