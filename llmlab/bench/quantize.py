"""What rounding weights costs and gains: bytes, perplexity, equal tokens, and speed beside packed bfloat16, in turns.

Every format has a lab of its own on the same model, one thread each; only one works at a time. Speeds are ratios within
a round.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from statistics import mean, median
from time import perf_counter
from typing import TYPE_CHECKING, Any

from llmlab.bench.linear_pass import ROWS, passes_ms
from llmlab.bench.measure import turns
from llmlab.bench.quality import fixed_text, perplexity, rounded_before, same_share, same_tokens
from llmlab.bench.speculative_prompts import KINDS

if TYPE_CHECKING:
    from rich.table import Table

    from llmlab.lab import Lab

BASE, TARGET = "bf16", "int4"
FORMATS = {
    "fp32": {"dtype": "float32"},
    BASE: {"dtype": "bfloat16"},
    "int8": {"dtype": "bfloat16", "quantize": "int8"},
    TARGET: {"dtype": "bfloat16", "quantize": "int4"},
}
BATCHES = (1, 4, 16)
PROMPT_TOKENS, PREFILL_TOKENS = 32, 512
SPEED_UP = 1.5  # what int4 is to gain at batch 1


@dataclass(frozen=True, slots=True)
class Effort:
    """How much is measured: greedy answers and their tokens, decode steps per speed, rows of a linear pass."""

    answers: int
    answer_tokens: int
    decode_tokens: int
    rows: tuple[int, ...]


FULL = Effort(answers=12, answer_tokens=64, decode_tokens=32, rows=ROWS)
QUICK = Effort(answers=2, answer_tokens=12, decode_tokens=6, rows=(1, 16))


@dataclass(slots=True)
class FormatFigures:
    """One format. ``weights``: bytes of all weights; ``linear``: of the decoder's linear layers.

    ``step_s``: by batch, median seconds of a decode step in each round; ``ttft_s``: of a 512-token prompt, each round.
    """

    name: str
    weights: int
    linear: int
    perplexity: float
    answers: list[list[int]]
    step_s: dict[int, list[float]] = field(default_factory=lambda: {batch: [] for batch in BATCHES})
    ttft_s: list[float] = field(default_factory=list)


@dataclass(slots=True)
class QuantizationResult:
    """Figures by format, and milliseconds of a pass through the linear layers by rows and way.

    ``before``: the format the weights had in the model's file, where that is known.
    """

    figures: dict[str, FormatFigures]
    passes: dict[int, dict[str, float]]
    before: str = ""

    def speed(self, name: str, batch: int) -> float:
        """Decode tokens per second over those of packed bfloat16: the median over rounds."""
        base, own = self.figures[BASE].step_s[batch], self.figures[name].step_s[batch]
        return median(b / a for a, b in zip(own, base, strict=True))

    def ttft(self, name: str) -> float:
        """Time to the first token over that of packed bfloat16: the median over rounds."""
        base, own = self.figures[BASE].ttft_s, self.figures[name].ttft_s
        return median(a / b for a, b in zip(own, base, strict=True))

    def same(self, name: str) -> float:
        """Share of output tokens equal to packed bfloat16's, position by position."""
        return same_share(self.figures[name].answers, self.figures[BASE].answers)

    def first_difference(self, name: str) -> float:
        """Mean number of output tokens before an answer differs from packed bfloat16's."""
        pairs = zip(self.figures[name].answers, self.figures[BASE].answers, strict=True)
        return mean(same_tokens(*pair) for pair in pairs)


def measure_quantization(
    rounds: int, *, model: str, quick: bool = False, progress: Callable[[str], Any] = lambda text: None
) -> QuantizationResult:
    """Measure every format of :data:`FORMATS` on the CPU; the first round warms up and is not counted."""
    effort = QUICK if quick else FULL
    with ExitStack() as stack:
        labs = {}
        for name, options in FORMATS.items():
            progress(f"opening {name}")
            labs[name] = stack.enter_context(_open(model, options))
        figures = {name: _quality(name, lab, effort, progress) for name, lab in labs.items()}
        for number in range(rounds + 1):
            for name in turns(list(labs), number):
                progress(f"round {number} of {rounds}: speed of {name}")
                _speed(labs[name], effort, number, figures[name] if number else None)
        progress("passes through the linear layers")
        models = {name: labs[name].loaded.model for name in (BASE, "int8", "int4")}
        return QuantizationResult(figures, passes_ms(models, effort.rows, max(rounds, 1)), rounded_before(model))


def _open(model: str, options: dict[str, str]) -> Lab:
    import llmlab

    blocks = -(-max(BATCHES) * (PROMPT_TOKENS + FULL.decode_tokens) // 16) + 128
    return llmlab.open(
        model, device="cpu", threads=1, prefix_cache="off", max_num_seqs=max(BATCHES), num_blocks=blocks, **options
    )


def _quality(name: str, lab: Lab, effort: Effort, progress: Callable[[str], Any]) -> FormatFigures:
    from llmlab.models.quantize import linear_bytes, resident_bytes

    progress(f"quality of {name}")
    model = lab.loaded.model
    prompts = [prompt for kind in KINDS if not kind.temperature for prompt in kind.prompts][: effort.answers]
    answers = [lab.ask(prompt, max_tokens=effort.answer_tokens).token_ids for prompt in prompts]
    return FormatFigures(name, resident_bytes(model), linear_bytes(model), perplexity(lab), answers)


def _speed(lab: Lab, effort: Effort, number: int, figures: FormatFigures | None) -> None:
    ids = lab.tokenizer.encode(fixed_text(), add_special_tokens=False)
    steps = {batch: _decode_step_s(lab, ids, batch, effort.decode_tokens) for batch in BATCHES}
    start = perf_counter()
    lab.ask(ids[number : number + PREFILL_TOKENS], max_tokens=1)
    first = perf_counter() - start
    if figures is not None:
        figures.ttft_s.append(first)
        for batch, seconds in steps.items():
            figures.step_s[batch].append(seconds)


def _decode_step_s(lab: Lab, ids: list[int], batch: int, new_tokens: int) -> float:
    """Median seconds of the steps in which ``batch`` requests decode together."""
    before = len(lab.trace.steps)
    prompts = [ids[PROMPT_TOKENS * i : PROMPT_TOKENS * (i + 1)] for i in range(batch)]
    lab.engine.pause()  # so that they begin in one step
    runs = [lab.submit(prompt, max_tokens=new_tokens, ignore_eos=True) for prompt in prompts]
    lab.engine.resume()
    for run in runs:
        run.wait()
    steps = lab.trace.steps.iloc[before:]
    return float(steps.total_ms[(steps.num_prefill_tokens == 0) & (steps.num_rows == batch)].median()) / 1e3


# -- reports --------------------------------------------------------------------------------------------------


def quantization_table(result: QuantizationResult) -> Table:
    """A row for each format: bytes, quality, and speed beside packed bfloat16."""
    from rich.table import Table

    title = f"weights on integers, one thread; speed by batch, and TTFT of {PREFILL_TOKENS} tokens, beside {BASE}"
    table = Table(title=title, title_justify="left")
    table.add_column("format")
    columns = ("weights", "linear", "perplexity", "same", "differ at")
    for column in (*columns, *(f"batch {batch}" for batch in BATCHES), "TTFT"):
        table.add_column(column, justify="right")
    for name, figures in result.figures.items():
        table.add_row(
            name,
            f"{figures.weights / 1e6:.0f} MB",
            f"{figures.linear / 1e6:.0f} MB",
            f"{figures.perplexity:.2f}",
            f"{result.same(name):.0%}",
            f"{result.first_difference(name):.1f}",
            *(f"{result.speed(name, batch):.2f}x" for batch in BATCHES),
            f"{result.ttft(name):.2f}x",
        )
    gained = result.speed(TARGET, 1)
    target = f"{TARGET} at batch 1: at least {SPEED_UP}x {BASE}: {'met' if gained >= SPEED_UP else 'missed'}"
    table.caption = f"{target}. {_about_before(result.before)}".strip()
    return table


def _about_before(before: str) -> str:
    levels = "int4 finds their levels again and shows bytes and speed, not what four bits cost"
    return f"This model's file held {before} weights: {levels}." if before.startswith("Q4") else ""


def pass_table(result: QuantizationResult) -> Table:
    """Time of a pass through the linear layers beside packed bfloat16's: a row for each number of rows."""
    from rich.table import Table

    names = [name for name in next(iter(result.passes.values())) if name != BASE]
    table = Table(title="one pass through the linear layers: time beside packed bf16", title_justify="left")
    for column in ("rows", BASE, *names):
        table.add_column(column, justify="right")
    for rows, times in result.passes.items():
        ratios = (f"{times[name] / times[BASE]:.2f}x" for name in names)
        table.add_row(str(rows), f"{times[BASE]:.1f} ms", *ratios)
    return table


def quantization_object(result: QuantizationResult) -> dict[str, Any]:
    """All measurements as JSON types."""
    return {
        "formats": [_object(result, figures) for figures in result.figures.values()],
        "weights_in_file": result.before or None,
        "linear_pass_ms": {str(rows): times for rows, times in result.passes.items()},
    }


def _object(result: QuantizationResult, figures: FormatFigures) -> dict[str, Any]:
    name = figures.name
    return {
        "format": name,
        "weight_bytes": figures.weights,
        "linear_bytes": figures.linear,
        "perplexity": figures.perplexity,
        "answers": len(figures.answers),
        "same_tokens": result.same(name),
        "mean_first_difference": result.first_difference(name),
        "step_s": {str(batch): seconds for batch, seconds in figures.step_s.items()},
        "speed_beside_bf16": {str(batch): result.speed(name, batch) for batch in BATCHES},
        "ttft_s": figures.ttft_s,
        "ttft_beside_bf16": result.ttft(name),
    }
