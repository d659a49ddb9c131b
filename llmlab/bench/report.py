"""From samples to medians, ratios and verdicts: pure functions, then tables and one JSON object."""

from __future__ import annotations

import os
import platform
import shlex
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from statistics import median
from typing import TYPE_CHECKING, Any

from llmlab.bench.measure import Plan, Sample
from llmlab.bench.targets import TARGETS, Target
from llmlab.bench.workloads import CONTENDERS, GENERATE, GENERATE_BATCH, LLMLAB, Metric, by_name

if TYPE_CHECKING:
    from rich.table import Table

PEERS = (GENERATE, GENERATE_BATCH)


@dataclass(frozen=True, slots=True)
class Verdict:
    """A target and the median of what was measured for it."""

    target: Target
    value: float

    @property
    def met(self) -> bool:
        """Whether the target is met."""
        return self.target.met(self.value)


def medians(samples: Sequence[Sample], dtype: str, workload: str, metric: str) -> dict[str, float]:
    """Each contender's median over the rounds."""
    found: dict[str, list[float]] = {}
    for sample in samples:
        if (sample.dtype, sample.workload) == (dtype, workload):
            found.setdefault(sample.contender, []).append(sample.metrics[metric])
    return {name: median(values) for name, values in found.items()}


def ratio(
    samples: Sequence[Sample],
    dtype: str,
    workload: str,
    figure: tuple[str, str],
    base: tuple[str, str] | None,
) -> float | None:
    """Median over the rounds of ``figure / base`` within a round (of ``figure`` alone without ``base``).

    Both are ``(contender, metric)``. ``None`` when no round has both.
    """
    values = {
        (sample.round, sample.contender, name): value
        for sample in samples
        if (sample.dtype, sample.workload) == (dtype, workload)
        for name, value in sample.metrics.items()
    }
    rounds = sorted({key[0] for key in values})
    pairs = [(values.get((i, *figure)), values.get((i, *base)) if base else 1.0) for i in rounds]
    ratios = [a / b for a, b in pairs if a is not None and b is not None]
    return median(ratios) if ratios else None


def advantage(samples: Sequence[Sample], dtype: str, workload: str, metric: Metric, peer: str) -> float | None:
    """How many times better llmlab is than ``peer``: above 1 it is better, whatever the metric's direction."""
    ours, theirs = (LLMLAB, metric.name), (peer, metric.name)
    figure, base = (ours, theirs) if metric.higher_is_better else (theirs, ours)
    return ratio(samples, dtype, workload, figure, base)


def verdicts(samples: Sequence[Sample]) -> list[Verdict]:
    """Every target for which something was measured."""
    values = [(t, ratio(samples, t.dtype, t.workload, t.figure, t.base)) for t in TARGETS]
    return [Verdict(target, value) for target, value in values if value is not None]


def token_agreement(samples: Sequence[Sample], dtype: str = "fp32") -> dict[str, tuple[int, int]]:
    """Per peer ``(equal, compared)``: in how many rounds llmlab's greedy tokens were the peer's."""
    tokens = {
        (s.workload, s.round, s.contender): s.tokens for s in samples if s.dtype == dtype and s.tokens is not None
    }
    found = {}
    for peer in PEERS:
        ours = {key[:2]: value for key, value in tokens.items() if key[2] == LLMLAB}
        theirs = {key[:2]: value for key, value in tokens.items() if key[2] == peer}
        both = ours.keys() & theirs.keys()
        if both:
            found[peer] = (sum(ours[key] == theirs[key] for key in both), len(both))
    return found


# -- tables ---------------------------------------------------------------------------------------------------


def report_tables(plan: Plan, samples: Sequence[Sample]) -> list[Table]:
    """Per dtype a table of medians and ratios, then the targets and the comparison of tokens."""
    tables = [_dtype_table(plan, samples, dtype) for dtype in plan.dtypes]
    if not plan.quick and verdicts(samples):
        tables.append(_target_table(verdicts(samples)))
    if agreement := token_agreement(samples):
        tables.append(_agreement_table(agreement))
    return tables


def _dtype_table(plan: Plan, samples: Sequence[Sample], dtype: str) -> Table:
    from rich.table import Table

    names = [name for name in CONTENDERS if name in plan.contenders]
    title = f"{dtype}, medians (rounds: {plan.repeats}{', workloads shortened' if plan.quick else ''})"
    caption = "in brackets: how many times better llmlab is, median of the rounds"
    table = Table("workload", "figure", title=title, caption=caption if names != [LLMLAB] else None)
    for name in names:
        table.add_column(name, justify="right")
    for workload in (by_name()[name] for name in plan.workloads):
        for metric in workload.metrics:
            found = medians(samples, dtype, workload.name, metric.name)
            better = {peer: advantage(samples, dtype, workload.name, metric, peer) for peer in PEERS}
            cells = [_cell(found.get(name), better.get(name)) for name in names]
            table.add_row(workload.name, metric.name, *cells)
    return table


def _cell(value: float | None, better: float | None) -> str:
    if value is None:
        return ""
    shown = f"{value:.3g}" if abs(value) < 1000 else f"{value:,.0f}"
    return shown if better is None else f"{shown} ({better:.2f}x)"


def _target_table(judged: Sequence[Verdict]) -> Table:
    from rich.table import Table

    table = Table("dtype", "target", "wanted", "measured", "", title="targets")
    for verdict in judged:
        target = verdict.target
        wanted = f"{'at least' if target.at_least else 'at most'} {target.bound:g}"
        table.add_row(target.dtype, target.label, wanted, f"{verdict.value:.3f}", "met" if verdict.met else "MISSED")
    return table


def _agreement_table(agreement: dict[str, tuple[int, int]]) -> Table:
    from rich.table import Table

    table = Table("llmlab and", "rounds with equal greedy tokens", title="fp32 tokens of W1")
    for peer, (equal, compared) in agreement.items():
        table.add_row(peer, f"{equal} of {compared}")
    return table


# -- JSON -----------------------------------------------------------------------------------------------------


def report_object(plan: Plan, samples: Sequence[Sample], arguments: Sequence[str]) -> dict[str, Any]:
    """Everything: machine, versions, command line, plan, every sample, medians, verdicts, equality of tokens.

    ``arguments`` are those of the command line after ``llmlab``.
    """
    from llmlab.engine.info import versions

    return {
        "command": shlex.join(["llmlab", *arguments]),
        "finished": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": machine(),
        "versions": versions(),
        "plan": asdict(plan),
        "workloads": {name: by_name()[name].title for name in plan.workloads},
        "samples": [asdict(sample) for sample in samples],
        "medians": [
            {"dtype": dtype, "workload": name, "metric": metric.name, "unit": metric.unit}
            | {"medians": medians(samples, dtype, name, metric.name)}
            for dtype in plan.dtypes
            for name in plan.workloads
            for metric in by_name()[name].metrics
        ],
        "targets": [
            asdict(verdict.target) | {"value": verdict.value, "met": None if plan.quick else verdict.met}
            for verdict in verdicts(samples)
        ],
        "equal_tokens": {
            peer: {"equal": equal, "compared": compared} for peer, (equal, compared) in token_agreement(samples).items()
        },
    }


def machine() -> dict[str, Any]:
    """What the measurements were made on; ``load`` is the system's load average over the last minute."""
    import psutil

    from llmlab.models.hardware import cpu_name

    return {
        "cpu": cpu_name(),
        "physical_cores": psutil.cpu_count(logical=False),
        "logical_cores": psutil.cpu_count(),
        "memory_bytes": psutil.virtual_memory().total,
        "system": platform.platform(),
        "load": os.getloadavg()[0] if hasattr(os, "getloadavg") else None,
    }
