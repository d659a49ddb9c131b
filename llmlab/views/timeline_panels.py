"""What lies under the lanes of the step timeline: their legend, tokens per step, queue lengths and blocks in use."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from llmlab.views.glyphs import fit, text_width
from llmlab.views.scene import Line, Mark, Rect, Text
from llmlab.views.timeaxis import TimeAxis, duration
from llmlab.views.timeline_lanes import Window, num_tokens

NAMES, ENDS = 172, 118  # pixels left and right of the lanes
TOKENS, COUNTS = 60, 40  # heights of the panels


def legend(y: float, width: float) -> Iterator[Mark]:
    """What the boxes of the lanes mean, as many as fit into ``width``."""
    x = float(NAMES)
    boxes: tuple[tuple[str, Callable[[float], Rect]], ...] = (
        ("queued", lambda x: Rect(x, y - 10, 18, 12, "", "muted", dash=True)),
        ("prefill", lambda x: Rect(x, y - 10, 18, 12, "c0")),
        ("decode", lambda x: Rect(x, y - 8, 18, 8, "c2")),
        ("preempted", lambda x: Rect(x, y - 10, 18, 12, "", "c5", hatch=True, dash=True)),
        ("recompute", lambda x: Rect(x, y - 10, 18, 12, "c0", hatch=True)),
        ("first token", lambda x: Rect(x + 8, y - 11, 2, 14, "ink")),
        ("nothing to do, cut out", lambda x: Rect(x, y - 10, 18, 12, "faint", "line")),
    )
    for word, box in boxes:
        if x + 24 + text_width(word, 10.5) > width:
            return
        yield box(x)
        yield Text(x + 23, y, word, 10.5, "muted")
        x += 23 + text_width(word, 10.5) + 18


def tokens_panel(window: Window, axis: TimeAxis, y: float) -> Iterator[Mark]:
    """Tokens of every step as bars as wide as the step took: prefill below, decode on it."""
    counts = [num_tokens(step) for step in window.steps]
    most = max([1, *(prefill + decode for prefill, decode in counts)])
    base = y + TOKENS
    yield Text(0, y + 22, "tokens per step", 12, bold=True)
    yield Text(0, y + 38, "prefill below, decode above", 10.5, "muted")
    yield Text(NAMES - 6, y + 10, f"{most:,}", 10.5, "muted", anchor="end")
    yield Text(NAMES - 6, base, "0", 10.5, "muted", anchor="end")
    for step, (prefill, decode) in zip(window.steps, counts, strict=True):
        left, right = axis.at(step.t_ns), axis.at(step.end_ns)
        w, key = max(right - left - 0.5, 1.0), {"step": step.step}
        left = min(left, axis.x + axis.width - w)
        low, high = (n * TOKENS / most for n in (prefill, prefill + decode))
        tip = f"step {step.step}: {prefill:,} prefill + {decode:,} decode tokens, {duration(step.end_ns - step.t_ns)}"
        if prefill:
            yield Rect(left, base - low, w, low, "c0", tip="" if decode else tip, key=key)
        if decode or not prefill:
            yield Rect(left, base - high, w, high - low, "c2", tip=tip, key=key)
    yield Line(((axis.x, base), (axis.x + axis.width, base)), "muted", 0.8)
    info = window.index.info
    if info is not None and info.max_num_batched_tokens <= most:
        yield Line(((axis.x, y), (axis.x + axis.width, y)), "muted", 0.8, dash=True)
        yield Text(axis.x + axis.width + 8, y + 4, f"budget {info.max_num_batched_tokens:,}", 10.5, "muted")


def counts_panel(
    window: Window, axis: TimeAxis, y: float, name: str, lines: Sequence[tuple[str, str, bool]]
) -> Iterator[Mark]:
    """Step lines of counts that were taken when each step was scheduled."""
    info = window.index.info
    series = {field: [getattr(step, field) for step in window.steps] for field, _, _ in lines}
    most = max([1, *(value for values in series.values() for value in values)])
    total = info.num_blocks if name == "K/V blocks" and info else None
    most = total or most
    base = y + COUNTS
    yield Text(0, y + 16, name, 12, bold=True)
    words = [f"{'dashed' if dash else 'solid'}: {field}" for field, _, dash in lines]
    if len(lines) == 1:
        words = [f"used, of {total:,}" if total else "used"]
    for i, word in enumerate(words):
        yield Text(0, y + 30 + 13 * i, word, 10.5, "muted")
    yield Text(NAMES - 6, y + 8, f"{most:,}", 10.5, "muted", anchor="end")
    yield Text(NAMES - 6, base, "0", 10.5, "muted", anchor="end")
    yield Line(((axis.x, base), (axis.x + axis.width, base)), "line", 0.8)
    for field, stroke, dash in lines:
        drawn = [min(max(value, 0), most) for value in series[field]]  # a file may claim more than the pool has
        points = _staircase(window, axis, drawn, base, COUNTS / most)
        yield Line(points, stroke, 1.8, dash, f"{field}: at most {max(series[field]):,}")
    for i, (field, values) in enumerate(series.items()):
        at = base - 13 * (len(series) - 1 - i)
        yield Text(axis.x + axis.width + 8, at, fit(f"{values[-1]:,} {field} at last", ENDS - 10, 10.5), 10.5, "muted")


def _staircase(
    window: Window, axis: TimeAxis, values: Sequence[int], base: float, per: float
) -> tuple[tuple[float, float], ...]:
    """A value holds from its step's beginning to the next one's; unchanged ones need no point."""
    points = [(axis.at(window.steps[0].t_ns), base - values[0] * per)]
    for step, before, value in zip(window.steps[1:], values, values[1:], strict=False):
        if value != before:
            x = axis.at(step.t_ns)
            points += [(x, base - before * per), (x, base - value * per)]
    return (*points, (axis.x + axis.width, base - values[-1] * per))
