"""The picture of :func:`~llmlab.views.handoff.handoff`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from llmlab.trace.trace import Trace
from llmlab.views.glyphs import fit, text_width
from llmlab.views.handoff_facts import Story, Stretch
from llmlab.views.scene import Line, Mark, Rect, Scene, Text
from llmlab.views.timeaxis import TimeAxis, duration, quiet_stretches

NAMES, ENDS = 150, 130  # pixels left and right of the lanes
TOP, LANE, BAR = 24, 32, 16
MOST_TICKS, MOST_STEPS = 320, 150  # of all lanes together; of a process: neighbours become one mark
THERE, TRAVEL, HERE, TOKEN = "c1", "c3", "c0", "c2"


def scene_of(trace: Trace, stories: Sequence[Story], width: float) -> Scene:
    """Lanes of the processes, then of the requests, on one axis of time."""
    start, end = min(s.submitted for s in stories), max(s.end for s in stories)
    busy = [(s.begun, s.end) for s in stories]
    axis = TimeAxis(start, end, NAMES, width - NAMES - ENDS, quiet_stretches(busy))
    lanes = _processes(trace, axis, start, end)
    bottom = TOP + LANE * (len(lanes) + len(stories))
    marks: list[Mark] = list(axis.marks(14, bottom))
    for i, (name, work) in enumerate(lanes):
        marks += _process_lane(axis, name, work, TOP + LANE * i)
    for i, story in enumerate(stories, len(lanes)):
        marks += _lane(axis, story, TOP + LANE * i, MOST_TICKS // len(stories))
    legend, height = _legend(bottom + 16, width, any(story.there for story in stories))
    return Scene(width, height, (*marks, *legend))


def _processes(trace: Trace, axis: TimeAxis, start: int, end: int) -> list[tuple[str, list[tuple[int, int, str, str]]]]:
    """(name, (begin, end, role, tip) of its work) of the prefill process, if there is one, and of this one."""
    index = trace.index
    there = [e for e in index.rank_work if e.role == "prefill" and start <= e.t_ns <= end]
    work = [(e.t_ns, e.end_ns, THERE, f"prefill process: {e.num_tokens:,} tokens") for e in there]
    steps = [
        (
            step.t_ns,
            step.end_ns,
            HERE if any(row.is_prefill and row.num_tokens > 1 for row in step.rows) else TOKEN,
            f"step {step.step}: {sum(row.num_tokens for row in step.rows):,} tokens",
        )
        for step in index.steps
        if start <= step.t_ns <= end
    ]
    return [*([("prefill process", work)] if work else []), ("decode process" if work else "engine", steps)]


def _process_lane(axis: TimeAxis, name: str, work: Sequence[tuple[int, int, str, str]], y: float) -> Iterator[Mark]:
    yield Text(0, y + 13, fit(name, NAMES - 8, 12), 12, bold=True)
    yield Line(((axis.x, y + BAR / 2), (axis.x + axis.width, y + BAR / 2)), "line", 0.6)
    for left, right, role, tip in _merged(axis, work):
        yield Rect(
            left, y, max(right - left, 0.8), BAR, role, "panel", 0.5, hatch=role == THERE and right > left + 6, tip=tip
        )
    yield Text(axis.x + axis.width + 8, y + 12, f"{len(work):,} forward passes", 10.5, "muted")


def _merged(axis: TimeAxis, work: Sequence[tuple[int, int, str, str]]) -> Iterator[tuple[float, float, str, str]]:
    """Neighbours of a kind as one mark where there are more than can be told apart."""
    held: tuple[float, float, str, str] | None = None
    for begin, end, role, tip in work:
        left, right = axis.at(begin), axis.at(end)
        if held and len(work) > MOST_STEPS and held[2] == role and left - held[1] < 1.5:
            held = (held[0], right, role, "several steps")
            continue
        if held:
            yield held
        held = (left, right, role, tip)
    if held:
        yield held


def _lane(axis: TimeAxis, story: Story, y: float, most: int) -> Iterator[Mark]:
    key = {"request": story.request_id}
    yield Text(0, y + 10, fit(story.request_id, 60, 12), 12, bold=True, key=key)
    yield Text(0, y + 23, fit(f"{story.num_prompt:,} prompt tokens", NAMES - 8, 10.5), 10.5, "muted", key=key)
    if story.begun > story.submitted:
        yield _bar(axis, (story.submitted, story.begun), y, "", "waited", key, hatch=True)
    for stretch in story.there:
        yield _bar(axis, stretch, y, THERE, f"prompt computed there: {story.computed_there:,} tokens", key, hatch=True)
    for stretch in story.travel:
        yield _bar(axis, stretch, y, TRAVEL, f"{story.nbytes:,} bytes by {story.medium}", key)
    for stretch in story.here:
        yield _bar(axis, stretch, y, HERE, f"prompt computed here: {story.computed_here:,} tokens", key)
    yield from _ticks(axis, story, y, most, key)


def _bar(axis: TimeAxis, stretch: Stretch, y: float, role: str, what: str, key: dict, hatch: bool = False) -> Rect:
    left, right = axis.at(stretch[0]), axis.at(stretch[1])
    tip = f"{key['request']}, {what}, {duration(stretch[1] - stretch[0])}"
    stroke, hatch = ("panel" if role else "muted"), hatch and right > left + 6
    return Rect(left, y, max(right - left, 1), BAR, role, stroke, 0.6, hatch=hatch, dash=not role, tip=tip, key=key)


def _ticks(axis: TimeAxis, story: Story, y: float, most: int, key: dict) -> Iterator[Mark]:
    if not story.tokens:
        return
    first, last, middle = axis.at(story.tokens[0]), axis.at(story.tokens[-1]), y + BAR / 2
    yield Line(((first, middle), (max(last, first + 1), middle)), TOKEN, 0.8, key=key)
    stride = -(-len(story.tokens) // most)
    for i in range(0, len(story.tokens), stride):
        x = axis.at(story.tokens[i])
        yield Line(((x, y + 1), (x, y + BAR - 1)), TOKEN, 1.4, tip=f"{key['request']}, token {i + 1}", key=key)
    gap = story.longest_gap
    if gap is not None:
        a, b = axis.at(gap[0]), axis.at(gap[1])
        said = f"longest gap {duration(gap[1] - gap[0])}"
        yield Line(((a, y + BAR + 4), (b, y + BAR + 4)), "alarm", 2, tip=said, key=key)
        yield Text(axis.x + axis.width + 8, y + 12, fit(said, ENDS - 10, 10.5), 10.5, "muted", key=key)


def _legend(y: float, width: float, parted: bool) -> tuple[list[Mark], float]:
    """Swatches with their words, as many to a line as there is room for; and where the picture ends."""
    items = [("", "waited", True)]
    if parted:
        items += [(THERE, "prompt, prefill process", True), (TRAVEL, "K/V on the way", False)]
    items += [(HERE, "prompt computed here", False), (TOKEN, "a token", False), ("alarm", "longest gap", False)]
    marks: list[Mark] = []
    x = 0.0
    for role, words, hatch in items:
        needed = 24 + text_width(words, 11) + 18
        if x and x + needed > width:
            x, y = 0.0, y + 20
        if role == "alarm":
            marks.append(Line(((x, y + 6), (x + 16, y + 6)), "alarm", 2))
        elif role == TOKEN:
            marks.append(Line(((x + 8, y), (x + 8, y + 12)), TOKEN, 1.4))
        else:
            marks.append(Rect(x, y, 16, 12, role, "muted", 0.6, hatch=hatch, dash=not role))
        marks.append(Text(x + 22, y + 10, words, 11, "muted"))
        x += needed
    return marks, y + 24
