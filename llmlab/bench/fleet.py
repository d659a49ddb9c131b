"""Is the fleet simulator right? A real engine under a Poisson load beside the simulation of the same arrivals.

Step times are calibrated in a separate run before. Every answer has a fixed length, so that the replay is fair; the
load is a share of what the simulator says the engine can do.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from llmlab.planner.calibrate import Calibration, calibrate
from llmlab.planner.fleet import Arrival, Fleet, FleetResult, Workload, at_once, poisson, replay, simulate, uniform
from llmlab.planner.step_time import StepModel, StepTimes

if TYPE_CHECKING:
    from rich.table import Table

    from llmlab.lab import Lab
    from llmlab.trace.events import EngineInfo
    from llmlab.trace.trace import Trace

SECONDS, QUICK_SECONDS = 60.0, 12.0
LOAD = 0.7
PROMPT, OUTPUT = uniform(32, 192), uniform(16, 48)
MEAN_PROMPT, MEAN_OUTPUT = 112, 32
TARGET = 0.2
JUDGED = ("output tokens/s", "TTFT p50 ms", "TTFT p90 ms")


@dataclass(frozen=True)
class FleetFigures:
    """A measured run and its simulations: with step times calibrated before, and with those of the very run.

    The second says how much of an error is the step times' and how much the simulation's. ``speed``: requests of a
    larger simulation, and the seconds of one core it took.
    """

    calibration: Calibration
    workload: str
    trace: Trace
    simulated: FleetResult
    refitted: FleetResult
    speed: tuple[int, float] | None = None

    @property
    def table(self) -> pd.DataFrame:
        """Measured and simulated figures, and the relative error of the simulated ones."""
        measured = pd.Series(trace_figures(self.trace))
        columns = {
            "measured": measured,
            "simulated": pd.Series(result_figures(self.simulated)),
            "refitted": pd.Series(result_figures(self.refitted)),
        }
        return pd.DataFrame(columns).assign(error=lambda t: t.simulated / t.measured - 1)


def measure_fleet(
    *,
    model: str,
    device: str = "cpu",
    quick: bool = False,
    seconds: float | None = None,
    progress: Callable[[str], Any] = lambda text: None,
) -> FleetFigures:
    """Calibrate, serve for ``seconds`` (default 60, quick 12), simulate the same arrivals."""
    import llmlab

    progress("opening the model")
    with llmlab.open(model, device=device, threads=1, num_blocks=1024) as lab:
        calibration = calibrate(lab, quick=quick, progress=progress)
        workload = load_for(
            lab.engine.recorder.info, calibration.times, seconds or (QUICK_SECONDS if quick else SECONDS)
        )
        progress(f"serving {workload}")
        start = time.perf_counter()
        trace = serve(lab, workload, lambda t_s: time.sleep(max(0.0, start + t_s - time.perf_counter())))
    progress("simulating a larger run")
    speed = simulation_speed(calibration.times, 5_000 if quick else 100_000)
    return replace(figures_of(calibration, workload.text, trace), speed=speed)


def simulation_speed(times: StepModel, requests: int) -> tuple[int, float]:
    """Simulate so many requests of 100 to 200 prompt and 20 to 60 output tokens on four replicas; the CPU seconds."""
    fleet = Fleet(times, replicas=4, num_blocks=1_024, max_num_seqs=16)
    full = simulate(fleet, at_once(640, 150, 40)).summary.requests_per_s
    start = time.process_time()
    simulate(fleet, poisson(LOAD * full, requests, uniform(100, 200), uniform(20, 60)))
    return requests, time.process_time() - start


def figures_of(calibration: Calibration, workload: str, trace: Trace) -> FleetFigures:
    """Simulate what a trace recorded."""
    refitted = StepTimes.fit(trace, "fitted to the measured run itself")
    return FleetFigures(calibration, workload, trace, predict(trace, calibration.times), predict(trace, refitted))


def load_for(info: EngineInfo, times: StepModel, seconds: float) -> Workload:
    """Poisson arrivals for so long, at a share of the rate that the simulated engine can serve."""
    full = simulate(Fleet.like(info, times), at_once(10 * info.max_num_seqs, MEAN_PROMPT, MEAN_OUTPUT))
    rate = LOAD * full.summary.requests_per_s
    return poisson(rate, max(8, round(rate * seconds)), PROMPT, OUTPUT)


def serve(lab: Lab, workload: Workload, wait_until: Callable[[float], None]) -> Trace:
    """Send a workload to a real engine and return what it recorded.

    ``wait_until(t)`` returns ``t`` seconds after the beginning. Prompts are made of token ids that are in the
    vocabulary; answers have the workload's lengths.
    """
    lab.engine.recorder.clear()
    runs = []
    for arrival in workload:
        wait_until(arrival.t_ns / 1e9)
        ids = _known_ids(arrival, lab.engine.capacity.vocab_size)
        runs.append(lab.submit(ids, max_tokens=len(arrival.output), ignore_eos=True))
    for run in runs:
        run.wait()
    return lab.trace.for_request(*(run.id for run in runs))


def _known_ids(arrival: Arrival, vocabulary: int) -> list[int]:
    """A prompt of the same length, of ids that spread over the vocabulary and begin differently each time."""
    return [(token * 7919) % vocabulary for token in arrival.prompt]


def predict(trace: Trace, times: StepModel) -> FleetResult:
    """Simulate the arrivals, prompts and answers of a recorded run."""
    return simulate(Fleet.like(trace.info, times), replay(trace))


def trace_figures(trace: Trace) -> dict[str, float]:
    """Figures of a recorded run."""
    table = trace.requests
    busy = float(trace.steps.total_ms.sum()) / 1e3
    return _figures(table, float(table.finished_s.max() - table.submitted_s.min()), busy)


def result_figures(result: FleetResult) -> dict[str, float]:
    """The same figures of a simulated one."""
    return _figures(result.requests, result.seconds, float(result.replicas.busy_s.sum()))


def _figures(table: pd.DataFrame, seconds: float, busy: float) -> dict[str, float]:
    return {
        "requests": float(len(table)),
        "seconds": seconds,
        "output tokens/s": float(table.num_output_tokens.sum()) / seconds,
        "TTFT p50 ms": float(np.percentile(table.ttft_ms, 50)),
        "TTFT p90 ms": float(np.percentile(table.ttft_ms, 90)),
        "ITL p50 ms": float(table.itl_ms.median()),
        "ITL p90 ms": float(table.itl_ms.quantile(0.9)),
        "engine busy s": busy,
    }


# -- reports --------------------------------------------------------------------------------------------------


def fleet_table(figures: FleetFigures) -> Table:
    """A row for each figure; those with a target say whether it is met."""
    from rich.table import Table

    title = "one engine, measured and simulated"
    table = Table("", "measured", "SIMULATED", "error", "with the run's own step times", "", title=title)
    for name, row in figures.table.iterrows():
        verdict = ("met" if abs(row.error) <= TARGET else "MISSED") if name in JUDGED else ""
        cells = [f"{row[column]:,.4g}" for column in ("measured", "simulated")]
        table.add_row(str(name), *cells, f"{row.error:+.1%}", f"{row.refitted:,.4g}", verdict)
    times = figures.calibration.times
    table.caption = (
        f"{figures.workload}; step times {times.source}, median error {times.error:.1%} on held-out steps; "
        f"target: within {TARGET:.0%}"
    )
    if figures.speed is not None:
        requests, seconds = figures.speed
        table.caption += f"; {requests:,} requests of four replicas simulated in {seconds:.1f} s on one core"
    return table


def fleet_object(figures: FleetFigures) -> dict[str, Any]:
    """All of it as JSON types."""
    return {
        "workload": figures.workload,
        "step_times": figures.calibration.times.to_json(),
        "figures": figures.table.to_dict(orient="index"),
        "simulated_requests_and_cpu_s": figures.speed,
    }


def calibration_tables(calibration: Calibration) -> list[Table]:
    """The coefficients, and measured beside predicted times of each cell."""
    from rich.table import Table

    times = calibration.times
    sums = Table("", "microseconds", title="what is in a step, and what it costs")
    for name, text in COEFFICIENTS.items():
        sums.add_row(text.format(knee=times.knee), f"{getattr(times, name) / 1e3:,.4g}")
    sums.caption = f"{times.source}: {times.num_fitted} steps fitted to, {times.num_checked} predicted"
    cells = Table("requests x context", "steps", "rows", "tokens", "measured ms", "predicted ms", "error", "")
    for row in calibration.table.itertuples():
        counts = [f"{row.num_rows:g}", f"{row.num_tokens:g}"]
        numbers = [f"{row.measured_ms:.1f}", f"{row.predicted_ms:.1f}", f"{row.error:+.0%}"]
        cells.add_row(row.cell, row.kind, *counts, *numbers, "held out" if row.held_out else "")
    cells.caption = f"medians of each cell; median error of held-out steps: {times.error:.1%}"
    return [sums, cells]


COEFFICIENTS = {
    "step": "a step",
    "row": "each request in it",
    "token": "each token computed",
    "late_token": "each token after the first {knee}, more",
    "padded": "each position decoding rows read (padded)",
    "pair": "each query and key of prefill",
}


def calibration_object(calibration: Calibration) -> dict[str, Any]:
    """All of it as JSON types."""
    return {
        "step_times": calibration.times.to_json(),
        "steps": calibration.frame.to_dict(orient="records"),
    }
