"""Following a compiled grammar, token by token."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

import numpy as np
import torch
from llguidance import LLMatcher
from torch import Tensor

from llmlab.errors import ConstraintError


class GrammarConstraint:
    """A :class:`~llmlab.engine.constraint.Constraint` that follows a compiled grammar for one sample.

    Raises :class:`~llmlab.errors.ConstraintError` when the grammar turns out too complex in some state.
    """

    def __init__(self, matcher: LLMatcher) -> None:
        self._matcher = matcher

    def mask(self, logits: Tensor) -> Tensor:
        """Forbid, in place, what cannot follow; rows of ``(V,)`` beyond the tokenizer's ids are forbidden too."""
        bits = np.frombuffer(self._matcher.compute_bitmask(), np.uint8)
        self._check()
        forbidden = np.unpackbits(bits, count=len(logits), bitorder="little") == 0
        return logits.masked_fill_(torch.from_numpy(forbidden), -math.inf)

    def accept(self, token_id: int) -> None:
        """Follow a token that :meth:`mask` allowed."""
        self._matcher.consume_token(token_id)
        self._check()

    @property
    def is_finished(self) -> bool:
        """Whether only EOS can follow."""
        return self._matcher.is_stopped()

    def _check(self) -> None:
        if self._matcher.is_error():
            raise ConstraintError(reason_of(self._matcher.get_error()))


@dataclass(frozen=True, slots=True)
class ConstraintFactory:
    """Makes a constraint for each sample of a request. ``was_cached``: nothing had to be compiled for it."""

    prototype: LLMatcher
    was_cached: bool

    def __call__(self) -> GrammarConstraint:
        """One at the beginning of the grammar."""
        return GrammarConstraint(self.prototype.deep_copy())


def reason_of(error: str) -> str:
    """The compiler's message without the listing of the grammar, in one line."""
    if "NoExtension" in error:
        return "no JSON value satisfies it"
    text = error.rpartition("failed to compile JSON schema: ")[2]
    text = re.split(r"\n\s+\d+ \| |<non-verbose/>", text, maxsplit=1)[0]
    line = " ".join(text.split()).replace("Enable 'coerce_one_of' option to approximate oneOf with", "use")
    return line if len(line) <= 300 else line[:297] + "..."
