"""K/V growth as marks: bytes over steps on the left, the same tokens under other attentions on the right."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from llmlab.trace.events import EngineInfo
from llmlab.views.glyphs import fit, text_width
from llmlab.views.kv_bytes import MLA_LATENT, MLA_ROPE, Costs, Growth, size
from llmlab.views.phrases import count
from llmlab.views.scene import Line, Mark, Rect, Text

LEFT, TOP, HEIGHT, BESIDE = 66, 26, 190, 330
MAX_COLUMNS = 240
TICKS = (1, 2, 5, 10, 20, 50, 100)
CUT = 4  # a bar longer than this many times the measured one is cut


@dataclass(frozen=True, slots=True)
class Axes:
    """Column ``i`` is ``pitch`` pixels wide; ``top`` bytes are at the upper end."""

    pitch: float
    top: float
    right: float

    def x(self, column: int) -> float:
        """Left edge of a column."""
        return LEFT + column * self.pitch

    def y(self, num_bytes: float) -> float:
        """Height of a number of bytes."""
        return TOP + HEIGHT * (1 - num_bytes / self.top)


def draw_growth(
    growth: Growth, info: EngineInfo, cost: Costs, request_id: str | None, width: float
) -> tuple[list[Mark], float]:
    """The marks and their height."""
    beside = width >= 720
    right = width - BESIDE - 24 if beside else width - 4
    columns = _columns(growth)
    block_bytes = info.block_size * cost.pool
    top = _round_up(float(growth.blocks.max()) * block_bytes)
    pitch = (right - LEFT) / len(columns)
    pitch = float(int(pitch)) if pitch >= 2 else pitch  # whole pixels leave no seams
    axes = Axes(pitch, top, LEFT + pitch * len(columns))
    marks = [*_scale(axes, growth, columns), *_areas(axes, growth, columns, info, cost, request_id)]
    foot = TOP + HEIGHT + 34
    legend, foot = _legend(foot, right)
    marks += legend
    if not beside:
        return [*marks, *_bars(growth, info, cost, 0, foot + 16, width)], foot + 16 + 200
    return [*marks, *_bars(growth, info, cost, width - BESIDE, 0, BESIDE)], foot


def _columns(growth: Growth) -> list[int]:
    """The places that are drawn: all steps, or of neighbours the one with most blocks."""
    num_steps = len(growth.steps)
    if num_steps <= MAX_COLUMNS:
        return list(range(num_steps))
    parts = np.array_split(np.arange(num_steps), MAX_COLUMNS)
    return [int(part[growth.blocks[part].argmax()]) for part in parts]


def _round_up(value: float) -> float:
    """The next of some round numbers times a power of ten and of 1,024."""
    unit = 1.0
    while value / unit >= 1_024:
        unit *= 1_024
    while value / unit > 10:
        unit *= 10
    return next(step * unit for step in (1, 1.2, 1.6, 2, 3, 4, 6, 8, 10) if step * unit >= value)


def _scale(axes: Axes, growth: Growth, columns: list[int]) -> list[Mark]:
    """Bytes at the left, steps beneath."""
    marks: list[Mark] = [Text(0, 12, "bytes of K/V", size=11, fill="muted")]
    for share in (0, 0.25, 0.5, 0.75, 1):
        y = axes.y(axes.top * share)
        marks.append(Line(((LEFT, y), (axes.right, y)), stroke="line" if share == 0 else "faint"))
        marks.append(Text(LEFT - 6, y + 3.5, size(axes.top * share), size=10, fill="muted", anchor="end"))
    every = next((t for t in TICKS if t * axes.pitch >= 40), TICKS[-1])
    pooled = len(columns) < len(growth.steps)
    for column, place in enumerate(columns):
        step, x = int(growth.steps[place]), axes.x(column) + axes.pitch / 2
        if (column if pooled else step) % every == 0 and x + text_width(str(step), 10) / 2 <= axes.right + 4:
            marks.append(Text(x, TOP + HEIGHT + 15, str(step), size=10, fill="muted", anchor="middle"))
    marks.append(Text(LEFT - 6, TOP + HEIGHT + 15, "step", size=10, fill="muted", anchor="end"))
    return marks


def _areas(
    axes: Axes, growth: Growth, columns: list[int], info: EngineInfo, cost: Costs, request_id: str | None
) -> list[Mark]:
    """A column a step: filled as far as tokens reach, outlined as far as blocks do, and two lines along the tops."""
    marks: list[Mark] = []
    block_bytes, floor = info.block_size * cost.pool, axes.y(0)
    measured: list[tuple[float, float]] = []
    for column, place in enumerate(columns):
        x, blocks, tokens = axes.x(column), int(growth.blocks[place]), int(growth.tokens[place])
        top = axes.y(blocks * block_bytes)
        key = {"step": int(growth.steps[place])} | ({"request": request_id} if request_id is not None else {})
        tip = _tip(growth, place, info, cost)
        marks.append(Rect(x, top, axes.pitch, floor - top, fill="faint", tip=tip, key=key))
        if tokens >= 0:
            y = axes.y(tokens * cost.formula)
            marks.append(Rect(x, y, axes.pitch, floor - y, fill="mark", opacity=0.55, tip=tip, key=key))
        measured += [(x, top), (x + axes.pitch, top)]
    marks.append(Line(tuple(measured), stroke="ink", width=1.5))
    return [*marks, *_formula_lines(axes, growth, columns, cost)]


def _formula_lines(axes: Axes, growth: Growth, columns: list[int], cost: Costs) -> list[Mark]:
    """The formula's dashed line, broken where the tokens are not known."""
    lines: list[list[tuple[float, float]]] = [[]]
    for column, place in enumerate(columns):
        tokens = int(growth.tokens[place])
        if tokens < 0:
            lines.append([])
            continue
        y = axes.y(tokens * cost.formula)
        lines[-1] += [(axes.x(column), y), (axes.x(column + 1), y)]
    return [Line(tuple(points), stroke="mark", width=2, dash=True) for points in lines if points]


def _tip(growth: Growth, place: int, info: EngineInfo, cost: Costs) -> str:
    blocks, tokens = int(growth.blocks[place]), int(growth.tokens[place])
    slots = blocks * info.block_size
    measured = f"step {growth.steps[place]}: {blocks} blocks, {size(slots * cost.pool)}"
    if tokens < 0:
        return f"{measured}; tokens not known"
    return f"{measured}; {tokens} tokens, {size(tokens * cost.formula)}; {slots - tokens} slots unfilled"


def _legend(y: float, right: float) -> tuple[list[Mark], float]:
    marks: list[Mark] = []
    x = float(LEFT)
    for label in ("blocks in use, measured", "tokens × formula", "unfilled ends of blocks"):
        if x > LEFT and x + 24 + text_width(label, 11) > right:
            x, y = float(LEFT), y + 20
        if label.startswith("blocks"):
            marks.append(Line(((x, y + 6), (x + 18, y + 6)), stroke="ink", width=1.5))
        elif label.startswith("tokens"):
            marks.append(Rect(x, y + 6, 18, 8, fill="mark", opacity=0.55))
            marks.append(Line(((x, y + 6), (x + 18, y + 6)), stroke="mark", width=2, dash=True))
        else:
            marks.append(Rect(x, y, 18, 14, fill="faint", stroke="line"))
        marks.append(Text(x + 24, y + 11, label, size=11))
        x += 24 + text_width(label, 11) + 14
    return marks, y + 26


def _bars(growth: Growth, info: EngineInfo, cost: Costs, x: float, y: float, width: float) -> list[Mark]:
    """The step with most blocks: measured, by the formula, and what other attentions would take."""
    place = growth.peak
    step, tokens, blocks = int(growth.steps[place]), int(growth.tokens[place]), int(growth.blocks[place])
    measured = blocks * info.block_size * cost.pool
    heading = f"Step {step}, the one with most blocks"
    marks: list[Mark] = [Text(x, y + 12, fit(heading, width, 12), size=12, bold=True, key={"step": step})]
    bars = [(f"{blocks} of {info.num_blocks} blocks of {info.block_size}, measured", measured, "measured")]
    if tokens >= 0:
        heads = count(info.num_kv_heads, "K/V head")
        bars.append((f"{tokens:,} tokens × {cost.formula:,} B: {heads}, formula", tokens * cost.formula, "formula"))
        if info.num_heads:
            bars.append((f"multi-head: {info.num_heads} K/V heads, computed", tokens * cost.mha, "computed"))
        latent = f"latent (MLA): {MLA_LATENT} + {MLA_ROPE} values a layer, computed"
        bars.append((latent, tokens * cost.mla, "computed"))
    largest = min(max(value for _, value, _ in bars), CUT * measured) or 1
    for i, (label, value, kind) in enumerate(bars):
        marks += _bar(x, y + 26 + i * 40, width, label, value, largest, kind, step)
    at = y + 26 + len(bars) * 40 + 8
    if tokens < 0:
        marks.append(Text(x, at, fit("Its tokens are not known.", width, 11), size=11, fill="muted"))
    elif not info.num_heads:
        said = "Multi-head: the number of query heads is not in the trace."
        marks.append(Text(x, at, fit(said, width, 10), size=10, fill="muted"))
    return marks


def _bar(
    x: float, y: float, width: float, label: str, value: float, largest: float, kind: str, step: int
) -> list[Mark]:
    """Measured: outlined; formula: filled; computed for a model that is not this one: dashed."""
    looks = {
        "measured": {"fill": "faint", "stroke": "ink"},
        "formula": {"fill": "mark", "opacity": 0.55},
        "computed": {"stroke": "muted", "dash": True},
    }
    shown = size(value) + (", bar cut" if value > largest else "")
    room = width - 18 - text_width(shown, 11)
    tip, key = f"{label}: {value:,} bytes", {"step": step}
    length = max(1.0, room * min(value / largest, 1))
    return [
        Text(x, y + 10, fit(label, width, 11), size=11, key=key),
        Rect(x, y + 15, length, 14, **looks[kind], tip=tip, key=key),
        Text(x + length + 6, y + 26, shown, size=11, bold=kind != "computed", tip=tip, key=key),
    ]
