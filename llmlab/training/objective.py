"""What a head is trained for: to foresee several tokens in a row, from its own estimates after the first.

Index ``i`` of a sequence stands for the pair (feature of position ``i``, token ``i + 1``), from which the target's
distribution at position ``i + 1`` is to be foreseen. In pass 0 all features are the target's. In pass ``s`` the
feature at ``i`` is what pass ``s - 1`` estimated at ``i - 1``, and attention sees what it will see while drafting: the
target's own features up to ``i - s``, the estimates after that.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
import torch.nn.functional as F

from llmlab.engine.speculative.head_model import DraftHead, attend
from llmlab.training.features import Seen
from llmlab.training.foresight import Aims, foresight_loss, foresight_quality

DECAY = 0.8
"""Weight of each pass against the one before: later guesses count only if earlier ones were accepted."""


@dataclass(frozen=True, slots=True)
class Lesson:
    """A padded batch: ``features`` ``(rows, n + 1, width)``, ``tokens`` ``(rows, n + 1)``, ``log_mass`` likewise.

    ``wanted`` ``(rows, n)`` marks the indices that count.
    """

    features: torch.Tensor
    tokens: torch.Tensor
    log_mass: torch.Tensor
    wanted: torch.Tensor

    @classmethod
    def of(cls, seen: list[Seen]) -> Lesson:
        """Pad sequences at their ends."""
        features, tokens, log_mass = (
            torch.nn.utils.rnn.pad_sequence([getattr(one, name) for one in seen], batch_first=True)
            for name in ("features", "tokens", "log_mass")
        )
        wanted = torch.zeros(len(seen), tokens.shape[1] - 1, dtype=torch.bool)
        for row, one in zip(wanted, seen, strict=True):
            row[one.first : len(one.tokens) - 1] = True
        return cls(features, tokens, log_mass, wanted)

    def counted(self, passes: int) -> torch.Tensor:
        """The wanted indices that have an estimate before them in every pass, ``(rows, n)``."""
        counted = self.wanted.clone()
        counted[:, : passes - 1] = False
        return counted


class Objective:
    """Losses of a head against one target. ``embedding`` ``(vocabulary, width)`` holds the target's input rows,
    ``rows`` ``(drafted, width)`` its output rows of the tokens the head may draft, all in bfloat16."""

    def __init__(self, embedding: torch.Tensor, rows: torch.Tensor) -> None:
        self.embedding, self.rows = embedding, rows

    def losses(self, head: DraftHead, lesson: Lesson, passes: int) -> torch.Tensor:
        """Cross-entropy of each pass against the target's distribution ``(passes,)``, in nats."""
        return foresight_loss(*self._counted(head, lesson, passes))

    @torch.no_grad()
    def quality(self, head: DraftHead, lesson: Lesson, passes: int) -> torch.Tensor:
        """Of each pass, what :func:`~llmlab.training.foresight.foresight_quality` finds, ``(3, passes)``."""
        return foresight_quality(*self._counted(head, lesson, passes))

    def _counted(self, head: DraftHead, lesson: Lesson, passes: int) -> tuple[torch.Tensor, Aims]:
        counted = lesson.counted(passes)
        estimates = torch.stack([estimate[counted] for estimate in self.estimates(head, lesson, passes)])
        return estimates, Aims(lesson.features[:, 1:][counted], lesson.log_mass[:, 1:][counted], self.rows)

    def estimates(self, head: DraftHead, lesson: Lesson, passes: int) -> Iterator[torch.Tensor]:
        """The estimated features ``(rows, n, width)`` of each pass in turn."""
        features, embedded = lesson.features[:, :-1], self.embedding[lesson.tokens[:, 1:]]
        positions = torch.arange(features.shape[1])
        distance = positions[:, None] - positions[None]
        keys, values = [], []
        for number in range(passes):
            projected = head.project(features, embedded, positions)
            keys.append(projected.key)
            values.append(projected.value)
            earlier = [distance == number - made for made in range(1, number + 1)]
            mask = torch.cat([distance >= number, *earlier], dim=1)
            attended = attend(projected.query, torch.cat(keys, dim=-2), torch.cat(values, dim=-2), mask)
            estimate = head.finish(projected, attended)
            yield estimate
            features = F.pad(estimate[:, :-1], (0, 0, 1, 0))
