"""Which draft tokens are kept, and what stands in the place of the first that is not.

Position by position, with p the target's distribution and q the one the draft token was drawn from, a rule keeps the
draft token or puts another in its place, which ends the round (:mod:`llmlab.engine.speculative.rules`). When all drafts
are kept, the target's distribution after them gives one token more. At temperature 0 p is a point mass, and the exact
rule says: keep what equals the likeliest token.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from llmlab.engine.choice import Choice
from llmlab.engine.distribution import argmax, draw, probabilities
from llmlab.engine.sampler import Sampled, SampleInput, adjusted_row, is_plain, top_of
from llmlab.engine.speculative.proposer import ACCEPT_DRAW, RECOVER_DRAW, TARGET_DRAW, Draft, Probs, at_offset
from llmlab.engine.speculative.rules import Rule, Uniforms, exact
from llmlab.engine.uniform import uniform

ACCEPTED, RECOVERED, BONUS, TARGET = "accepted", "recovered", "bonus", "target"


@dataclass(frozen=True, slots=True)
class Judged:
    """One draft token against the target: its probability under both, the uniform number it was judged by (NaN when
    none was needed), and whether it was kept."""

    token_id: int
    p: float
    q: float
    u: float
    accepted: bool


@dataclass(slots=True)
class Verdict:
    """What one verification gives: the tokens, each with its source, and how every draft token fared."""

    sampled: list[Sampled]
    sources: list[str]
    judged: list[Judged]

    def add(self, sampled: Sampled, source: str) -> None:
        """Append a token."""
        self.sampled.append(sampled)
        self.sources.append(source)

    @property
    def num_accepted(self) -> int:
        """Draft tokens kept."""
        return sum(one.accepted for one in self.judged)


def verify(logits: Tensor, rules: SampleInput, draft: Draft, rule: Rule) -> Verdict:
    """Judge ``draft`` by the target's ``logits`` ``(m, V)``; row ``i`` is for position ``rules.position + i``.

    Row ``i`` was computed with the first ``i`` draft tokens before it. With ``m <= len(draft)`` only the first ``m``
    are judged and no bonus token is drawn: the rest of the draft is judged later, by the same rule and the same
    uniform numbers. Unusable logits end the verdict with a token that has an ``error``.
    """
    logits = logits.detach().float()
    if is_plain(rules) and bool(torch.isfinite(logits.amax(dim=-1)).all()):
        return _verify_plain(logits, rules, draft)
    logits, verdict = logits.cpu(), Verdict([], [], [])
    for i, row in enumerate(logits):
        if not _verify_row(row, at_offset(rules, draft.tokens[:i]), draft, i, rule, verdict):
            break
    return verdict


def _verify_row(row: Tensor, rules: SampleInput, draft: Draft, i: int, rule: Rule, verdict: Verdict) -> bool:
    """Add position ``i`` to the verdict; says whether the next one still counts."""
    changed, problem = adjusted_row(row, rules)
    if problem is not None:
        verdict.add(Sampled(-1, math.nan, (), problem), TARGET)
        return False
    p = probabilities(changed, rules.params)
    if i == len(draft):
        u = _uniform(rules, TARGET_DRAW)
        token_id, source = draw(p, u), BONUS if i else TARGET
    else:
        judged, token_id = _judge(p, draft.tokens[i], draft.probs[i], rules, rule)
        verdict.judged.append(judged)
        source = ACCEPTED if judged.accepted else RECOVERED
        # only a named token under the exact rule is compared with the target's own draw
        u = judged.u if draft.probs[i] is None and rule is exact else None
    if rules.watch is not None:
        greedy = rules.params.greedy
        rules.watch(Choice(rules, row, changed, changed, None if greedy else p, None if greedy else u, token_id))
    logprobs = row.log_softmax(dim=-1)
    verdict.add(Sampled(token_id, float(logprobs[token_id]), top_of(logprobs, rules.params.logprobs), None), source)
    return source == ACCEPTED


def _verify_plain(logits: Tensor, rules: SampleInput, draft: Draft) -> Verdict:
    """At temperature 0 without adjustments: every row's likeliest token, up to the first that differs."""
    best = argmax(logits)
    chosen = logits.log_softmax(dim=-1).gather(-1, best.unsqueeze(-1)).squeeze(-1).tolist()
    verdict = Verdict([], [], [])
    for i, (token_id, logprob) in enumerate(zip(best.tolist(), chosen, strict=True)):
        source = BONUS if i else TARGET
        if i < len(draft):
            guess, q = draft.tokens[i], draft.probs[i]
            kept = token_id == guess
            verdict.judged.append(Judged(guess, float(kept), _q(guess, q), math.nan, kept))
            source = ACCEPTED if kept else RECOVERED
        verdict.add(Sampled(token_id, logprob, (), None), source)
        if source != ACCEPTED:
            break
    if rules.watch is not None:
        for i, sampled in enumerate(verdict.sampled):
            row = logits[i].cpu()
            rules.watch(Choice(at_offset(rules, draft.tokens[:i]), row, row, row, None, None, sampled.token_id))
    return verdict


def _judge(p: Tensor, token_id: int, q: Probs | None, rules: SampleInput, rule: Rule) -> tuple[Judged, int]:
    """One draft token by a rule; returns the token to put there too."""
    token, dense = torch.tensor([token_id]), None if q is None else q.dense(len(p))[None]
    draws = [
        torch.tensor([_uniform(rules, which)], dtype=torch.float64)
        for which in (TARGET_DRAW, ACCEPT_DRAW, RECOVER_DRAW)
    ]
    found = rule(p[None], token, dense, Uniforms(*draws))
    judged = Judged(token_id, float(p[token_id]), _q(token_id, q), float(found.u), bool(found.accepted))
    return judged, int(found.tokens)


def _q(token_id: int, q: Probs | None) -> float:
    return 1.0 if q is None else q.of(token_id)


def _uniform(rules: SampleInput, which: int) -> float:
    return uniform(rules.seed, rules.sample, rules.position, which)
