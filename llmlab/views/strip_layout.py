"""Where the tokens of a strip lie: cells in lines, with the steps they belong to beneath."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from types import MappingProxyType

from llmlab.views.glyphs import fit, text_width
from llmlab.views.scene import Key, Line, Mark, Rect, Text
from llmlab.views.strip_tokens import TokenFact

GUTTER, LINE_HEIGHT = 74, 72
SMALL, SIZE, PAD, WIDEST = 10, 12, 4, 170
BOX_TOP, BOX, BAR_TOP, BAR, HELD, TRACK, STEP_LABEL = 14, 22, 38, 4, 47, 52, 63
LIFT = 10  # how much closer the steps are to boxes without anything beneath them
NO_KEY: Key = MappingProxyType({})
FILLS = MappingProxyType(
    {
        "prompt": "faint",
        "cached": "",
        "shared": "",
        "target": "",
        "accepted": "c2",
        "recovered": "c1",
        "bonus": "c3",
    }
)
OUTLINES = MappingProxyType(
    {
        "prompt": ("", 1),
        "accepted": ("", 1),
        "cached": ("c4", 1),
        "shared": ("c3", 1),
        "target": ("mark", 1),
        "recovered": ("ink", 2),
        "bonus": ("ink", 2),
    }
)


@dataclass(frozen=True, slots=True)
class Gap:
    """Tokens that are left out of the picture: from ``start`` up to, not including, ``end``."""

    start: int
    end: int

    @property
    def label(self) -> str:
        return f"… {self.end - self.start:,} tokens …"


@dataclass(frozen=True, slots=True)
class Cell:
    """A token, or what is left out, at its place; its step is ``lift`` pixels nearer to it than in other strips."""

    item: TokenFact | Gap
    x: float
    y: float
    width: float
    lift: float = 0

    @property
    def step(self) -> int:
        return self.item.step if isinstance(self.item, TokenFact) else -2


def window(facts: Sequence[TokenFact], limit: int) -> list[TokenFact | Gap]:
    """All facts, or the first and last of them with a gap between, ``limit`` in all."""
    if len(facts) <= limit:
        return list(facts)
    head = math.ceil(limit / 2)
    tail = limit - head
    gap = Gap(facts[head].position, facts[len(facts) - tail].position)
    return [*facts[:head], gap, *facts[len(facts) - tail :]]


def lay(items: Sequence[TokenFact | Gap], y: float, width: float) -> list[Cell]:
    """Cells from left to right, wrapped into lines of ``width`` pixels. Tokens of one step touch."""
    cells: list[Cell] = []
    lift = 0 if any(isinstance(i, TokenFact) and (i.held or not math.isnan(i.logprob)) for i in items) else LIFT
    x, step = float(GUTTER), None
    for item in items:
        cell_width = _cell_width(item, width - GUTTER)
        now = item.step if isinstance(item, TokenFact) else -2
        x += 0 if step is None else 1 if now == step else 4
        if x + cell_width > width and x > GUTTER:
            x, y = float(GUTTER), y + LINE_HEIGHT - lift
        cells.append(Cell(item, x, y, cell_width, lift))
        x, step = x + cell_width, now
    return cells


def _cell_width(item: TokenFact | Gap, available: float) -> float:
    if isinstance(item, Gap):
        return min(text_width(item.label, SIZE) + 4 * PAD, available)
    needed = [text_width(item.label, SIZE, mono=True) + 2 * PAD, text_width(str(item.token_id), SMALL) + PAD]
    if item.is_output:
        needed.append(text_width(str(item.step), SMALL) + PAD)
    return round(min(max(needed), WIDEST, available), 1)


def token_marks(cell: Cell, key: Key, tip: str) -> Iterator[Mark]:
    """Id, box with text, and the probability as a bar as wide as its share of the box."""
    fact, x, y = cell.item, cell.x, cell.y
    fill, middle = FILLS.get(fact.source, ""), cell.width / 2
    yield Text(x + middle, y + 10, str(fact.token_id), SMALL, "muted", anchor="middle", key=key)
    yield box(fact.source, x, y + BOX_TOP, cell.width, BOX, tip, key)
    label = fit(fact.label, cell.width - 2, SIZE, mono=True)
    yield Text(x + middle, y + BOX_TOP + 15, label, SIZE, on=fill, anchor="middle", mono=True, key=key)
    if not math.isnan(fact.logprob):
        share = math.exp(min(fact.logprob, 0))
        yield Rect(x, y + BAR_TOP, max(cell.width * share, 0.5), BAR, "mark", key=key)


def box(source: str, x: float, y: float, w: float, h: float, tip: str = "", key: Key = NO_KEY) -> Rect:
    """How a token of that source looks: by fill, outline, hatching and dashes, never by colour alone."""
    hatch, dash = source in ("cached", "shared"), source == "recovered"
    stroke, thick = OUTLINES.get(source, ("line", 1))
    return Rect(x, y, w, h, FILLS.get(source, ""), stroke, thick, hatch=hatch, dash=dash, tip=tip, key=key)


def gap_marks(cell: Cell, tip: str) -> Iterator[Mark]:
    """A dashed box with how many tokens are left out."""
    yield Rect(cell.x, cell.y + BOX_TOP, cell.width, BOX, "", "muted", dash=True, tip=tip)
    label = fit(cell.item.label, cell.width - 4, SIZE)
    yield Text(cell.x + cell.width / 2, cell.y + BOX_TOP + 15, label, SIZE, "muted", anchor="middle")


def line_marks(cells: Sequence[Cell], request_id: str) -> Iterator[Mark]:
    """What belongs to the lines: the position they begin with, steps beneath, text that was held back."""
    for number, (y, line) in enumerate(groupby(cells, key=lambda cell: cell.y)):
        line = list(line)
        first = line[0].item
        position = first.position if isinstance(first, TokenFact) else first.start
        yield Text(GUTTER - 8, y + BOX_TOP + 15, f"{position:,}", 11, "muted", anchor="end")
        if number == 0:
            yield from _row_labels(y, line[0].lift, any(_has_bar(cell) for cell in cells))
        yield from _steps(y - line[0].lift, line, request_id)
        yield from _held(y, line)


def _has_bar(cell: Cell) -> bool:
    return isinstance(cell.item, TokenFact) and not math.isnan(cell.item.logprob)


def _row_labels(y: float, lift: float, bars: bool) -> Iterator[Mark]:
    rows = [
        ("token id", y + 10),
        ("step", y - lift + STEP_LABEL),
        *([("probability", y + BAR_TOP + 7)] if bars else []),
    ]
    for label, baseline in rows:
        yield Text(GUTTER - 8, baseline, label, SMALL, "muted", anchor="end")


def _steps(y: float, line: Sequence[Cell], request_id: str) -> Iterator[Mark]:
    """Under the tokens of each step its number, and a line where there are several; dashed where no step computed."""
    for (step, source), group in groupby(line, key=lambda cell: (cell.step, _unstepped(cell))):
        group = list(group)
        left, right = group[0].x, group[-1].x + group[-1].width
        if step == -2:
            continue
        key = {"request": request_id, "step": step} if step >= 0 else {"request": request_id}
        if len(group) > 1 or step < 0:
            yield Line(((left, y + TRACK), (right, y + TRACK)), "muted", 1, dash=step < 0, key=key)
        names = (f"step {step}", str(step)) if step >= 0 else (source, source.split(",")[0], "")
        name = next((n for n in names if text_width(n, SMALL) <= right - left), "")
        if name:
            yield Text((left + right) / 2, y + STEP_LABEL, name, SMALL, "muted", anchor="middle", key=key)


def _unstepped(cell: Cell) -> str:
    """What is said instead of a step."""
    if cell.step != -1:
        return ""
    named = {"cached": "served from cache, not computed", "shared": "shared, computed by the first sample"}
    return named.get(cell.item.source, "step not recorded")


def _held(y: float, line: Sequence[Cell]) -> Iterator[Mark]:
    """From the first token whose text was held back to the one with which it came out, as far as this line goes.
    Dashed under tokens whose text never came."""
    for (reason, shown), group in groupby(line, key=_held_until):
        group = list(group)
        if not reason:
            continue
        releasing = [cell for cell in line if cell.step == shown] or [line[-1] if shown >= 0 else group[-1]]
        left, right = group[0].x, max(releasing[-1].x + releasing[-1].width, group[-1].x + group[-1].width)
        ends = ((left, y + HELD - 3), (left, y + HELD), (right, y + HELD), (right, y + HELD - 3))
        tip = reason if shown < 0 else f"text held back until step {shown}: {reason}"
        yield Line(ends, "alarm", 1.5, dash=shown < 0, tip=tip)


def _held_until(cell: Cell) -> tuple[str, int]:
    fact = cell.item
    return (fact.held, fact.shown) if isinstance(fact, TokenFact) and fact.held else ("", -1)
