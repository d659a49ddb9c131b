"""Who ran in which step, with how many tokens, and why the others waited."""

from __future__ import annotations

import numpy as np
import pandas as pd

from llmlab.errors import InvalidParameter
from llmlab.trace.trace import Trace
from llmlab.views.glyphs import visible
from llmlab.views.lanes import Lanes, read_lanes, story
from llmlab.views.lanes_scene import LEFT, MAX_ROWS, draw_lanes
from llmlab.views.missing import missing_view
from llmlab.views.names import Names
from llmlab.views.phrases import count
from llmlab.views.pool import NOTHING
from llmlab.views.scene import Scene
from llmlab.views.view import View

COLUMNS = ("step", "request_id", "did", "num_tokens", "reason", "by", "step_ms")
COLUMN = 17  # pixels in which a chunk's number of tokens fits
MAX_STEPS = 400
MAX_SPAN = 1_000_000  # steps that are counted one by one
TITLE = "Batch lanes"


def batch_lanes(
    trace: Trace, *, first_step: int | None = None, last_step: int | None = None, width: float = 960
) -> View:
    """One lane a request, in order of arrival; one column a step: prefill with its tokens, decode, waiting and why.

    Beneath, each step's tokens against its budget. Of a long trace the window with most waiting and preempting is
    shown, or the last one when nothing waited; ``first_step`` and ``last_step`` choose another, of at most 400 steps.

    Raises ``InvalidParameter`` for steps outside the trace.
    """
    if not trace.index.steps:
        return missing_view("batch_lanes", TITLE, NOTHING, COLUMNS, width)
    first, last, note = _window(trace, first_step, last_step, max(8, int((width - LEFT) // COLUMN)))
    lanes = read_lanes(trace, first, last)
    marks, height = draw_lanes(trace, lanes, Names(trace.index), width)
    frame = _frame(trace, lanes)
    alt = _alt(lanes, frame)
    stories = [f"{visible(i)}: {story(line, lanes.ends.get(i))}" for i, line in lanes.cells.items()]
    text = "\n".join([alt, *stories, *_swapped(lanes)])
    title = f"{TITLE}: steps {first} to {last}"
    return View("batch_lanes", title, alt, text, Scene(width, height, tuple(marks)), frame, _notes(trace, lanes, note))


def _window(trace: Trace, first: int | None, last: int | None, room: int) -> tuple[int, int, str]:
    """First and last step to draw, and a sentence about those that are not."""
    numbers = trace.index.step_numbers
    low, high = int(numbers[0]), int(numbers[-1])
    for name, value in (("first_step", first), ("last_step", last)):
        if value is not None and not low <= value <= high:
            raise InvalidParameter(f"{name}={value!r} is not in the trace: its steps are {low} to {high}")
    if first is not None and last is not None and first > last:
        raise InvalidParameter(f"first_step={first!r} is after last_step={last!r}: swap them")
    if first is None and last is None:
        return _telling_window(trace, low, high, room)
    if first is None:
        first = max(low, int(last) - room + 1)
    end = min(high, first + room - 1) if last is None else int(last)
    end = min(end, first + MAX_STEPS - 1)
    outside = first > low or end < high
    return int(first), end, f"The trace has steps {low} to {high}." if outside else ""


def _telling_window(trace: Trace, low: int, high: int, room: int) -> tuple[int, int, str]:
    """The ``room`` steps in which most waited and were preempted; the last ones when nobody did."""
    if high - low < room:
        return low, high, ""
    table = trace.schedule
    if high - low > MAX_SPAN:  # step numbers far apart: what a file claims
        return high - room + 1, high, f"The last {room} steps of {low} to {high}."
    held = table["action"].isin(["waited", "preempted"]).to_numpy()
    steps = table["step"].to_numpy()[held] - low
    counts = np.bincount(steps[(steps >= 0) & (steps <= high - low)], minlength=high - low + 1)
    sums = np.convolve(counts, np.ones(room, dtype=np.int64), mode="valid")
    if not sums.max():
        return high - room + 1, high, f"The last {room} steps of {low} to {high}: in none of them did a request wait."
    first = low + int(sums.argmax())
    note = f"The {room} steps with most waiting, of {low} to {high}; first_step and last_step choose others."
    return first, first + room - 1, note


def _alt(lanes: Lanes, frame: pd.DataFrame) -> str:
    did = frame["did"]
    waited, preempted = int((did == "waited").sum()), int((did == "preempted").sum())
    rows = int((frame["num_tokens"] > 0).sum())
    return (
        f"{count(len(lanes.cells), 'request')} in steps {lanes.first} to {lanes.last}: "
        f"{count(int(frame['num_tokens'].sum()), 'token')} computed in {count(rows, 'row')}, "
        f"{waited:,} times a request waited for a step, {count(preempted, 'preemption')}."
    )


def _swapped(lanes: Lanes) -> list[str]:
    """Whose K/V waited in the host pool, and when; no line where nobody's did."""
    parts = [
        f"{visible(request_id)} in steps {first} to {last}"
        for request_id, spans in lanes.swapped.items()
        for first, last in spans
    ]
    return [f"K/V in the host pool: {', '.join(parts)}"] if parts else []


def _frame(trace: Trace, lanes: Lanes) -> pd.DataFrame:
    cells = [cell for line in lanes.cells.values() for cell in line]
    took = {step.step: (step.end_ns - step.t_ns) / 1e6 for step in trace.index.steps}
    return pd.DataFrame(
        {
            "step": np.array([c.step for c in cells], dtype=np.int64),
            "request_id": pd.Series([c.request_id for c in cells], dtype=object),
            "did": pd.Series([c.did for c in cells], dtype=object),
            "num_tokens": np.array([c.num_tokens for c in cells], dtype=np.int64),
            "reason": pd.Series([c.reason for c in cells], dtype=object),
            "by": pd.Series([c.by for c in cells], dtype=object),
            "step_ms": np.array([took.get(c.step, np.nan) for c in cells], dtype=float),
        }
    )


def _notes(trace: Trace, lanes: Lanes, window: str) -> tuple[str, ...]:
    notes = [window] if window else []
    if len(lanes.cells) > MAX_ROWS:
        notes.append(f"The lanes of the first {MAX_ROWS} of {len(lanes.cells)} requests are drawn; the text has all.")
    if trace.only:
        notes.append("This is a part of a trace: the tokens of a step include those of requests that are left out.")
    if trace.index.gaps:
        notes.append("Events were lost: what a request did then is left empty.")
    return tuple(notes)
