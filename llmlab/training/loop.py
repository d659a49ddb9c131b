"""The training loop: one pass over shuffled batches after another, with a schedule known from the start."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import dataclass

import torch

from llmlab.engine.speculative.head_model import DraftHead
from llmlab.training.features import Seen
from llmlab.training.objective import DECAY, Lesson, Objective

MEASURES = ("loss", "agreement", "overlap")


@dataclass(frozen=True, slots=True)
class Schedule:
    """``batch_tokens``: positions a batch, padding included. The learning rates rise over ``warmup`` of all batches
    and then fall to ``final`` of their peak; ``matrix_rate`` is Muon's, ``norm_rate`` AdamW's. The first
    ``single_until`` of the batches foresee one token, the others ``passes``. ``late_starts`` of the sequences begin
    somewhere in their prompt, as a head does when the positions before came from the prefix cache."""

    epochs: int = 2
    batch_tokens: int = 1536
    matrix_rate: float = 4e-3
    norm_rate: float = 2e-3
    warmup: float = 0.03
    final: float = 0.02
    weight_decay: float = 0.02
    clip: float = 1.0
    passes: int = 3
    single_until: float = 0.4
    late_starts: float = 0.3

    def passes_at(self, progress: float) -> int:
        """How many tokens ahead are foreseen: one at first, which is the cheapest way to learn the most."""
        return 1 if progress < self.single_until else self.passes

    def factor(self, progress: float) -> float:
        """What both rates are multiplied by when ``progress`` (0 to 1) of the batches is done."""
        if progress < self.warmup:
            return progress / self.warmup
        rest = (progress - self.warmup) / (1 - self.warmup)
        return self.final + (1 - self.final) * 0.5 * (1 + math.cos(math.pi * rest))


def train(
    head: DraftHead,
    objective: Objective,
    seen: list[Seen],
    schedule: Schedule,
    seed: int,
    progress: Callable[[int, list[float]], None] | None = None,
) -> None:
    """Train ``head`` in place; ``progress`` is told the number of every batch and its loss in each pass."""
    plan = [batch for epoch in range(schedule.epochs) for batch in batches(seen, schedule.batch_tokens, seed + epoch)]
    optimizers, rng = _optimizers(head, schedule), random.Random(seed)
    head.train()
    for number, batch in enumerate(plan):
        lesson = Lesson.of([late_start(seen[i], rng, schedule.late_starts) for i in batch])
        losses = _learn(head, objective, lesson, schedule, optimizers, (number + 1) / len(plan))
        if progress:
            progress(number, losses)
    head.eval()


def late_start(seen: Seen, rng: random.Random, chance: float) -> Seen:
    """With this ``chance``, the sequence without some positions before the first that counts."""
    cut = rng.randint(0, seen.first) if rng.random() < chance else 0
    return Seen(seen.tokens[cut:], seen.features[cut:], seen.log_mass[cut:], seen.first - cut)


def num_batches(seen: list[Seen], schedule: Schedule, seed: int) -> int:
    """How many batches :func:`train` will take."""
    return sum(len(batches(seen, schedule.batch_tokens, seed + epoch)) for epoch in range(schedule.epochs))


def batches(seen: list[Seen], batch_tokens: int, seed: int) -> list[list[int]]:
    """Indices into ``seen``: sequences of similar length together, in random order."""
    rng = random.Random(seed)
    order = sorted(range(len(seen)), key=lambda i: (len(seen[i].tokens) // 16, rng.random()))
    result: list[list[int]] = [[]]
    for index in order:
        if (len(result[-1]) + 1) * len(seen[index].tokens) > batch_tokens and result[-1]:
            result.append([])
        result[-1].append(index)
    rng.shuffle(result)
    return result


@torch.no_grad()
def measure(
    head: DraftHead, objective: Objective, seen: list[Seen], passes: int = 4, batch_tokens: int = 1536
) -> dict[str, list[float]]:
    """Loss, agreement and overlap of each pass on ``seen``, each batch counting alike."""
    found = []
    for batch in batches(seen, batch_tokens, 0):
        with _lower_precision():
            found.append(objective.quality(head, Lesson.of([seen[i] for i in batch]), passes))
    mean = torch.stack(found).mean(0)
    return {name: [round(value, 4) for value in row.tolist()] for name, row in zip(MEASURES, mean, strict=True)}


def _learn(head, objective, lesson, schedule, optimizers, progress) -> list[float]:
    passes = schedule.passes_at(progress)
    with _lower_precision():
        losses = objective.losses(head, lesson, passes)
    (losses * DECAY ** torch.arange(passes)).sum().backward()
    torch.nn.utils.clip_grad_norm_(head.parameters(), schedule.clip)
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            group["lr"] = group["peak"] * schedule.factor(progress)
        optimizer.step()
        optimizer.zero_grad()
    return losses.tolist()


def _lower_precision():
    """Matrix products in bfloat16; weights and their updates stay in float32."""
    return torch.autocast("cpu", torch.bfloat16)


def _optimizers(head: DraftHead, schedule: Schedule) -> list[torch.optim.Optimizer]:
    """Muon for matrices, which needs fewer batches, and AdamW for the norms."""
    matrices = [parameter for parameter in head.parameters() if parameter.ndim == 2]
    vectors = [parameter for parameter in head.parameters() if parameter.ndim != 2]
    muon = torch.optim.Muon(matrices, lr=schedule.matrix_rate, weight_decay=schedule.weight_decay,
                            adjust_lr_fn="match_rms_adamw")  # fmt: skip
    adam = torch.optim.AdamW(vectors, lr=schedule.norm_rate, weight_decay=0.0, betas=(0.9, 0.95))
    for optimizer in (muon, adam):
        for group in optimizer.param_groups:
            group["peak"] = group["lr"]
    return [muon, adam]
