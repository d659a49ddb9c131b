"""Batch lanes as marks: a lane a request, the tokens of each step beneath, and the reasons spelled out."""

from __future__ import annotations

from dataclasses import dataclass

from llmlab.trace.trace import Trace
from llmlab.views.glyphs import fit, text_width, visible
from llmlab.views.lanes import RAN, Cell, Lanes, runs
from llmlab.views.names import Names
from llmlab.views.phrases import count
from llmlab.views.scene import Line, Mark, Rect, Text

LEFT, TOP = 130, 4
ROW, HEIGHT = 28, 20
BARS, WIDEST, NARROW = 46, 36.0, 7.0
LABELLED = 12.0  # narrower columns have no numbers
MAX_ROWS = 32
TICKS = (1, 2, 5, 10, 20, 50, 100, 200, 500)


@dataclass(frozen=True, slots=True)
class Columns:
    """Where the steps are: column ``step - first`` is ``pitch`` pixels wide and has a gap on its right."""

    first: int
    count: int
    pitch: float

    def x(self, step: int) -> float:
        """The left edge of a step."""
        return LEFT + (step - self.first) * self.pitch

    @property
    def gap(self) -> float:
        """Pixels between two cells."""
        return 1 if self.pitch >= NARROW else 0


def draw_lanes(trace: Trace, lanes: Lanes, names: Names, width: float) -> tuple[list[Mark], float]:
    """The marks and their height."""
    num_steps = lanes.last - lanes.first + 1
    pitch = min(WIDEST, (width - LEFT) / num_steps)
    columns = Columns(lanes.first, num_steps, float(int(pitch)) if pitch >= NARROW else pitch)
    shown = list(lanes.cells)[:MAX_ROWS]
    letters = lanes.letters()
    foot = TOP + len(shown) * ROW
    marks: list[Mark] = _ticks(columns, foot)
    for place, request_id in enumerate(shown):
        marks += _label(trace, names, request_id, TOP + place * ROW)
        marks += _lane(lanes, request_id, names.hue(request_id), letters, columns, TOP + place * ROW)
    marks += _bars(trace, lanes, columns, foot + 8)
    legend, height = _legend(lanes, letters, foot + 8 + BARS + 36, width)
    return [*marks, *legend], height


def _ticks(columns: Columns, foot: float) -> list[Mark]:
    """Step numbers, and quiet lines through all lanes."""
    every = next((t for t in TICKS if t * columns.pitch >= 34), TICKS[-1])
    bottom = foot + 8 + BARS
    marks: list[Mark] = []
    for step in range(columns.first, columns.first + columns.count):
        if step % every == 0:
            middle = columns.x(step) + columns.pitch / 2
            marks.append(Line(((middle, TOP), (middle, bottom)), stroke="faint"))
            marks.append(Text(middle, bottom + 14, str(step), size=10, fill="muted", anchor="middle"))
    marks.append(Text(LEFT - 10, bottom + 14, "step", size=10, fill="muted", anchor="end"))
    return marks


def _label(trace: Trace, names: Names, request_id: str, y: float) -> list[Mark]:
    key = {"request": request_id}
    marks: list[Mark] = [Text(0, y + 10, names.full(request_id, LEFT - 14, 12), size=12, bold=True, key=key)]
    submitted = trace.index.submitted.get(request_id)
    if submitted:
        prompt = count(len(submitted.prompt_token_ids), "prompt token")
        marks.append(Text(0, y + 21, fit(prompt, LEFT - 14, 10), size=10, fill="muted", key=key))
    return marks


def _lane(lanes: Lanes, request_id: str, hue: str, letters: dict[str, str], columns: Columns, y: float) -> list[Mark]:
    marks: list[Mark] = []
    for group in runs(lanes.cells[request_id]):
        if group[0].did == "waited":
            marks += _waiting(group, letters[group[0].reason], columns, y)
        elif group[0].did in RAN:
            parts = [[cell] for cell in group] if columns.pitch >= NARROW else [group]
            for part in parts:
                marks += _running(part, hue, columns, y)
        elif group[0].did == "preempted":
            marks += _preempted(group[0], columns, y)
        elif group[0].did == "admitted":
            marks.append(_box(group, columns, y, HEIGHT, stroke=hue, dash=True))
    for first, last in lanes.swapped.get(request_id, ()):
        x, key = columns.x(first), {"request": request_id, "step": first}
        tip = f"{visible(request_id)}, steps {first} to {last}: its K/V waits in the host pool"
        marks.append(Rect(x, y + HEIGHT + 1, columns.x(last + 1) - columns.gap - x, 3, fill="ink", tip=tip, key=key))
    if request_id in lanes.ends and lanes.first <= lanes.ends[request_id][0]:
        step, reason = lanes.ends[request_id]
        tip = f"{request_id} ended in step {step}: {reason}"
        key = {"request": request_id, "step": step}
        marks.append(Rect(columns.x(min(step, lanes.last) + 1) - 3, y - 2, 3, HEIGHT + 4, fill="ink", tip=tip, key=key))
    return marks


def _box(group: list[Cell], columns: Columns, y: float, height: float, **look: object) -> Rect:
    """A box over the group's steps that stands on the lane's floor."""
    first, last = group[0], group[-1]
    x, right = columns.x(first.step), columns.x(last.step + 1) - columns.gap
    key = {"request": first.request_id, "step": first.step}
    return Rect(x, y + HEIGHT - height, right - x, height, tip=_tip(group), key=key, **look)


def _tip(group: list[Cell]) -> str:
    first, last = group[0], group[-1]
    tokens = sum(cell.num_tokens for cell in group)
    steps = f"step {first.step}" if first is last else f"steps {first.step} to {last.step}"
    parts = [f"{visible(first.request_id)}, {steps}: {first.did}"]
    if tokens:
        parts.append(count(tokens, "token"))
    if first.reason and first.did != first.reason:
        parts.append(visible(first.reason))
    return ", ".join(parts) + (f" (by {visible(first.by)})" if first.by else "")


def _running(group: list[Cell], hue: str, columns: Columns, y: float) -> list[Mark]:
    did = group[0].did
    height = {"decode": 8.0, "verify": 14.0}.get(did, float(HEIGHT))
    stroke = {"stroke": "ink", "width": 1.5} if did == "recompute" else {}
    box = _box(group, columns, y, height, fill=hue, **stroke)
    label = str(group[0].num_tokens)
    if did == "decode" or len(group) > 1 or columns.pitch < LABELLED or text_width(label, 10, mono=True) + 2 > box.w:
        return [box]
    middle = box.x + box.w / 2
    return [box, Text(middle, box.y + height / 2 + 3.5, label, size=10, on=hue, anchor="middle", key=box.key)]


def _waiting(group: list[Cell], letter: str, columns: Columns, y: float) -> list[Mark]:
    """One hatched box over all the steps it waited for the same reason, with the reason's letter."""
    box = _box(group, columns, y, HEIGHT, stroke="muted", hatch=True)
    counted = f"{letter} ×{len(group)}"
    label = counted if len(group) > 1 and text_width(counted, 11) + 8 <= box.w else letter
    needed = text_width(label, 11)
    if needed > box.w - 2:
        return [box]
    middle = box.x + box.w / 2
    plate = Rect(middle - needed / 2 - 2, y + 4, needed + 4, 12, fill="panel", tip=box.tip, key=box.key)
    return [box, plate, Text(middle, y + 14, label, size=11, bold=True, anchor="middle", key=box.key)]


def _preempted(cell: Cell, columns: Columns, y: float) -> list[Mark]:
    box = _box([cell], columns, y, HEIGHT, stroke="alarm", width=2)
    if box.w < 10:
        return [box]
    middle = box.x + box.w / 2
    return [box, Text(middle, y + 14, "P", size=11, fill="alarm", bold=True, anchor="middle", key=box.key)]


def _bars(trace: Trace, lanes: Lanes, columns: Columns, top: float) -> list[Mark]:
    """Tokens of each step, prefill at the bottom and decode on it, beneath the line of the budget."""
    steps = [step for step in trace.index.steps if lanes.first <= step.step <= lanes.last]
    totals = [sum(row.num_tokens for row in step.rows) for step in steps]
    budget = trace.info.max_num_batched_tokens if trace.info else 0
    scale = (BARS - 12) / max(budget, *totals, 1)
    floor, right = top + BARS, columns.x(lanes.last + 1)
    marks: list[Mark] = [Text(0, top + 22, "tokens of the step", size=11)]
    if budget:
        ceiling = floor - budget * scale
        marks.append(Line(((LEFT, ceiling), (right, ceiling)), stroke="muted", dash=True))
        marks.append(Text(0, top + 36, f"budget {budget:,} (dashed)", size=10, fill="muted"))
    marks.append(Line(((LEFT, floor), (right, floor))))
    for step, total in zip(steps, totals, strict=True):
        prefill = sum(row.num_tokens for row in step.rows if row.is_prefill)
        marks += _bar(columns, step, prefill, total, budget, floor, scale)
    return marks


def _bar(columns: Columns, step, prefill: int, total: int, budget: int, floor: float, scale: float) -> list[Mark]:
    x, w = columns.x(step.step), max(columns.pitch - columns.gap, 0.5)
    of = f" of {budget}" if budget else ""
    took = (step.end_ns - step.t_ns) / 1e6
    tip = f"step {step.step}: {total}{of} tokens, {prefill} prefill, {total - prefill} decode, {took:.2f} ms"
    look = {"tip": tip, "key": {"step": step.step}}
    parts = (("muted", 0, prefill), ("mark", prefill, total - prefill))
    marks: list[Mark] = [
        Rect(x, floor - (below + n) * scale, w, n * scale, fill=fill, **look) for fill, below, n in parts if n
    ]
    label = str(total)
    if total and columns.pitch >= LABELLED and text_width(label, 10, mono=True) + 2 <= w:
        y = max(floor - total * scale - 2, floor - BARS + 9)
        marks.append(Text(x + w / 2, y, label, size=10, anchor="middle", key={"step": step.step}))
    return marks


def _legend(lanes: Lanes, letters: dict[str, str], top: float, width: float) -> tuple[list[Mark], float]:
    """The looks that occur, in words."""
    found = {cell.did for line in lanes.cells.values() for cell in line}
    said = {
        "prefill": "prefill, with its tokens",
        "recompute": "recompute after preemption",
        "decode": "decode",
        "verify": "decode with a draft to verify",
        "preempted": "preempted: its blocks were taken",
        "admitted": "joined without computing",
    }
    items = [(name, "", label) for name, label in said.items() if name in found]
    items += [("swapped", "", "its K/V waits in the host pool")] if lanes.swapped else []
    items += [("end", "", "ended")] if lanes.ends else []
    items += [("waited", letter, f"waited: {visible(reason)}") for reason, letter in letters.items()]
    items += [("bar", "", "prefill tokens, at the bottom"), ("bar2", "", "decode tokens, on top")]
    marks: list[Mark] = []
    x, y = 0.0, top
    for name, letter, label in items:
        label = fit(label, width - 24, 11)
        needed = 24 + text_width(label, 11)
        if x and x + needed > width:
            x, y = 0.0, y + 20
        marks += _swatch(name, letter, x, y)
        marks.append(Text(x + 24, y + 11, label, size=11))
        x += needed + 18
    return marks, y + 18


def _swatch(name: str, letter: str, x: float, y: float) -> list[Mark]:
    w, h = 18.0, 14.0
    match name:
        case "waited":
            plate = Rect(x + 4, y + 2, 10, 10, fill="panel")
            text = Text(x + 9, y + 11, letter, size=11, bold=True, anchor="middle")
            return [Rect(x, y, w, h, stroke="muted", hatch=True), plate, text]
        case "preempted":
            text = Text(x + 9, y + 11, "P", size=11, fill="alarm", bold=True, anchor="middle")
            return [Rect(x, y, w, h, stroke="alarm", width=2), text]
        case "recompute":
            return [Rect(x, y, w, h, fill="c0", stroke="ink", width=1.5)]
        case "admitted":
            return [Rect(x, y, w, h, stroke="c0", dash=True)]
        case "swapped":
            return [Rect(x, y + 5, w, 3, fill="ink")]
        case "end":
            return [Rect(x + w - 3, y - 1, 3, h + 2, fill="ink")]
        case "bar" | "bar2":
            return [Rect(x + 4, y + 2, 10, h - 2, fill="muted" if name == "bar" else "mark")]
        case _:
            height = {"decode": 5.0, "verify": 10.0}.get(name, h)
            return [Rect(x, y + h - height, w, height, fill="c0")]
