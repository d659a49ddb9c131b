"""The picture of :func:`~llmlab.views.rank_lanes.rank_lanes`."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

from llmlab.trace.split_events import Collective, RankWork
from llmlab.views.glyphs import fit, text_width
from llmlab.views.palette import hue
from llmlab.views.phrases import count
from llmlab.views.scene import Line, Mark, Rect, Scene, Text
from llmlab.views.timeaxis import TimeAxis, duration, quiet_stretches

NAMES, ENDS = 150, 140  # pixels left and right of the lanes
TOP, LANE, WORK, CALLS = 38, 52, 20, 12  # the axis with the steps, a lane, its two rows
MAX_CALLS = 1_500
"""More messages are not drawn one by one: neighbours of a kind become one mark."""
PLACES = {
    "attention": "c1",
    "mlp": "c7",
    "head": "c3",
    "stage": "c1",
    "dispatch": "c1",
    "combine": "c3",
    "embedding": "c6",
    "counts": "c6",
}


@dataclass(frozen=True)
class Window:
    """The steps that are shown, and what ranks did in them."""

    steps: tuple[int, ...]
    work: tuple[RankWork, ...]
    calls: tuple[Collective, ...]

    @cached_property
    def lanes(self) -> list[tuple[str, int]]:
        """(role, rank) of every lane, in order."""
        return sorted({(e.role, e.rank) for e in (*self.work, *self.calls)})

    @cached_property
    def roles(self) -> list[str]:
        """What the groups are for."""
        return sorted({role for role, _ in self.lanes})

    @cached_property
    def _work(self) -> dict[tuple, list[RankWork]]:
        return _grouped(self.work)

    @cached_property
    def _calls(self) -> dict[tuple, list[Collective]]:
        return _grouped(self.calls)

    def work_of(self, role: str, rank: int, step: int) -> list[RankWork]:
        """A rank's work in a step, in order."""
        return self._work.get((role, rank, step), [])

    def calls_of(self, role: str, rank: int, step: int) -> list[Collective]:
        """A rank's communications in a step, in order."""
        return self._calls.get((role, rank, step), [])


def _grouped(events: Sequence) -> dict[tuple, list]:
    groups = defaultdict(list)
    for event in sorted(events, key=lambda e: e.t_ns):
        groups[event.role, event.rank, event.step].append(event)
    return groups


def scene_of(window: Window, width: float) -> Scene:
    """All lanes on one axis of time."""
    events = (*window.work, *window.calls)
    start, end = min(e.t_ns for e in events), max(e.end_ns for e in events)
    axis = TimeAxis(start, end, NAMES, width - NAMES - ENDS, quiet_stretches([(e.t_ns, e.end_ns) for e in events]))
    bottom = TOP + LANE * len(window.lanes)
    marks: list[Mark] = [*axis.marks(18, bottom - 8), *_steps(window, axis, bottom - 8)]
    tops = {lane: TOP + LANE * i for i, lane in enumerate(window.lanes)}
    marks += _arrows(window, axis, tops)
    for lane, y in tops.items():
        marks += _lane(window, axis, *lane, y)
    legend, height = _legend(window, bottom + 14, width)
    return Scene(width, height + 10, (*marks, *legend))


def _steps(window: Window, axis: TimeAxis, bottom: float) -> Iterator[Mark]:
    """Where each step begins; its number where there is room."""
    free = 0.0
    for step in window.steps:
        x = axis.at(min(e.t_ns for e in (*window.work, *window.calls) if e.step == step))
        key, label = {"step": step}, f"step {step}"
        yield Line(((x, 22), (x, bottom)), "muted", 0.8, dash=True, key=key)
        if x >= free and x + 4 + text_width(label, 10.5) < axis.x + axis.width + ENDS:
            yield Text(x + 4, 31, label, 10.5, "muted", key=key)
            free = x + 10 + text_width(label, 10.5)


# -- one lane -------------------------------------------------------------------------------------------------


def _lane(window: Window, axis: TimeAxis, role: str, rank: int, y: float) -> Iterator[Mark]:
    work = [e for e in window.work if (e.role, e.rank) == (role, rank)]
    calls = [e for e in window.calls if (e.role, e.rank) == (role, rank)]
    yield Text(0, y + 14, fit(f"{role} rank {rank}", NAMES - 8, 12), 12, bold=True)
    yield Text(0, y + 31, fit(_layers(work), NAMES - 8, 10.5), 10.5, "muted")
    right = axis.x + axis.width + 8
    yield Text(right, y + 14, fit(count(len(calls), "message"), ENDS - 10, 10.5), 10.5, "muted")
    yield Text(right, y + 31, fit(_bytes(sum(e.nbytes for e in calls)), ENDS - 10, 10.5), 10.5, "muted")
    yield Line(((axis.x, y + WORK / 2), (axis.x + axis.width, y + WORK / 2)), "line", 0.6)
    for event in sorted(work, key=lambda e: e.name == "experts"):  # they lie on the forward they are a part of
        yield from _work(axis, event, y)
    yield from _calls(window, axis, calls, y + WORK + 4)


def _layers(work: Sequence[RankWork]) -> str:
    found = [e for e in work if e.first_layer >= 0 and e.name == "forward"]
    return f"layers {found[0].first_layer} to {found[0].last_layer}" if found else ""


def _bytes(nbytes: int) -> str:
    return f"{nbytes:,} bytes" if nbytes < 10_000 else f"{nbytes / 1e3:,.0f} kB" if nbytes < 1e7 else _mega(nbytes)


def _mega(nbytes: int) -> str:
    return f"{nbytes / 1e6:,.1f} MB"


def _work(axis: TimeAxis, event: RankWork, y: float) -> Iterator[Mark]:
    left, w = _span(axis, event.t_ns, event.end_ns)
    key = {"step": event.step}
    part = f", micro-batch {event.micro_batch}" if event.micro_batch >= 0 else ""
    tip = f"rank {event.rank}, step {event.step}{part}: {event.name} {duration(event.end_ns - event.t_ns)}"
    if event.name == "wait":
        yield Rect(left, y + 4, w, WORK - 8, "", "muted", 0.8, hatch=True, dash=True, tip=tip, key=key)
        return
    role = hue(_hue_of(event))
    yield Rect(left, y, w, WORK, role, tip=f"{tip}, {count(event.num_tokens, 'token')}", key=key)
    label = str(event.micro_batch)
    if event.micro_batch >= 0 and text_width(label, 11) + 6 < w:
        yield Text(left + w / 2, y + 14, label, 11, on=role, anchor="middle", tip=tip, key=key)


def _hue_of(event: RankWork) -> int:
    """Blue and green are left to work; the other hues are the messages'."""
    return 2 if event.name == "experts" else (0, 2)[max(event.micro_batch, 0) % 2]


def _span(axis: TimeAxis, start: int, end: int) -> tuple[float, float]:
    left, right = axis.at(start), axis.at(end)
    w = max(right - left, 1.0)
    return min(left, axis.x + axis.width - w), w


def _calls(window: Window, axis: TimeAxis, calls: Sequence[Collective], y: float) -> Iterator[Mark]:
    """A message from its call to its return, hatched while this rank waited for the last one to call it."""
    last = _last_calls(window)
    pixels = 0.0 if len(window.calls) <= MAX_CALLS else 2.0
    drawn: dict[str, float] = {}
    for number, event in _numbered(calls):
        left, w = _span(axis, event.t_ns, event.end_ns)
        role = PLACES.get(event.place, "c5")
        if left + w < drawn.get(role, -1.0) + pixels:
            continue
        drawn[role] = left + w
        where = f"layer {event.layer}, {event.place}" if event.layer >= 0 else event.place
        tip = (
            f"rank {event.rank}, step {event.step}: {event.kind} ({where}), {event.nbytes:,} bytes, "
            f"{duration(event.end_ns - event.t_ns)}"
        )
        key = {"step": event.step, **({"layer": event.layer} if event.layer >= 0 else {})}
        ready = min(max(last.get((event.role, event.step, number), event.t_ns), event.t_ns), event.end_ns)
        waited, _ = _span(axis, ready, ready)
        if event.kind == "receive" or waited - left > 1.5:
            w_wait = w if event.kind == "receive" else waited - left
            yield Rect(left, y + 2, w_wait, CALLS - 4, "", role, 0.8, hatch=True, tip=tip, key=key)
        if event.kind != "receive":
            begin = waited if waited - left > 1.5 else left
            yield Rect(begin, y, max(left + w - begin, 1.0), CALLS, role, tip=tip, key=key)


def _numbered(calls: Sequence[Collective]) -> Iterator[tuple[int, Collective]]:
    """Collectives with their place in the order of their rank's step; -1 for messages between two."""
    numbers: dict[int, int] = defaultdict(int)
    for event in sorted(calls, key=lambda e: e.t_ns):
        if event.kind in ("send", "receive"):
            yield -1, event
        else:
            yield numbers[event.step], event
            numbers[event.step] += 1


def _last_calls(window: Window) -> dict[tuple[str, int, int], int]:
    """(role, step, number of the collective) -> when the last rank called it (ns)."""
    last: dict[tuple[str, int, int], int] = {}
    for role, rank in window.lanes:
        calls = [e for e in window.calls if (e.role, e.rank) == (role, rank)]
        for number, event in _numbered(calls):
            if number >= 0:
                at = (role, event.step, number)
                last[at] = max(last.get(at, 0), event.t_ns)
    return last


def _arrows(window: Window, axis: TimeAxis, tops: dict[tuple[str, int], float]) -> Iterator[Mark]:
    """From where a message was sent to where it was received."""
    sent, received = defaultdict(list), defaultdict(list)
    for event in sorted(window.calls, key=lambda e: e.t_ns):
        if event.kind in ("send", "receive"):
            group = sent if event.kind == "send" else received
            group[event.role, event.step, event.layer, event.place].append(event)
    for what, messages in sent.items():
        for one, other in zip(messages, received.get(what, []), strict=False):
            down = tops[one.role, one.rank] < tops[other.role, other.rank]
            begin, end = tops[one.role, one.rank], tops[other.role, other.rank]
            below = WORK + 4 + CALLS
            ends = (begin + below, end) if down else (begin, end + below)
            points = ((axis.at(one.t_ns), ends[0]), (axis.at(other.end_ns), ends[1]))
            tip = f"{one.nbytes:,} bytes from rank {one.rank} to rank {other.rank}, {one.place}"
            yield Line(points, PLACES.get(one.place, "c5"), 1, tip=tip, key={"step": one.step})


# -- legend ---------------------------------------------------------------------------------------------------


def _legend(window: Window, y: float, width: float) -> tuple[list[Mark], float]:
    """What the boxes mean, and where it ends."""
    boxes = [("computes", Rect(0, 0, 18, 12, "c0"))]
    if any(e.micro_batch > 0 for e in window.work):
        boxes = [("computes, by number of the micro-batch", Rect(0, 0, 18, 12, "c0"))]
        boxes.append(("the odd ones", Rect(0, 0, 18, 12, "c2")))
    if any(e.name == "experts" for e in window.work):
        boxes.append(("of that, its experts", Rect(0, 0, 18, 12, "c2")))
    if any(e.name == "wait" for e in window.work):
        boxes.append(("waits", Rect(0, 2, 18, 8, "", "muted", 0.8, hatch=True, dash=True)))
    kinds = sorted({(e.kind, e.place) for e in window.calls})
    for kind, place in kinds:
        role = PLACES.get(place, "c5")
        is_wait = kind == "receive"
        box = Rect(0, 2, 18, 8, "", role, 0.8, hatch=True) if is_wait else Rect(0, 0, 18, 12, role)
        boxes.append((f"{kind}, {place}", box))
    if any(kind not in ("send", "receive") for kind, _ in kinds):
        boxes.append(("called, and waits for the last rank", Rect(0, 2, 18, 8, "", "c1", 0.8, hatch=True)))
    return _placed(boxes, y, width)


def _placed(boxes: Sequence[tuple[str, Rect]], y: float, width: float) -> tuple[list[Mark], float]:
    marks: list[Mark] = []
    x = float(NAMES)
    for word, box in boxes:
        w = 23 + text_width(word, 10.5) + 18
        if x + w > width and x > NAMES:
            x, y = float(NAMES), y + 18
        marks.append(Rect(x, y - 10 + box.y, box.w, box.h, box.fill, box.stroke, 0.8, box.hatch, box.dash))
        marks.append(Text(x + 23, y, fit(word, width - x - 24, 10.5), 10.5, "muted"))
        x += w
    return marks, y
