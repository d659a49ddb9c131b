"""A step's view of the cache with a probe in it."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from llmlab.engine.attention import Variant
from llmlab.engine.plan import ScheduledRow, StepPlan
from llmlab.engine.step_view import StepView
from llmlab.probes.anatomy import Anatomy
from llmlab.probes.plan import RequestProbe
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
        if row.request.probe is not None:
            _start(row.request.probe, plan.step, row.request.num_cached)
            rows.append(_probed_row(row, view.pool.block_size, firsts[id(row)], logits_at))
        logits_at += row.num_logits
    probe = StepProbe(anatomy, view.pool, plan.step, rows)
    parts = (view.slots, view.decode_blocks, view.decode_lengths, view.prefills, view.use_varlen)
    return ProbedView(view.pool, *parts, probe=probe)


def _probed_row(row: ScheduledRow, block_size: int, first: int, logits_at: int) -> ProbedRow:
    end = row.end - row.num_draft
    blocks = torch.tensor(row.request.block_table[: -(-end // block_size)])
    return ProbedRow(
        row.request.probe, first, row.start, end, row.request.tokens[:end], blocks, logits_at, row.end - row.num_logits
    )


def _start(probe: RequestProbe, step: int, num_cached: int) -> None:
    """Once per request, say what is asked for and what will be changed."""
    if probe.has_started:
        return
    probe.has_started = True
    for change in probe.changes:
        probe.store.note(step, change.action, str(change), tuple(sorted(change.positions)))
    if probe.looks:
        kinds = [*probe.layers, *(["embed"] if probe.embed else [])]
        probe.store.note(step, "started", ", ".join(kinds), probe.positions, num_cached)
