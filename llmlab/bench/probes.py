"""What looking inside costs: decode steps with and without a captured row, in turns on one lab."""

from __future__ import annotations

from dataclasses import dataclass, field
from statistics import median
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.table import Table

    from llmlab.lab import Lab

PROMPT = "Explain what a key and a value are in attention."
NEW_TOKENS = 64
LAYER = 15
ONE_LAYER_TARGET = 0.15


@dataclass(slots=True)
class ProbeFigures:
    """Median milliseconds of a decode step in each round: nothing asked for, and each kind of capture."""

    plain: list[float] = field(default_factory=list)
    captured: dict[str, list[float]] = field(default_factory=dict)

    def cost(self, name: str) -> float:
        """Share of a plain step that a capture adds: the median over rounds of differences within a round."""
        return median((b - a) / a for a, b in zip(self.plain, self.captured[name], strict=True))


def measure_probes(rounds: int, *, model: str, device: str = "cpu", dtype: str = "auto") -> ProbeFigures:
    """One request at a time, greedy, one thread. The first round warms up and is not counted."""
    from llmlab.opening import open

    figures = ProbeFigures()
    with open(model, device=device, dtype=dtype, threads=1) as lab:
        for i in range(rounds + 1):
            _round(lab, ProbeFigures() if i == 0 else figures)
    return figures


def _round(lab: Lab, figures: ProbeFigures) -> None:
    figures.plain.append(_step_ms(lab, None))
    for name, capture in _captures(lab).items():
        figures.captured.setdefault(name, []).append(_step_ms(lab, capture))


def _captures(lab: Lab) -> dict[str, Any]:
    from llmlab.probes.capture import Capture

    layer = min(LAYER, lab.engine.capacity.num_layers - 1)
    return {
        "attention, one layer": Capture(attention=True, layers=[layer]),
        "hidden states, one layer": Capture(hidden=True, layers=[layer]),
        "logit lens, one layer": Capture(lens=True, layers=[layer]),
        "attention, all layers": Capture(attention=True),
    }


def _step_ms(lab: Lab, capture: Any) -> float:
    run = lab.ask(PROMPT, max_tokens=NEW_TOKENS, ignore_eos=True, capture=capture)
    steps = run.trace.steps
    return float(steps.total_ms[steps.num_prefill_tokens == 0].median())


def probe_table(figures: ProbeFigures) -> Table:
    """What each kind of capture adds to a decode step."""
    from rich.table import Table

    table = Table(title="probes: one request, one thread, medians of decode steps", title_justify="left")
    for column in ("captured", "step", "added", "target"):
        table.add_column(column, justify="left" if column == "captured" else "right")
    table.add_row("nothing", f"{median(figures.plain):.1f} ms", "", "")
    for name, values in figures.captured.items():
        target = ""
        if name == "attention, one layer":
            target = f"< {ONE_LAYER_TARGET:.0%}: {'met' if figures.cost(name) < ONE_LAYER_TARGET else 'missed'}"
        table.add_row(name, f"{median(values):.1f} ms", f"{figures.cost(name):+.1%}", target)
    return table


def probe_object(figures: ProbeFigures) -> dict[str, Any]:
    """All measurements as JSON types."""
    costs = {name: figures.cost(name) for name in figures.captured}
    return {"plain_ms": figures.plain, "captured_ms": figures.captured, "added": costs}
