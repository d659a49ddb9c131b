"""Keeping how the output tokens of one request were chosen."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from time import perf_counter_ns

import numpy as np
import torch

from llmlab.engine.choice import Choice
from llmlab.probes.stages import candidates_of, left_at, stages_of
from llmlab.probes.store import CaptureStore
from llmlab.trace.distribution import DIMS, STAGES


@dataclass(slots=True, eq=False)
class ChoiceLog:
    """Watches the sampler for one request and keeps what it saw of the tokens that were really taken.

    ``count`` candidates; ``positions`` are those that choose a token (position ``p`` the one at ``p + 1``). A choice
    stays ``pending`` until its token is taken: after a stop the rest of a verified draft is no output. Looking that
    fails stops the request's capture and nothing else.
    """

    store: CaptureStore
    count: int
    positions: frozenset[int]
    pending: dict[int, Choice] = field(default_factory=dict)

    def see(self, choice: Choice) -> None:
        """The sampler chose a token."""
        if choice.rules.position - 1 in self.positions:
            self.pending[choice.rules.position] = choice

    def keep(self, step: int, position: int) -> None:
        """The token at ``position`` was taken: keep how it was chosen, if that was seen."""
        choice, start = self.pending.pop(position, None), perf_counter_ns()
        if choice is None or self.store.is_stopped:
            return
        try:
            self._keep(step, choice)
        except Exception as error:  # looking failed: the request itself, and the batch, must go on
            self.store.stop(step, f"{type(error).__name__}: {error}")
        finally:
            self.store.cost_ns += perf_counter_ns() - start

    def _keep(self, step: int, choice: Choice) -> None:
        stages = stages_of(choice)
        final = stages[-1].probs
        ids, rank = candidates_of(choice, final, self.count)
        mass = final.cumsum(dim=0)
        values = {
            "distribution_token": choice.token_id,
            "distribution_uniform": math.nan if choice.u is None else choice.u,
            "distribution_ids": ids,
            "distribution_rank": rank,
            "distribution_below": (mass[ids] - final[ids]).clamp(min=0) / mass[-1],
            "distribution_left": left_at(stages, ids),
            "distribution_possible": [int(stage.allows.sum()) for stage in stages],
            "distribution_entropy": [stage.entropy for stage in stages],
            "distribution_prob": torch.stack([stage.probs[ids] for stage in stages]),
        }
        at, labels = (choice.rules.position - 1,), tuple(stage.label for stage in stages)
        for kind, dims in DIMS.items():
            of_stages = labels if "stage" in dims else ()
            self.store.add(step, kind, -1, dims, np.asarray(values[kind])[None], at, of_stages)

    def estimate(self, positions: int) -> int:
        """Most bytes for this many positions."""
        size, candidates = self.store.dtype.itemsize, 2 * self.count + 1
        stages = len(STAGES) * (4 + size)
        return positions * (4 + size + stages + candidates * (12 + size + size * len(STAGES)))
