"""Two rules that do not keep the target's distribution, to be seen failing the test of it. Both look plausible."""

from __future__ import annotations

import torch
from torch import Tensor

from llmlab.engine.speculative.rules import Judgement, Uniforms, accepts, at, instead

EPSILON, DELTA = 0.09, 0.3
"""Typical acceptance keeps a draft token of probability min(EPSILON, DELTA * exp(-entropy)) or more."""


def own_sample_on_rejection(p: Tensor, tokens: Tensor, q: Tensor | None, uniforms: Uniforms) -> Judgement:
    """Inexact. Keep with probability min(1, p / q), else take a sample of p.

    The rejected token can come back, so what the proposer likes comes out too often.
    """
    accepted = accepts(p, tokens, q, uniforms.accept)
    return Judgement(accepted, instead(accepted, tokens, p, uniforms), uniforms.accept)


def typical_acceptance(p: Tensor, tokens: Tensor, q: Tensor | None, uniforms: Uniforms) -> Judgement:
    """Inexact. Keep every draft token that is not too unlikely under p, without a draw; else take a sample of p.

    Accepts more than the exact rule, and says what the proposer says wherever the target does not mind.
    """
    entropy = -torch.xlogy(p, p).sum(dim=-1)
    accepted = at(p, tokens) >= (DELTA * torch.exp(-entropy)).clamp(max=EPSILON)
    nothing = torch.full(tokens.shape, torch.nan, dtype=torch.float64)
    return Judgement(accepted, instead(accepted, tokens, p, uniforms), nothing)
