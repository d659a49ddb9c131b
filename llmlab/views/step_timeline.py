"""Many requests and the engine's steps on one clock."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING

import pandas as pd

from llmlab.errors import InvalidParameter
from llmlab.trace.index import Index
from llmlab.trace.trace import Trace
from llmlab.views.glyphs import fit, visible
from llmlab.views.missing import missing_view
from llmlab.views.phrases import count
from llmlab.views.scene import Key, Mark, Rect, Scene, Text
from llmlab.views.timeaxis import TimeAxis, duration, quiet_stretches
from llmlab.views.timeline_lanes import MAX_LANES, Lane, Stretch, Window, lanes_of, num_tokens
from llmlab.views.timeline_panels import COUNTS, ENDS, NAMES, TOKENS, counts_panel, legend, tokens_panel
from llmlab.views.view import View

if TYPE_CHECKING:
    import plotly.graph_objects as go

MAX_STEPS = 160
TOP, LANE = 20, 22
WAITS = ("queued", "preempted")
FILLS = {"prefill": "c0", "recompute": "c0", "decode": "c2"}
COLUMNS = ("request_id", "kind", "first_step", "last_step", "num_steps", "num_tokens", "start_ms", "duration_ms")


def step_timeline(
    trace: Trace, *, first_step: int | None = None, last_step: int | None = None, width: float = 960
) -> View:
    """A lane per request over the engine's steps, their tokens, the queues and the blocks in use.

    Shows the steps ``first_step`` to ``last_step``; without them all, or the last 160. Times with nothing to do are cut
    out. Raises ``InvalidParameter`` for steps that are not in the trace.
    """
    index = trace.index
    if not index.steps:
        what = "There is no engine step in this trace: lab.ask('...') or lab.engine.step() records some."
        return missing_view("step_timeline", "Step timeline", what, COLUMNS, width)
    window = _window(index, first_step, last_step)
    lanes = lanes_of(index, window.low, window.high, window.start, window.end)
    shown = lanes[-MAX_LANES:]
    numbers = window.steps[0].step, window.steps[-1].step
    return View(
        "step_timeline",
        f"{count(len(lanes), 'request')} on the engine's clock, steps {numbers[0]} to {numbers[-1]}",
        f"{count(len(shown), 'lane')} of requests over engine steps {numbers[0]} to {numbers[-1]}: queued, prefill, "
        "decode, preempted, with tokens per step, queue lengths and used blocks beneath.",
        _text(window, lanes),
        _scene(window, shown, width),
        _table(lanes, window.start),
        tuple(_notes(window, lanes)),
        partial(_plot, window),
    )


def _window(index: Index, first_step: int | None, last_step: int | None) -> Window:
    numbers = index.step_numbers
    known = f"its steps are {numbers[0]} to {numbers[-1]}"
    for name, step in (("first_step", first_step), ("last_step", last_step)):
        if step is not None and (type(step) is not int or not numbers[0] <= step <= numbers[-1]):
            raise InvalidParameter(f"{name}={step!r} is not in the trace: {known}")
    high = len(numbers) - 1 if last_step is None else int(numbers.searchsorted(last_step, "right")) - 1
    low = 0 if first_step is None else int(numbers.searchsorted(first_step))
    if low > high:
        raise InvalidParameter(f"first_step={first_step!r} is after last_step={last_step!r}: {known}")
    if first_step is None:
        low = max(0, high - MAX_STEPS + 1)
    high = min(high, low + MAX_STEPS - 1)
    start, end = index.steps[low].t_ns, index.steps[high].end_ns
    if low == 0:
        start = min([start, *(event.t_ns for event in index.submitted.values())])
    return Window(index, low, high, start, end)


def _notes(window: Window, lanes: Sequence[Lane]) -> Iterator[str]:
    index = window.index
    if len(window.steps) < len(index.steps):
        numbers = index.step_numbers
        yield (
            f"{len(window.steps)} of the trace's {len(index.steps):,} steps ({numbers[0]} to {numbers[-1]}) are shown; "
            f"first_step= and last_step= choose others, at most {MAX_STEPS}."
        )
    first, last = window.steps[0].step, window.steps[-1].step
    swaps = Counter(transfer.action for transfer in index.transfers if first <= transfer.step <= last)
    if swaps["swap_out"] or swaps["swap_in"]:
        yield (
            f"K/V was copied to the host pool {swaps['swap_out']} times and back {swaps['swap_in']} times, within the "
            "forward phase: trace.transfers has each copy."
        )
    if len(lanes) > MAX_LANES:
        yield f"The last {MAX_LANES} of {len(lanes):,} requests have a lane; the table has all."


# -- words ---------------------------------------------------------------------------------------------------


def _text(window: Window, lanes: Sequence[Lane]) -> str:
    steps = window.steps
    prefill, decode = (sum(tokens) for tokens in zip(*map(num_tokens, steps), strict=True))
    blocks = f" of {window.index.info.num_blocks}" if window.index.info else ""
    running, waiting, used = (max(getattr(step, name) for step in steps) for name in ("running", "waiting", "used"))
    head = (
        f"{len(steps)} steps: {prefill:,} prefill and {decode:,} decode tokens; "
        f"at most {running} running, {waiting} waiting, {used}{blocks} blocks used"
    )
    return "\n".join([head, *(_told(window.index, lane) for lane in lanes[-MAX_LANES:])])


def _told(index: Index, lane: Lane) -> str:
    parts = [_said(stretch) for stretch in lane.stretches]
    finished = index.finished.get(lane.request_id)
    ending = f"ended by {visible(finished.stop_reason)}" if finished else "not finished"
    return f"{lane.request_id}: {', '.join([*parts, ending])}"


def _said(stretch: Stretch) -> str:
    if stretch.kind in WAITS:
        return stretch.kind
    steps = f"step {stretch.first}" if stretch.num_steps == 1 else f"steps {stretch.first} to {stretch.last}"
    return f"{stretch.kind} {stretch.num_tokens:,} tokens in {steps}"


def _table(lanes: Sequence[Lane], zero: int) -> pd.DataFrame:
    records = [_record(stretch, zero) for lane in lanes for stretch in lane.stretches]
    frame = pd.DataFrame(records, columns=list(COLUMNS))
    return frame.astype({"first_step": "Int64", "last_step": "Int64"})


def _record(stretch: Stretch, zero: int) -> tuple:
    steps = (stretch.first, stretch.last) if stretch.num_steps else (pd.NA, pd.NA)
    times = (stretch.start - zero) / 1e6, (stretch.end - stretch.start) / 1e6
    return (stretch.request_id, stretch.kind, *steps, stretch.num_steps, stretch.num_tokens, *times)


# -- the picture ---------------------------------------------------------------------------------------------


def _scene(window: Window, lanes: Sequence[Lane], width: float) -> Scene:
    busy = [(max(lane.life.submitted, window.start), min(lane.life.end, window.end)) for lane in lanes]
    busy += [(step.t_ns, step.end_ns) for step in window.steps]
    axis = TimeAxis(window.start, window.end, NAMES, width - NAMES - ENDS, quiet_stretches(busy))
    marks: list[Mark] = []
    y = float(TOP + 4)
    for lane in lanes:
        marks += _lane(window, axis, lane, y)
        y += LANE
    marks += legend(y + 14, width)
    y += 30
    marks += tokens_panel(window, axis, y)
    y += TOKENS + 16
    marks += counts_panel(window, axis, y, "requests", (("running", "mark", False), ("waiting", "c5", True)))
    y += COUNTS + 16
    marks += counts_panel(window, axis, y, "K/V blocks", (("used", "mark", False),))
    y += COUNTS
    return Scene(width, y + 8, (*axis.marks(TOP, y), *marks))


def _lane(window: Window, axis: TimeAxis, lane: Lane, y: float) -> Iterator[Mark]:
    key = {"request": lane.request_id}
    name = fit(lane.request_id, NAMES - 70, 12)
    yield Text(0, y + 14, name, 12, bold=True, key=key)
    yield Text(NAMES - 8, y + 14, fit(_sizes(window.index, lane), 80, 10.5), 10.5, "muted", anchor="end", key=key)
    for stretch in lane.stretches:
        yield _stretch(window, axis, stretch, y, key)
    if lane.first_token is not None and window.start <= lane.first_token <= window.end:
        x = axis.at(lane.first_token)
        tip = (
            f"{lane.request_id}: first token {duration(lane.first_token - lane.life.submitted)} after it was submitted"
        )
        yield Rect(x - 1, y - 1, 2, LANE - 2, "ink", tip=tip, key=key)
    yield Text(axis.x + axis.width + 8, y + 14, fit(_ending(window, lane), ENDS - 10, 10.5), 10.5, "muted", key=key)


def _sizes(index: Index, lane: Lane) -> str:
    submitted = index.submitted.get(lane.request_id)
    return f"{len(submitted.prompt_token_ids):,} prompt" if submitted else ""


def _ending(window: Window, lane: Lane) -> str:
    finished = window.index.finished.get(lane.request_id)
    if finished is None or lane.life.end > window.end:
        return "goes on"
    return f"{visible(finished.stop_reason)}, {duration(lane.life.end - lane.life.submitted)}"


def _stretch(window: Window, axis: TimeAxis, stretch: Stretch, y: float, key: Key) -> Rect:
    left, right = axis.at(max(stretch.start, window.start)), axis.at(min(stretch.end, window.end))
    tip = f"{stretch.request_id} {_said(stretch)}: {duration(stretch.end - stretch.start)}"
    key = key if stretch.first < 0 else {**key, "step": stretch.first}
    w = max(right - left, 1.5)
    left = min(left, axis.x + axis.width - w)
    if stretch.kind in WAITS:
        lost = stretch.kind == "preempted"
        return Rect(left, y + 3, w, 13, "", "c5" if lost else "muted", 1, lost, True, tip=tip, key=key)
    thin = 3 if stretch.kind == "decode" else 0
    hatch = stretch.kind == "recompute"
    return Rect(left, y + 2 + thin, w, 15 - 2 * thin, FILLS[stretch.kind], hatch=hatch, tip=tip, key=key)


def _plot(window: Window) -> go.Figure:
    """Tokens, queue lengths and used blocks by number of the step."""
    from plotly.subplots import make_subplots

    figure = make_subplots(rows=3, cols=1, shared_xaxes=True, subplot_titles=("tokens", "requests", "used blocks"))
    numbers = [step.step for step in window.steps]
    for i, name in enumerate(("prefill", "decode")):
        figure.add_bar(x=numbers, y=[num_tokens(step)[i] for step in window.steps], name=name, row=1, col=1)
    for name, row in (("running", 2), ("waiting", 2), ("used", 3)):
        values = [getattr(step, name) for step in window.steps]
        figure.add_scatter(x=numbers, y=values, name=name, mode="lines", line_shape="hv", row=row, col=1)
    figure.update_layout(
        barmode="stack",
        paper_bgcolor="rgba(0,0,0,0)",
        plot_bgcolor="rgba(0,0,0,0)",
        font_color="#808080",
        height=480,
        margin={"l": 48, "r": 16, "t": 32, "b": 40},
    )
    figure.update_xaxes(gridcolor="rgba(128,128,128,.25)").update_yaxes(gridcolor="rgba(128,128,128,.25)")
    return figure.update_xaxes(title_text="engine step", row=3, col=1)
