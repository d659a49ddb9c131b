"""A language model by its sizes: parameters and bytes of K/V, from its config alone. Nothing is loaded."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from llmlab.errors import InvalidParameter
from llmlab.planner.formats import number_bytes
from llmlab.planner.layer_shape import Layer


@dataclass(frozen=True)
class ModelShape:
    """Sizes of a decoder-only model. Make one with :meth:`of`.

    ``head_rows`` x ``hidden_size`` is the output matrix; a ``tied`` one is the embedding itself and counted once.
    ``positions`` counts the parameters of learned position embeddings, ``final_norm`` those of the last norm,
    ``head_bias`` those of the output's bias. ``is_exact`` is False where the family is not known and its parameters
    are counted as Llama's are.
    """

    name: str
    family: str
    hidden_size: int
    vocab_size: int
    layers: tuple[Layer, ...]
    tied: bool
    final_norm: int
    positions: int = 0
    head_bias: int = 0
    max_tokens: int | None = None
    is_exact: bool = True

    @classmethod
    def of(cls, source: Any, name: str | None = None) -> ModelShape:
        """The shape of a known model's name, a folder with ``config.json``, a config as dict or of transformers.

        Raises ``UnknownModel`` for a name that is neither known nor a folder, ``UnknownShape`` for a config that lacks
        a needed field (the message names it) or has state other than keys and values.
        """
        from llmlab.planner.from_config import shape_of

        return shape_of(source, name)

    @property
    def num_layers(self) -> int:
        """How many transformer layers there are."""
        return len(self.layers)

    @cached_property
    def kinds(self) -> tuple[tuple[Layer, int], ...]:
        """The distinct layers, each with how often it occurs."""
        return tuple(Counter(self.layers).items())

    @cached_property
    def num_parameters(self) -> int:
        """All parameters; a tied matrix counts once."""
        return sum(self.parameters_by_part.values())

    @cached_property
    def parameters_by_part(self) -> dict[str, int]:
        """Parameters of ``embedding`` (positions too), ``attention``, ``mlp`` (dense, router, shared experts),
        ``experts`` (routed), ``norms`` and ``head`` (0 where it is tied)."""
        return {
            "embedding": self.vocab_size * self.hidden_size + self.positions,
            "attention": sum(n * layer.attention.parameters for layer, n in self.kinds),
            "mlp": sum(n * layer.mlp.always_parameters for layer, n in self.kinds),
            "experts": sum(n * layer.mlp.num_experts * layer.mlp.expert_parameters for layer, n in self.kinds),
            "norms": sum(n * layer.norms for layer, n in self.kinds) + self.final_norm,
            "head": (0 if self.tied else self.vocab_size * self.hidden_size) + self.head_bias,
        }

    @cached_property
    def active_parameters(self) -> int:
        """Parameters that take part in one token: all but the routed experts it is not sent to."""
        idle = sum(n * (layer.parameters - layer.active_parameters) for layer, n in self.kinds)
        return self.num_parameters - idle

    @cached_property
    def is_mixture(self) -> bool:
        """Whether any layer has routed experts."""
        return any(layer.mlp.num_experts for layer, _ in self.kinds)

    @cached_property
    def attention_kind(self) -> str:
        """``MHA``, ``GQA``, ``MQA`` or ``MLA``, with ``sliding`` where layers have a window."""
        kinds = dict.fromkeys(layer.attention.kind for layer, _ in self.kinds)
        sliding = any(layer.attention.window is not None for layer, _ in self.kinds)
        return " and ".join(kinds) + (", sliding" if sliding else "")

    def kv_bytes_per_token(self, dtype: str = "bf16", layout: str = "latent") -> int:
        """Bytes that one more token adds to the cache while every window still has room.

        ``2 x layers x kv_heads x head_dim x bytes`` for ordinary attention (articles A, section 5.5, and B). For MLA
        ``layout`` chooses the ``latent`` (what serving engines and transformers 5.24 keep) or keys and values
        ``expanded`` (what a cache of ordinary K/V would keep).
        """
        numbers = sum(n * layer.attention.cached_numbers(layout) for layer, n in self.kinds)
        return round(numbers * number_bytes(dtype))

    def kv_bytes(self, num_tokens: int, dtype: str = "bf16", layout: str = "latent", *, windows: bool = True) -> int:
        """Bytes of one request's cache at ``num_tokens`` positions.

        ``windows`` False counts every position in sliding layers too, as llmlab's own pool keeps them. Raises
        ``InvalidParameter`` for a negative number of tokens.
        """
        if num_tokens < 0:
            raise InvalidParameter(f"num_tokens={num_tokens} is negative")
        kept = [
            n * (layer.attention.cached_tokens(num_tokens) if windows else num_tokens)
            * layer.attention.cached_numbers(layout)
            for layer, n in self.kinds
        ]  # fmt: skip
        return round(sum(kept) * number_bytes(dtype))

    def as_mha(self) -> ModelShape:
        """The same skeleton with keys and values of its own for every query head; for what its cache would take."""
        layers = tuple(replace(layer, attention=layer.attention.as_mha()) for layer in self.layers)
        return replace(self, name=f"{self.name} with MHA", layers=layers)

    def facts(self) -> dict[str, Any]:
        """The sizes as plain values, for a table or JSON."""
        first = self.layers[0]
        mixture = next((layer.mlp for layer in self.layers if layer.mlp.num_experts), None)
        facts = {
            "model": self.name,
            "family": self.family,
            "layers": self.num_layers,
            "hidden size": self.hidden_size,
            "attention": self.attention_kind,
            "query heads": first.attention.num_heads,
            "kv heads": first.attention.num_kv_heads,
            "parameters": self.num_parameters,
            "active parameters": self.active_parameters,
        }
        if mixture is not None:
            facts |= {"experts": mixture.num_experts, "experts per token": mixture.top_k}
        return facts
