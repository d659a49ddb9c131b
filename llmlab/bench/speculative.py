"""What speculation gains: output tokens per verification and wall-clock time beside plain decoding, in turns.

Every proposer has a lab of its own, on the same model, one thread each; only one serves at a time. An answer ends where
the model ends it, so that speeds are output tokens per second.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from statistics import median
from time import perf_counter
from typing import TYPE_CHECKING, Any

from llmlab.bench.measure import turns
from llmlab.bench.speculative_prompts import KINDS, Kind
from llmlab.engine.speculative.config import Speculation
from llmlab.errors import InvalidParameter, LabError

if TYPE_CHECKING:
    from rich.table import Table

    from llmlab.lab import Lab

PLAIN = "off"
BATCHES, QUICK_BATCHES = (1, 4, 16), (1,)
NEW_TOKENS, QUICK_NEW_TOKENS = 96, 16


@dataclass(slots=True)
class SpeculationFigures:
    """One proposer on one kind of prompt, ``batch`` at once and at least all of the kind, a figure a round.

    ``seconds`` from submission to the last token, and the ``tokens`` of all outputs; ``lengths``: output tokens per
    verification, NaN without one; ``accepted`` and ``rejected`` draft tokens.
    """

    proposer: str
    kind: str
    batch: int
    seconds: list[float] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)
    lengths: list[float] = field(default_factory=list)
    accepted: int = 0
    rejected: int = 0

    @property
    def speeds(self) -> list[float]:
        """Output tokens per second."""
        return [tokens / seconds for tokens, seconds in zip(self.tokens, self.seconds, strict=True)]

    @property
    def length(self) -> float:
        """Mean acceptance length over the rounds that verified anything."""
        known = [value for value in self.lengths if not math.isnan(value)]
        return sum(known) / len(known) if known else math.nan


@dataclass(slots=True)
class SpeculationResult:
    """All figures, and why proposers that were asked for are missing."""

    figures: list[SpeculationFigures]
    missing: dict[str, str]

    def speed_up(self, figures: SpeculationFigures) -> float:
        """This proposer's speed over the plain one: the median over rounds, in each of which they took turns."""
        plain = next(f for f in self.figures if (f.proposer, f.kind, f.batch) == (PLAIN, figures.kind, figures.batch))
        return median(mine / plainly for mine, plainly in zip(figures.speeds, plain.speeds, strict=True))


def measure_speculation(
    rounds: int,
    *,
    model: str,
    device: str = "cpu",
    dtype: str = "auto",
    quick: bool = False,
    batches: Sequence[int] = BATCHES,
    draft_model: str | None = None,
    progress: Callable[[str], Any] = lambda text: None,
) -> SpeculationResult:
    """Serve every kind of prompt with every proposer, ``batches`` at once; the first round warms up and is not counted.

    Raises ``InvalidParameter`` for a batch that is not between 1 and the largest of :data:`BATCHES`.
    """
    if not batches or not all(1 <= batch <= max(BATCHES) for batch in batches):
        raise InvalidParameter(f"batches={tuple(batches)} must be numbers from 1 to {max(BATCHES)}")
    with ExitStack() as stack:
        labs, missing = _open(stack, _speculations(draft_model), progress, model=model, device=device, dtype=dtype)
        cells = [(kind, batch) for kind in KINDS for batch in (QUICK_BATCHES if quick else batches)]
        figures = {
            (name, kind.name, batch): SpeculationFigures(name, kind.name, batch)
            for kind, batch in cells
            for name in labs
        }
        for number in range(rounds + 1):
            for kind, batch in cells:
                for name in turns(list(labs), number):
                    progress(f"round {number} of {rounds}: {kind.name}, batch {batch}, {name}")
                    tokens = QUICK_NEW_TOKENS if quick or not number else NEW_TOKENS
                    _serve(labs[name], kind, batch, tokens, figures[name, kind.name, batch] if number else None)
        return SpeculationResult(list(figures.values()), missing)


def _speculations(draft_model: str | None) -> dict[str, Speculation | None]:
    found = {PLAIN: None} | {name: Speculation(name) for name in ("ngram", "early-exit", "head")}
    return found | ({"draft-model": Speculation("draft-model", model=draft_model)} if draft_model else {})


def _open(
    stack: ExitStack, wanted: dict[str, Speculation | None], progress: Callable[[str], Any], **where: str
) -> tuple[dict[str, Lab], dict[str, str]]:
    import llmlab

    labs, missing = {}, {}
    for name, speculation in wanted.items():
        progress(f"opening {name}")
        try:
            lab = llmlab.open(
                threads=1, prefix_cache="off", max_num_seqs=max(BATCHES), speculative=speculation, **where
            )
        except LabError as error:
            if speculation is None:
                raise
            missing[name] = str(error)
            continue
        labs[name] = stack.enter_context(lab)
    return labs, missing


def _serve(lab: Lab, kind: Kind, batch: int, new_tokens: int, figures: SpeculationFigures | None) -> None:
    params = {"max_tokens": new_tokens, "temperature": kind.temperature}
    prompts = kind.take(max(batch, len(kind.prompts)))
    start, runs = perf_counter(), []
    for first in range(0, len(prompts), batch):
        together = [lab.submit(prompt, **params) for prompt in prompts[first : first + batch]]
        runs += [run.wait() for run in together]
    seconds = perf_counter() - start
    if figures is None:
        return
    figures.seconds.append(seconds)
    figures.tokens.append(sum(len(run.token_ids) for run in runs))
    trace = lab.trace.for_request(*(run.id for run in runs))
    figures.lengths.append(trace.drafts.attrs["summary"]["mean_acceptance_length"])
    figures.accepted += sum(run.usage.get("accepted_draft_tokens", 0) for run in runs)
    figures.rejected += sum(run.usage.get("rejected_draft_tokens", 0) for run in runs)


# -- reports --------------------------------------------------------------------------------------------------


def speculation_table(result: SpeculationResult) -> Table:
    """A row for each kind and batch size, a column for each proposer: acceptance length, speed beside plain."""
    from rich.table import Table

    names = list(dict.fromkeys(f.proposer for f in result.figures if f.proposer != PLAIN))
    table = Table(title="speculation: tokens per verification, speed (plain decoding = 1)", title_justify="left")
    table.add_column("prompts")
    table.add_column("batch", justify="right")
    for name in names:
        table.add_column(name, justify="right")
    cells = {(f.kind, f.batch, f.proposer): f for f in result.figures}
    for kind, batch in dict.fromkeys((f.kind, f.batch) for f in result.figures):
        table.add_row(kind, str(batch), *(_cell(result, cells[kind, batch, name]) for name in names))
    table.caption = "; ".join(f"{name} is missing: {why}" for name, why in result.missing.items()) or None
    return table


def _cell(result: SpeculationResult, figures: SpeculationFigures) -> str:
    length = "-" if math.isnan(figures.length) else f"{figures.length:.2f}"
    return f"{length}, {result.speed_up(figures):.2f}x"


def speculation_object(result: SpeculationResult) -> dict[str, Any]:
    """All measurements as JSON types."""
    return {"figures": list(map(_object, result.figures, _speeds(result))), "missing": result.missing}


def _speeds(result: SpeculationResult) -> Iterable[float]:
    return (result.speed_up(figures) for figures in result.figures)


def _object(figures: SpeculationFigures, speed: float) -> dict[str, Any]:
    return {
        "proposer": figures.proposer,
        "prompts": figures.kind,
        "batch": figures.batch,
        "mean_acceptance_length": None if math.isnan(figures.length) else figures.length,
        "speed_beside_plain": speed,
        "seconds": figures.seconds,
        "output_tokens": figures.tokens,
        "accepted_draft_tokens": figures.accepted,
        "rejected_draft_tokens": figures.rejected,
    }
