"""What a user says about speculation."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from llmlab.engine.speculative.inexact import own_sample_on_rejection, typical_acceptance
from llmlab.engine.speculative.rules import Rule, exact
from llmlab.errors import InvalidParameter

PROPOSERS = ("ngram", "early-exit", "draft-model", "head")
RULES: Mapping[str, Rule] = MappingProxyType(
    {
        "exact": exact,
        "own-sample-on-rejection": own_sample_on_rejection,
        "typical-acceptance": typical_acceptance,
    }
)


@dataclass(frozen=True, slots=True)
class Speculation:
    """How tokens are guessed ahead.

    ``proposer``: ``ngram`` (what followed in the text before), ``early-exit`` (the target's first ``layers`` layers;
    default: a third), ``draft-model`` (``model``, a catalogue name or folder with the same tokenizer), ``head`` (the
    trained head that comes with the model, or the one in the folder ``head``), or an object with the methods of
    :class:`~llmlab.engine.speculative.proposer.Proposer`. ``k``: most tokens of a draft. ``adaptive``: less, or none,
    where measured acceptance and batch size say that more does not pay. ``rule``: ``exact`` leaves the distribution of
    the output as it is; ``own-sample-on-rejection`` and ``typical-acceptance`` do not, and exist to show that.

    Raises ``InvalidParameter``.
    """

    proposer: Any = "ngram"
    k: int = 5
    adaptive: bool = True
    rule: str = "exact"
    layers: int | None = None
    model: str | Path | None = None
    head: str | Path | None = None

    def __post_init__(self) -> None:
        known = self.proposer in PROPOSERS if isinstance(self.proposer, str) else hasattr(self.proposer, "propose")
        if not known:
            raise InvalidParameter(
                f"speculative={self.proposer!r} must be one of {', '.join(PROPOSERS)}, or a proposer"
            )
        if type(self.k) is not int or not 1 <= self.k <= 64:
            raise InvalidParameter(f"k={self.k!r} must be an integer from 1 to 64")
        if self.rule not in RULES:
            raise InvalidParameter(f"rule={self.rule!r} must be one of {', '.join(RULES)}")
        if type(self.adaptive) is not bool:
            raise InvalidParameter(f"adaptive={self.adaptive!r} must be True or False")
        if (self.model is not None) != (self.proposer == "draft-model"):
            raise InvalidParameter("model= names the draft model: give it with proposer='draft-model', and only then")
        if self.head is not None and self.proposer != "head":
            raise InvalidParameter("head= is the folder of a trained head: give it with proposer='head', and only then")
        if self.layers is not None and self.proposer != "early-exit":
            raise InvalidParameter("layers= is how many layers proposer='early-exit' runs: leave it out otherwise")

    @classmethod
    def of(cls, value: Any) -> Speculation | None:
        """From what :func:`llmlab.open` takes: ``None``, a proposer or its name, or all settings."""
        if value is None or isinstance(value, Speculation):
            return value
        return cls(value)
