"""How long a step takes, as a sum over what is in it, fitted to recorded steps of a real engine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from math import isnan
from typing import Any, Protocol

import numpy as np

from llmlab.errors import InvalidParameter
from llmlab.planner.step_load import StepLoad, load_of
from llmlab.trace.trace import Trace

KNEES = (1, 4, 8, 16, 32, 64)
"""Tokens of a step from which each costs more: up to there its matrix products wait for the weights to be read."""

MIN_STEPS = 8
BUSY_NS = 1_000_000  # an engine that begins its next step within this time had not been idle
HELD_OUT = 4  # every fourth group of steps is not fitted to, but predicted
ROUNDS = 8
OUTLIER = 0.15  # relative errors beyond this weigh less: a busy machine delays some steps and hastens none


class StepModel(Protocol):
    """What a simulation needs: :class:`StepTimes` (fitted), or
    :class:`~llmlab.planner.data_sheet_times.DataSheetTimes` (computed)."""

    @property
    def source(self) -> str:
        """Where the times come from, in a few words."""

    def ns(self, load: StepLoad) -> int:
        """Nanoseconds from the beginning of a step to the beginning of the next."""


@dataclass(frozen=True, slots=True)
class StepTimes:
    """Nanoseconds that each thing in a step costs, added up.

    ``step``: any step. ``row``: each request in it. ``token``: each position computed, ``late_token`` what one beyond
    the first ``knee`` costs more. ``padded`` and ``pair`` are for each of :class:`StepLoad`'s counts.
    They were fitted to ``num_fitted`` steps; ``error`` is the median relative error on ``num_checked`` others.
    """

    source: str
    step: float
    row: float
    token: float
    late_token: float
    padded: float
    pair: float
    knee: int
    error: float = float("nan")
    num_fitted: int = 0
    num_checked: int = 0

    def ns(self, load: StepLoad) -> int:
        """Time of a step in nanoseconds."""
        late = load.num_tokens - self.knee
        return int(
            self.step
            + self.row * load.num_rows
            + self.token * load.num_tokens
            + (self.late_token * late if late > 0 else 0.0)
            + self.padded * load.padded
            + self.pair * load.pairs
        )

    def errors(self, loads: Sequence[StepLoad], times_ns: Sequence[int]) -> np.ndarray:
        """``(predicted - measured) / measured`` of steps."""
        measured = np.asarray(times_ns, dtype=float)
        return (np.array([self.ns(load) for load in loads], dtype=float) - measured) / measured

    @classmethod
    def fit(cls, trace: Trace, source: str = "") -> StepTimes:
        """Fitted to the steps of any recorded run, every fourth of which is kept to measure the error.

        Raises ``InvalidParameter`` for a simulated trace, for one without an engine's description, and for fewer than 8
        steps.
        """
        if trace.info is None or trace.info.simulated:
            raise InvalidParameter("step times are fitted to a trace that a real engine recorded: give one of those")
        loads, times = busy_steps(trace)
        info = trace.info
        name = source or f"fitted to {len(loads)} recorded steps of {info.model} ({info.dtype}) on {info.device}"
        return fit_steps(loads, times, [i // 2 for i in range(len(loads))], name)

    def to_json(self) -> dict[str, Any]:
        """The fields as JSON types; an error that was not measured is ``None``."""
        return asdict(self) | {"error": None if isnan(self.error) else self.error}

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> StepTimes:
        """The inverse of :meth:`to_json`. Raises ``InvalidParameter`` where fields are missing or are no numbers."""
        names = list(cls.__dataclass_fields__)
        values = values | ({"error": float("nan")} if values.get("error", 0) is None else {})
        numbers = {name: values.get(name) for name in names[1:]}
        if sorted(values) != sorted(names) or not all(isinstance(n, int | float) for n in numbers.values()):
            raise InvalidParameter("these are no step times: calibrate again with `llmlab bench --calibrate`")
        return cls(source=str(values["source"]), **numbers)


def busy_steps(trace: Trace) -> tuple[list[StepLoad], list[int]]:
    """Loads and nanoseconds of a trace's steps, from one beginning to the next while the engine was busy.

    What the engine does between two steps is part of what a step costs.
    """
    steps = trace.index.steps
    following = [step.t_ns for step in steps[1:]] + [0]
    ends = [
        after if 0 <= after - step.end_ns < BUSY_NS else step.end_ns
        for step, after in zip(steps, following, strict=True)
    ]
    return [load_of(step) for step in steps], [end - step.t_ns for end, step in zip(ends, steps, strict=True)]


def fit_steps(loads: Sequence[StepLoad], times_ns: Sequence[int], groups: Sequence[int], source: str) -> StepTimes:
    """Least squares on relative errors, no coefficient below 0, outliers weighed down.

    ``groups`` are numbers of sets of steps that are much alike: every fourth set is held out and gives ``error``.
    Raises ``InvalidParameter`` for fewer than 8 steps.
    """
    if len(loads) < MIN_STEPS:
        raise InvalidParameter(f"{len(loads)} steps are too few to fit step times to: record at least {MIN_STEPS}")
    times = np.asarray(times_ns, dtype=float)
    order = np.unique(np.asarray(groups), return_inverse=True)[1]
    held = order % HELD_OUT == HELD_OUT - 1
    candidates = [_fit_knee(loads, times, ~held, knee) for knee in KNEES]
    misfits = [
        _misfit(_design(loads, knee), found, times, ~held) for knee, found in zip(KNEES, candidates, strict=True)
    ]
    best = int(np.argmin(misfits))
    fitted = StepTimes(source, *map(float, candidates[best]), knee=KNEES[best], num_fitted=int((~held).sum()))
    checked = np.flatnonzero(held).tolist()
    if not checked:
        return fitted
    errors = fitted.errors([loads[i] for i in checked], times[checked])
    return StepTimes(**{**asdict(fitted), "error": float(np.median(np.abs(errors))), "num_checked": len(checked)})


def _design(loads: Sequence[StepLoad], knee: int) -> np.ndarray:
    """``(steps, 6)``: what each coefficient is multiplied by."""
    return np.array(
        [(1, x.num_rows, x.num_tokens, max(x.num_tokens - knee, 0), x.padded, x.pairs) for x in loads],
        dtype=float,
    )


def _fit_knee(loads: Sequence[StepLoad], times: np.ndarray, used: np.ndarray, knee: int) -> np.ndarray:
    design, measured = _design(loads, knee)[used], times[used]
    weights = 1 / measured
    found = np.zeros(design.shape[1])
    for _ in range(ROUNDS):
        found = _not_negative(design * weights[:, None], measured * weights)
        errors = np.abs(design @ found / measured - 1)
        weights = np.sqrt(np.minimum(1, OUTLIER / np.maximum(errors, 1e-9))) / measured
    return found


def _not_negative(design: np.ndarray, target: np.ndarray) -> np.ndarray:
    """Least squares without the terms that would be below 0, the most negative left out first."""
    scale = np.maximum(np.abs(design).max(axis=0), 1e-300)
    kept = np.abs(design).max(axis=0) > 0
    while kept.any():
        found = np.zeros(design.shape[1])
        found[kept] = np.linalg.lstsq(design[:, kept] / scale[kept], target, rcond=None)[0]
        if found.min() >= 0:
            return found / scale
        kept[int(found.argmin())] = False
    return np.zeros(design.shape[1])


def _misfit(design: np.ndarray, found: np.ndarray, times: np.ndarray, used: np.ndarray) -> float:
    errors = np.abs(design @ found / times - 1)[used]
    return float(np.minimum(errors, OUTLIER).mean())
