"""The exact rule of acceptance, over any number of independent positions at once."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class Uniforms:
    """Independent numbers in [0, 1) for ``n`` positions, each ``(n,)`` float64: one for a sample of the target, one to
    accept by, one to draw by after a rejection."""

    target: Tensor
    accept: Tensor
    recover: Tensor


@dataclass(frozen=True, slots=True)
class Judgement:
    """``accepted`` ``(n,)`` bool; ``tokens`` ``(n,)``, the draft's or what stands in its place; ``u`` ``(n,)``, the
    number each draft was judged by (NaN: none)."""

    accepted: Tensor
    tokens: Tensor
    u: Tensor


Rule = Callable[[Tensor, Tensor, Tensor | None, Uniforms], Judgement]
"""``(p (n, V), draft tokens (n,), q (n, V) or None for named tokens, uniforms)``; p and q are float64 and sum to 1."""


def exact(p: Tensor, tokens: Tensor, q: Tensor | None, uniforms: Uniforms) -> Judgement:
    """Keep x with probability min(1, p(x) / q(x)), else draw from max(0, p - q): what comes out is distributed as p.

    A named token is compared with the target's own draw: the same rule for a q that is 1 at x, and the tokens are
    those of a run without speculation.
    """
    if q is None:
        drawn = draw_rows(p, uniforms.target)
        return Judgement(drawn == tokens, drawn, uniforms.target)
    accepted = accepts(p, tokens, q, uniforms.accept)
    return Judgement(accepted, instead(accepted, tokens, residual(p, q), uniforms), uniforms.accept)


def accepts(p: Tensor, tokens: Tensor, q: Tensor | None, u: Tensor) -> Tensor:
    """Whether each draft token is kept: with probability min(1, p / q)."""
    return u * at(q, tokens) < at(p, tokens)


def residual(p: Tensor, q: Tensor) -> Tensor:
    """``max(0, p - q)``, not normalised; p itself where rounding leaves nothing of it."""
    left = (p - q).clamp_(min=0.0)
    return torch.where(left.sum(dim=-1, keepdim=True) > 0.0, left, p)


def at(probs: Tensor | None, tokens: Tensor) -> Tensor:
    """The probability of each row's token; 1 for named tokens."""
    if probs is None:
        return torch.ones(tokens.shape, dtype=torch.float64)
    return probs.gather(-1, tokens[:, None]).squeeze(-1)


def draw_rows(probs: Tensor, u: Tensor) -> Tensor:
    """:func:`~llmlab.engine.distribution.draw` for every row of ``probs`` ``(n, V)`` at once."""
    mass = probs.cumsum(dim=-1)
    mass /= mass[:, -1:].clone()
    return torch.searchsorted(mass, u[:, None], right=True).squeeze(-1)


def instead(accepted: Tensor, tokens: Tensor, probs: Tensor, uniforms: Uniforms) -> Tensor:
    """The draft's tokens where they are accepted, else draws from ``probs`` ``(n, V)``."""
    if bool(accepted.all()):
        return tokens
    return torch.where(accepted, tokens, draw_rows(probs, uniforms.recover))
