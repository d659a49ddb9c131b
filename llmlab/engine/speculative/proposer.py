"""What guesses the next tokens of a request: the interface between the engine and its proposers.

A proposer's guesses are only ever verified, never trusted: whatever it proposes, the tokens that come out are
distributed as the target model alone would have drawn them (see :mod:`llmlab.engine.speculative.verify`). It affects
speed, so it may forget, start late or propose nothing.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

import torch
from torch import Tensor

from llmlab.engine.distribution import argmax, draw, probabilities
from llmlab.engine.sampler import SampleInput, adjusted_row
from llmlab.engine.uniform import uniform

TARGET_DRAW, DRAFT_DRAW, ACCEPT_DRAW, RECOVER_DRAW = range(4)
"""Which of a position's uniform numbers is used for what (``draw`` of :func:`~llmlab.engine.uniform.uniform`)."""


@dataclass(frozen=True, slots=True)
class Probs:
    """The distribution one draft token was drawn from: ``ids`` ``(n,)`` int64 and ``values`` ``(n,)`` float64.

    All other ids have probability 0. Both lie on the CPU; ``values`` sum to 1.
    """

    ids: Tensor
    values: Tensor

    def of(self, token_id: int) -> float:
        """Probability of one token."""
        return float(self.values[self.ids == token_id].sum())

    def dense(self, vocab_size: int) -> Tensor:
        """All of it, ``(vocab_size,)``."""
        return torch.zeros(vocab_size, dtype=torch.float64).index_put_((self.ids,), self.values)

    @classmethod
    def nonzero(cls, probs: Tensor) -> Probs:
        """The entries above 0 of a whole row ``(V,)``."""
        ids = probs.nonzero().squeeze(-1)
        return cls(ids, probs[ids])


@dataclass(frozen=True, slots=True)
class Draft:
    """Proposed tokens and, for each, what it was drawn from; ``None`` for a token that was simply named.

    A named token is a point mass: its q is 1 there and 0 elsewhere.
    """

    tokens: tuple[int, ...] = ()
    probs: tuple[Probs | None, ...] = ()

    def __len__(self) -> int:
        return len(self.tokens)

    def after(self, count: int) -> Draft:
        """What is left when the first ``count`` tokens were verified."""
        return Draft(self.tokens[count:], self.probs[count:])


@dataclass(slots=True, eq=False)
class DraftRow:
    """One request that wants a draft of at most ``k`` tokens.

    ``tokens`` is prompt plus output: read it, do not change it. Its last token is the only one whose K/V and feature
    the target has not computed, so ``num_computed == len(tokens) - 1``. ``rules`` say how the token at position
    ``len(tokens)`` is to be chosen, out of the target's ``vocab_size``. ``block_table[i]`` is the block of the
    target's pool that holds the K/V of positions ``i * block_size ..``. ``by_name`` asks for likeliest tokens as point
    masses: then the output does not depend on what the proposer knows. A proposer fills the draft with :meth:`choose`
    and :meth:`name`.
    """

    request_id: str
    tokens: Sequence[int]
    k: int
    rules: SampleInput
    vocab_size: int
    block_table: Sequence[int] = ()
    by_name: bool = False
    chosen: list[int] = field(default_factory=list)
    probs: list[Probs | None] = field(default_factory=list)

    @property
    def num_computed(self) -> int:
        """Positions of ``tokens`` that the target has computed."""
        return len(self.tokens) - 1

    @property
    def is_full(self) -> bool:
        """Whether ``k`` tokens are drafted."""
        return len(self.chosen) >= self.k

    @property
    def draft(self) -> Draft:
        """What has been chosen so far."""
        return Draft(tuple(self.chosen), tuple(self.probs))

    def name(self, token_id: int) -> None:
        """Propose one token as a point mass."""
        self.chosen.append(token_id)
        self.probs.append(None)

    def choose(self, logits: Tensor, ids: Tensor | None = None) -> int | None:
        """Draw the next draft token from the proposer's logits and return it.

        ``logits`` ``(n,)`` of any float type and device belong to the tokens ``ids`` ``(n,)``, or to the first
        ``n`` ids. The request's penalties, biases, bans, temperature and filters are applied as they will be to the
        target's logits there: q then resembles p, so more is accepted. ``None``: these logits allow no token;
        propose no further.
        """
        rules = at_offset(self.rules, self.chosen)
        if self._takes_largest(rules):
            return self._name_largest(logits, ids)
        row, problem = adjusted_row(self._whole(logits, ids), rules)
        if problem is not None:
            return None
        if rules.params.greedy or self.by_name:
            token_id = int(argmax(row))
            self.name(token_id)
            return token_id
        probs = probabilities(row, rules.params)
        token_id = draw(probs, uniform(rules.seed, rules.sample, rules.position, DRAFT_DRAW))
        self.chosen.append(token_id)
        self.probs.append(Probs.nonzero(probs))
        return token_id

    def _takes_largest(self, rules: SampleInput) -> bool:
        """Whether the likeliest token is all there is to find, whatever the others are."""
        params = rules.params
        free = rules.constraint is None and rules.num_output >= params.min_tokens and not params.needs_adjustment
        return free and (params.greedy or self.by_name)

    def _name_largest(self, logits: Tensor, ids: Tensor | None) -> int | None:
        logits = logits[: self.vocab_size] if ids is None else logits
        largest, place = logits.max(dim=-1)
        if not math.isfinite(float(largest)):
            return None
        token_id = int(place) if ids is None else int(ids[int(place)])
        self.name(token_id)
        return token_id

    def _whole(self, logits: Tensor, ids: Tensor | None) -> Tensor:
        """A float32 row over the target's vocabulary on the CPU; ids that the proposer lacks have -inf."""
        logits = logits.detach().float().cpu()
        row = torch.full((self.vocab_size,), -torch.inf)
        if ids is not None:
            row[ids.cpu()] = logits
        else:
            width = min(len(logits), len(row))
            row[:width] = logits[:width]
        return row


def at_offset(rules: SampleInput, drafted: Sequence[int]) -> SampleInput:
    """The rules of the position that follows ``drafted``, counted from the one ``rules`` are for."""
    if not drafted:
        return rules
    output_ids = [*rules.output_ids, *drafted] if rules.params.needs_adjustment else ()
    count = len(drafted)
    return replace(rules, position=rules.position + count, num_output=rules.num_output + count, output_ids=output_ids)


@dataclass(frozen=True, slots=True)
class Observed:
    """The target computed positions ``start .. start + len(tokens) - 1`` of a request, which hold ``tokens``.

    ``features`` ``(len(tokens), width)`` are the target's hidden states there after the final norm, before the head,
    on the target's device. Positions served from the prefix cache are never observed. Drafts that are about to be
    rejected are: the next rows begin again at the first position that was not kept, and :attr:`DraftRow.tokens` says
    what became of them. After a preemption positions are observed again from its start.
    """

    request_id: str
    start: int
    tokens: Sequence[int]
    features: Tensor


class Proposer(Protocol):
    """State is kept per request id, and called by the thread that steps only.

    ``name`` appears in the trace. ``needs_features``: :meth:`observe` is called after every step. ``repeatable``:
    a draft depends on the request's tokens and seed alone, not on what the caches held or on neighbours; otherwise
    seeded requests ask for their tokens ``by_name``. A ``draft_cost``, where there is one, says what proposing one
    token takes as a share of a decode step; without it drafts are thought to cost nothing.
    """

    name: str
    needs_features: bool
    repeatable: bool

    def propose(self, rows: Sequence[DraftRow]) -> list[Draft]:
        """A draft for every row, in order, of at most ``row.k`` tokens; an empty one where there is nothing to say."""

    def observe(self, rows: Sequence[Observed]) -> None:
        """The target's features of the positions of one step; only with ``needs_features``."""

    def fork(self, parent_id: str, child_id: str) -> None:
        """``child_id`` is another sample of the parent's computed prompt."""

    def forget(self, request_id: str) -> None:
        """The request ended; harmless for an unknown id."""
