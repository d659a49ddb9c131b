"""What to record inside the model for one request."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from types import MappingProxyType

from llmlab.errors import InvalidParameter
from llmlab.probes.filters import Filter

TOP, NEIGHBOURS = 5, 5
MAX_BYTES = 64_000_000

ALIASES = MappingProxyType(
    {
        "attention": ("{hf}", "{hf}.self_attn", "blocks.{i}.attn.hook_pattern"),
        "scores": ("{hf}", "{hf}.self_attn", "blocks.{i}.attn.hook_attn_scores"),
        "qkv": ("{hf}", "{hf}.self_attn", "blocks.{i}.attn.hook_q", "blocks.{i}.attn.hook_k", "blocks.{i}.attn.hook_v"),
        "hidden": ("{hf}", "blocks.{i}.hook_resid_post"),
        "lens": ("{hf}", "blocks.{i}.hook_resid_post"),
        "router": ("{hf}", "{hf}.mlp", "blocks.{i}.hook_mlp_out"),
        "layers": ("{hf}", "blocks.{i}"),
    }
)
"""Names of layer ``i`` per kind: the Hugging Face module (``{hf}`` is ``model.layers.3``, say), then the alias."""
PER_LAYER = ("attention", "scores", "qkv", "hidden", "lens", "router")
NAMED_POSITIONS = ("prompt", "output")


@dataclass(frozen=True, slots=True)
class Capture:
    """What to record inside the model for one request; other requests of the batch pay nothing.

    Each of ``attention`` (weights after softmax, one map per query head), ``scores`` (before softmax), ``qkv``
    (queries, keys and values after rotary embedding; K/V heads are never repeated), ``hidden`` (after each layer),
    ``lens`` (what final norm and head would say after each layer) and ``router`` (experts of a mixture) is ``False``,
    ``True`` (the layers in ``layers``), or a filter of layers of its own. ``embed`` records embedding rows and the
    ``neighbours`` nearest tokens. ``distribution`` (a number of candidates, 0: off) records how every output token was
    chosen: what each stage of the sampler made of the likeliest tokens' probabilities, and the draw. It looks at the
    sampler only: with nothing else asked for, speculation goes on and a model without layers will do.

    A filter is an int (negative: from the end), a list, a slice, a name or pattern (``"model.layers.3"``,
    ``"blocks.*.attn.hook_pattern"``), or a function of the number. ``heads`` are query heads. ``positions`` of the
    sequence are those of queries and hidden states: negative numbers count from the end of the prompt (-1 chooses the
    first output token), ``"prompt"`` and ``"output"`` are names; the last token chosen is never computed.

    ``targets``: tokens (ids or text) whose rank and log-probability the lens follows. ``top``: tokens the lens keeps
    per layer and position. ``dtype`` of what is kept: ``"float32"`` or ``"float16"``. ``max_bytes``: a capture that
    could take more is refused with the number (``CaptureTooLarge``); when the length is open, it stops there instead.
    ``use_cache=False`` does not read the prefix cache, so that every position is computed and nothing is missing.

    Raises ``InvalidParameter`` for values that cannot work.
    """

    attention: Filter = False
    scores: Filter = False
    qkv: Filter = False
    hidden: Filter = False
    lens: Filter = False
    router: Filter = False
    embed: bool = False
    layers: Filter = None
    heads: Filter = None
    positions: Filter = None
    targets: Sequence[int | str] = ()
    top: int = TOP
    neighbours: int = NEIGHBOURS
    dtype: str = "float32"
    max_bytes: int = MAX_BYTES
    use_cache: bool = True
    distribution: int = 0

    def __post_init__(self) -> None:
        for name in ("embed", "use_cache"):
            if type(getattr(self, name)) is not bool:
                raise InvalidParameter(f"{name}={getattr(self, name)!r} must be True or False")
        if self.dtype not in ("float32", "float16"):
            raise InvalidParameter(f"dtype={self.dtype!r} must be 'float32' or 'float16'")
        for name, least in (("top", 1), ("neighbours", 1), ("max_bytes", 0), ("distribution", 0)):
            if type(getattr(self, name)) is not int or getattr(self, name) < least:
                raise InvalidParameter(f"{name}={getattr(self, name)!r} must be an integer of at least {least}")
        targets = [self.targets] if isinstance(self.targets, int | str) else list(self.targets)
        if not all(type(target) in (int, str) for target in targets):
            raise InvalidParameter(f"targets={self.targets!r} must be token ids or texts of one token")
        object.__setattr__(self, "targets", tuple(targets))
        if not (self.is_inside or self.distribution):
            names = ", ".join([*(f.name for f in fields(self)[:7]), "distribution"])
            raise InvalidParameter(f"the capture records nothing: set at least one of {names}")

    @property
    def is_inside(self) -> bool:
        """Whether anything inside the model is recorded."""
        return any(self.wants(name) for name in (*PER_LAYER, "embed"))

    def wants(self, name: str) -> bool:
        """Whether a field asks for anything (a filter of layer 0 does)."""
        value = getattr(self, name)
        return value is not False and value is not None
