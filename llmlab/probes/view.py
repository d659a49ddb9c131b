"""A step's view of the cache with a probe in it."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from llmlab.engine.attention import Variant
from llmlab.engine.plan import ScheduledRow, StepPlan
from llmlab.engine.step_view import StepView
from llmlab.probes.anatomy import Anatomy
from llmlab.probes.step_probe import ProbedRow, StepProbe


@dataclass
class ProbedView(StepView):
    """A step's view whose attention is looked at."""

    def attend(
        self, layer: int, query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, variant: Variant
    ) -> torch.Tensor:
        """Attend as always, then show it to the probe."""
        output = super().attend(layer, query, keys, values, variant)
        return self.probe.attended(layer, query, variant, output)


def probed_view(view: StepView, anatomy: Anatomy, plan: StepPlan, firsts: dict[int, int]) -> ProbedView:
    """The same view, looked at for those rows of the plan that asked; ``firsts`` are packed places by ``id(row)``."""
    rows, logits_at = [], 0
    for row in plan.rows:
        if row.request.probe is not None and row.request.probe.is_inside:
            row.request.probe.start(plan.step, row.request.num_cached)
            rows.append(_probed_row(row, view.pool.block_size, firsts[id(row)], logits_at))
        logits_at += row.num_logits
    probe = StepProbe(anatomy, view.pool, plan.step, rows)
    return ProbedView(view.pool, view.slots, view.groups, view.prefills, view.use_varlen, probe=probe)


def _probed_row(row: ScheduledRow, block_size: int, first: int, logits_at: int) -> ProbedRow:
    end = row.end - row.num_draft
    blocks = torch.tensor(row.request.block_table[: -(-end // block_size)])
    return ProbedRow(
        row.request.probe, first, row.start, end, row.request.tokens[:end], blocks, logits_at, row.end - row.num_logits
    )
