"""How far estimated features are from the target's: over the drafted vocabulary, a few rows at a time.

Rows times vocabulary is far more numbers than anything else in training, so loss and gradient are computed together,
chunk by chunk, and never kept.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch

CHUNK = 256


@dataclass(frozen=True, slots=True)
class Aims:
    """The target's features ``(n, width)``, their ``log_mass`` ``(n,)`` (see :class:`~.features.Seen`), and the
    target's output rows of the drafted tokens ``(drafted, width)``."""

    features: torch.Tensor
    log_mass: torch.Tensor
    rows: torch.Tensor

    def chunks(self) -> Iterator[tuple[slice, torch.Tensor]]:
        """The target's probabilities of the drafted tokens, ``(at most CHUNK, drafted)``, and where they belong."""
        for start in range(0, len(self.features), CHUNK):
            here = slice(start, start + CHUNK)
            logits = (self.features[here] @ self.rows.T).float()
            yield here, logits.sub_(self.log_mass[here, None]).exp_()


class _Foresight(torch.autograd.Function):
    @staticmethod
    def forward(ctx, estimates: torch.Tensor, aims: Aims) -> torch.Tensor:
        losses = estimates.new_zeros(len(estimates), dtype=torch.float32)
        gradient = torch.empty_like(estimates)
        for here, wanted in aims.chunks():
            mass = wanted.sum(-1, keepdim=True)
            for number, estimate in enumerate(estimates[:, here]):
                logits = (estimate @ aims.rows.T).float()
                log_sum = logits.logsumexp(-1, keepdim=True)
                losses[number] += (mass * log_sum).sum() - torch.dot(wanted.flatten(), logits.flatten())
                error = logits.sub_(log_sum).exp_().mul_(mass).sub_(wanted)
                gradient[number, here] = error.to(aims.rows.dtype) @ aims.rows
        ctx.save_for_backward(gradient)
        return losses / estimates.shape[1]

    @staticmethod
    def backward(ctx, of_losses: torch.Tensor) -> tuple[torch.Tensor, None]:
        (gradient,) = ctx.saved_tensors
        return gradient * (of_losses / gradient.shape[1])[:, None, None].to(gradient.dtype), None


def foresight_loss(estimates: torch.Tensor, aims: Aims) -> torch.Tensor:
    """Cross-entropy ``(passes,)`` in nats of ``estimates`` ``(passes, n, width)`` with the target's distribution.

    What the target gives to tokens outside the drafted vocabulary does not count.
    """
    return _Foresight.apply(estimates, aims)


def foresight_quality(estimates: torch.Tensor, aims: Aims) -> torch.Tensor:
    """Three rows of ``(passes,)``: loss, agreement, overlap.

    Agreement is the share of positions where the likeliest drafted token is the target's; overlap the mean of
    sum(min(p, q)), the chance that a sampled draft token is accepted at temperature 1.
    """
    found = torch.zeros(3, len(estimates))
    for here, wanted in aims.chunks():
        for number, estimate in enumerate(estimates[:, here]):
            log_q = (estimate @ aims.rows.T).float().log_softmax(-1)
            found[0, number] -= (wanted * log_q).sum()
            found[1, number] += (log_q.argmax(-1) == wanted.argmax(-1)).sum()
            found[2, number] += torch.minimum(log_q.exp(), wanted).sum()
    return found / estimates.shape[1]
