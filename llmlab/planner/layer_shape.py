"""What one transformer layer holds: its matrices by size, its heads, its experts."""

from __future__ import annotations

from dataclasses import dataclass, replace

from llmlab.errors import InvalidParameter

LAYOUTS = ("latent", "expanded")


@dataclass(frozen=True, slots=True)
class Matrix:
    """A weight matrix of ``rows`` outputs and ``columns`` inputs."""

    name: str
    rows: int
    columns: int

    @property
    def parameters(self) -> int:
        """How many weights it has."""
        return self.rows * self.columns


def parameters_of(matrices: tuple[Matrix, ...]) -> int:
    """How many weights the matrices have together."""
    return sum(matrix.parameters for matrix in matrices)


@dataclass(frozen=True, slots=True)
class AttentionShape:
    """Attention of one layer: heads of ``key_dim`` and ``value_dim`` numbers, projections, and what is cached.

    ``vectors`` counts biases, norms of queries and keys, and sinks. ``window`` is how many positions a token sees,
    itself included; None for all. ``latent`` is how many numbers multi-head latent attention (MLA) caches per token in
    place of keys and values (``kv_lora_rank + qk_rope_head_dim``), ``latent_rank`` those of them that the values are
    rebuilt from; None for other attention.
    """

    num_heads: int
    num_kv_heads: int
    key_dim: int
    value_dim: int
    matrices: tuple[Matrix, ...]
    vectors: int = 0
    window: int | None = None
    latent: int | None = None
    latent_rank: int = 0

    @property
    def parameters(self) -> int:
        """Weights, biases and norms."""
        return parameters_of(self.matrices) + self.vectors

    @property
    def kind(self) -> str:
        """``MHA``, ``GQA``, ``MQA`` or ``MLA``."""
        if self.latent is not None:
            return "MLA"
        if self.num_kv_heads == self.num_heads:
            return "MHA"
        return "MQA" if self.num_kv_heads == 1 else "GQA"

    def cached_numbers(self, layout: str = "latent") -> int:
        """Numbers cached per token. ``layout`` matters to MLA only: ``latent``, or keys and values ``expanded``.

        Raises ``InvalidParameter`` for another layout.
        """
        if layout not in LAYOUTS:
            raise InvalidParameter(f"layout={layout!r} is none: use {' or '.join(LAYOUTS)}")
        if self.latent is not None and layout == "latent":
            return self.latent
        return self.num_kv_heads * (self.key_dim + self.value_dim)

    def cached_tokens(self, num_tokens: int) -> int:
        """Of ``num_tokens`` positions, those that are still needed: all, or a window of them."""
        return num_tokens if self.window is None else min(num_tokens, self.window)

    def read_tokens(self, num_tokens: int, num_cached: int) -> int:
        """Positions whose K/V ``num_tokens`` new tokens read between them, after ``num_cached`` earlier ones."""
        total = num_cached + num_tokens
        return total if self.window is None else min(total, self.window - 1 + num_tokens)

    def pairs(self, num_tokens: int, num_cached: int) -> int:
        """Query-key pairs that ``num_tokens`` new tokens attend to, after ``num_cached`` earlier ones (causal)."""
        total = num_cached + num_tokens
        if self.window is None or total <= self.window:
            return num_tokens * num_cached + num_tokens * (num_tokens + 1) // 2
        growing = max(0, self.window - num_cached)  # new tokens that still see everything before them
        return growing * num_cached + growing * (growing + 1) // 2 + (num_tokens - growing) * self.window

    def flops_per_pair(self, *, absorbed: bool = False) -> int:
        """Two operations per number of key and value, in every query head. ``absorbed``: MLA on its latent itself."""
        if absorbed and self.latent is not None:
            return 2 * self.num_heads * (self.latent + self.latent_rank)
        return 2 * self.num_heads * (self.key_dim + self.value_dim)

    def as_mha(self) -> AttentionShape:
        """The same heads, each with keys and values of its own: what is cached then, not what it would weigh."""
        return replace(self, num_kv_heads=self.num_heads, latent=None)


@dataclass(frozen=True, slots=True)
class MlpShape:
    """The feed-forward part of one layer.

    ``matrices`` serve every token: a dense MLP, or router and shared experts. ``expert`` holds the matrices of one of
    ``num_experts`` routed experts, of which a token uses ``top_k``. Vectors are biases and small norms.
    """

    matrices: tuple[Matrix, ...]
    vectors: int = 0
    expert: tuple[Matrix, ...] = ()
    expert_vectors: int = 0
    num_experts: int = 0
    top_k: int = 0

    @property
    def expert_parameters(self) -> int:
        """Of one routed expert."""
        return parameters_of(self.expert) + self.expert_vectors

    @property
    def parameters(self) -> int:
        """Of all of it, every routed expert counted."""
        return self.always_parameters + self.num_experts * self.expert_parameters

    @property
    def always_parameters(self) -> int:
        """What every token uses: the dense MLP, or router and shared experts."""
        return parameters_of(self.matrices) + self.vectors

    @property
    def active_parameters(self) -> int:
        """What one token uses."""
        return self.always_parameters + self.top_k * self.expert_parameters

    def experts_touched(self, num_tokens: int) -> float:
        """Expected number of routed experts that ``num_tokens`` tokens use, choosing evenly and independently.

        ``E (1 - (1 - k/E)^B)``; 0 for a dense layer.
        """
        if not self.num_experts:
            return 0.0
        return self.num_experts * (1 - (1 - self.top_k / self.num_experts) ** num_tokens)


@dataclass(frozen=True, slots=True)
class Layer:
    """One transformer layer; ``norms`` counts the parameters of its layer norms."""

    attention: AttentionShape
    mlp: MlpShape
    norms: int

    @property
    def parameters(self) -> int:
        """All of the layer's."""
        return self.attention.parameters + self.mlp.parameters + self.norms

    @property
    def active_parameters(self) -> int:
        """What one token uses."""
        return self.attention.parameters + self.mlp.active_parameters + self.norms
