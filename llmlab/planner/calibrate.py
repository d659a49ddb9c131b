"""A short measurement of the real engine on this machine, to which step times are fitted."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from llmlab.errors import InvalidParameter, LabError
from llmlab.planner.step_load import StepLoad
from llmlab.planner.step_time import HELD_OUT, StepTimes, busy_steps, fit_steps

if TYPE_CHECKING:
    from llmlab.lab import Lab
    from llmlab.trace.events import EngineInfo
    from llmlab.trace.trace import Trace

BATCHES, CONTEXTS = (1, 2, 4, 8), (16, 64, 160, 320, 640)
QUICK_BATCHES, QUICK_CONTEXTS = (1, 3, 8), (16, 96, 256)
DECODE_STEPS = 6
FORMAT = 1


@dataclass(frozen=True, slots=True)
class Cell:
    """``batch`` requests of ``context`` prompt tokens each, prefilled and then decoded for a few steps."""

    batch: int
    context: int

    def __str__(self) -> str:
        return f"{self.batch} x {self.context}"


@dataclass(frozen=True)
class Calibration:
    """``times``, and each measured step beside what they predict: ``frame`` has a row a step.

    Columns: ``cell``, ``kind`` (``prefill`` if any prompt was computed, else ``decode``), ``num_rows``, ``num_tokens``,
    ``measured_ms``, ``predicted_ms``, ``error`` (relative), ``held_out`` (not fitted to).
    """

    times: StepTimes
    frame: pd.DataFrame
    info: EngineInfo

    @property
    def table(self) -> pd.DataFrame:
        """Medians of each cell's steps of one kind."""
        by = self.frame.groupby(["cell", "kind", "held_out"], sort=False)
        table = by[["num_rows", "num_tokens", "measured_ms", "predicted_ms"]].median()
        table["error"] = table.predicted_ms / table.measured_ms - 1
        return table.reset_index()


def calibrate(
    lab: Lab, *, quick: bool = False, progress: Callable[[str], Any] = lambda text: None, seed: int = 0
) -> Calibration:
    """Measure prefill and decode steps over a grid of batches and contexts, and fit step times to them.

    The lab's own engine must be idle meanwhile: a second one steps on its model. About 20 seconds on a quiet CPU for
    the default model, ``quick`` a quarter of that. Raises ``InvalidParameter`` when the pool is too small for a grid.
    """
    cells = list(_cells(lab, quick))
    Random(seed).shuffle(cells)  # what is held out is then spread over the grid
    engine = _engine(lab)
    _serve(engine, cells[0], seed)  # the first steps of all also allocate
    engine.recorder.clear()
    numbers: list[int] = []
    for place, cell in enumerate(cells):
        progress(f"measuring steps of {cell} tokens ({place + 1} of {len(cells)})")
        before = engine.journal.step
        _serve(engine, cell, seed + place)
        numbers += [place] * (engine.journal.step - before)
    trace = engine.trace
    loads, times_ns = busy_steps(trace)
    times = fit_steps(loads, times_ns, numbers, _source(trace.info))
    return Calibration(times, _frame(trace, cells, numbers, loads, times_ns, times), trace.info)


def _source(info: EngineInfo) -> str:
    return f"calibrated on {info.model} ({info.dtype}) on {info.device}"


def _cells(lab: Lab, quick: bool) -> Iterator[Cell]:
    config, capacity = lab.engine.scheduler.config, lab.engine.capacity
    batches, contexts = (QUICK_BATCHES, QUICK_CONTEXTS) if quick else (BATCHES, CONTEXTS)
    sizes = sorted({min(batch, config.max_num_seqs) for batch in (*batches, config.max_num_seqs)})
    found = [
        Cell(batch, context)
        for batch in sizes
        for context in contexts
        if context + DECODE_STEPS < capacity.max_model_len
        and batch * -(-(context + DECODE_STEPS) // capacity.block_size) <= capacity.num_blocks
    ]
    if len(found) < HELD_OUT:
        raise InvalidParameter(f"num_blocks={capacity.num_blocks} is too small to measure with: open with more blocks")
    yield from found


def _engine(lab: Lab):
    from llmlab.engine.engine import Engine
    from llmlab.trace.recorder import Recorder

    return Engine(
        lab.engine.runner,
        lab.tokenizer,
        config=lab.engine.scheduler.config,
        prefix_cache=False,
        recorder=Recorder(),
    )


def _serve(engine, cell: Cell, seed: int) -> None:
    from llmlab.engine.params import SamplingParams

    draw, vocabulary = Random(seed), engine.capacity.vocab_size
    params = SamplingParams(max_tokens=DECODE_STEPS + 1, ignore_eos=True)
    for _ in range(cell.batch):
        engine.submit([draw.randrange(vocabulary) for _ in range(cell.context)], params)
    engine.run_until_idle()


def _frame(
    trace: Trace,
    cells: Sequence[Cell],
    numbers: Sequence[int],
    loads: Sequence[StepLoad],
    times_ns: Sequence[int],
    times: StepTimes,
) -> pd.DataFrame:
    measured = np.asarray(times_ns) / 1e6
    predicted = np.array([times.ns(load) for load in loads]) / 1e6
    prefill = [any(row.is_prefill for row in step.rows) for step in trace.index.steps]
    return pd.DataFrame(
        {
            "cell": [str(cells[number]) for number in numbers],
            "kind": np.where(prefill, "prefill", "decode"),
            "num_rows": [load.num_rows for load in loads],
            "num_tokens": [load.num_tokens for load in loads],
            "measured_ms": measured,
            "predicted_ms": predicted,
            "error": predicted / measured - 1,
            "held_out": [number % HELD_OUT == HELD_OUT - 1 for number in numbers],
        }
    )


# -- files ----------------------------------------------------------------------------------------------------


def default_path(info: EngineInfo) -> Path:
    """Where this machine's step times of a model are kept: in the user's cache."""
    from llmlab.models.cache import cache_dir

    name = "-".join((Path(info.model).name, info.dtype, info.device, info.quantized))
    return cache_dir() / "step-times" / f"{re.sub('[^A-Za-z0-9.-]+', '-', name)}.json"


def save_step_times(times: StepTimes, path: str | os.PathLike) -> Path:
    """Write step times as JSON, which :func:`load_step_times` reads. Raises ``LabError`` where that is not possible."""
    path = Path(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps({"format": FORMAT, "step_times": times.to_json()}, indent=1) + "\n", "utf-8")
    except OSError as error:
        raise LabError(f"the step times were not written to {path}: {error.strerror or error}") from error
    return path


def load_step_times(path: str | os.PathLike) -> StepTimes:
    """Step times that were saved. Raises ``InvalidParameter`` when the file is missing or holds something else."""
    try:
        values = json.loads(Path(path).read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise InvalidParameter(f"{path} cannot be read ({error}): calibrate with `llmlab bench --calibrate`") from error
    if not isinstance(values, dict) or values.get("format") != FORMAT or not isinstance(values.get("step_times"), dict):
        raise InvalidParameter(f"{path} holds no step times: calibrate again with `llmlab bench --calibrate`")
    return StepTimes.from_json(values["step_times"])
