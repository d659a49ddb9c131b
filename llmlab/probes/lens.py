"""The logit lens: what final norm and head would say after every layer, one layer at a time."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from llmlab.probes.anatomy import Anatomy
from llmlab.probes.plan import RequestProbe

CHUNK = 64
"""Positions per piece: at most one layer's logits of so many positions exist at a time (and the last layer's)."""


@dataclass(frozen=True, slots=True, eq=False)
class LensReading:
    """One layer's distribution at ``n`` positions, boiled down. On the CPU; entropies and KL in nats."""

    top: torch.Tensor
    top_logprob: torch.Tensor
    entropy: torch.Tensor
    kl: torch.Tensor
    rank: torch.Tensor
    target_logprob: torch.Tensor


class LensBook:
    """Hidden states of one step that a request's lens will read when the last layer is known."""

    def __init__(self) -> None:
        self.hidden: dict[int, torch.Tensor] = {}

    def read(self, anatomy: Anatomy, probe: RequestProbe) -> dict[int, LensReading]:
        """A reading per layer asked for. The last layer's state must be in the book."""
        last = self.hidden[len(anatomy.layers) - 1]
        parts: dict[int, list[LensReading]] = {layer: [] for layer in self.hidden if probe.wants("lens", layer)}
        for first in range(0, len(last), CHUNK):
            span = slice(first, first + CHUNK)
            final = anatomy.logits(last[span]).log_softmax(-1)
            for layer, readings in parts.items():
                is_last = layer == len(anatomy.layers) - 1
                logprobs = final if is_last else anatomy.logits(self.hidden[layer][span]).log_softmax(-1)
                readings.append(_reading(logprobs, final.to(logprobs.device), probe))
        return {layer: _joined(readings) for layer, readings in parts.items()}


def _reading(logprobs: torch.Tensor, final: torch.Tensor, probe: RequestProbe) -> LensReading:
    values, ids = logprobs.topk(probe.top, dim=-1)
    probs = logprobs.exp()
    targets = torch.tensor(probe.targets, dtype=torch.long, device=logprobs.device)
    chosen = logprobs[:, targets]
    ranks = [(logprobs > chosen[:, i : i + 1]).sum(-1) for i in range(len(targets))]
    return LensReading(
        ids.cpu(),
        values.cpu(),
        -_sum(probs * logprobs).cpu(),
        _sum(final.exp() * (final - logprobs)).clamp(min=0).cpu(),
        (torch.stack(ranks, dim=-1) if ranks else ids.new_empty(len(ids), 0)).cpu(),
        chosen.cpu(),
    )


def _sum(terms: torch.Tensor) -> torch.Tensor:
    """Sum over the vocabulary; a forbidden token's 0 x -inf counts as 0."""
    return terms.nan_to_num(nan=0.0).sum(-1)


def _joined(readings: list[LensReading]) -> LensReading:
    names = LensReading.__slots__
    return LensReading(*(torch.cat([getattr(reading, name) for reading in readings]) for name in names))
