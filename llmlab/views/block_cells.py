"""The grid of a block map: one cell a block, with a legend that counts the states."""

from __future__ import annotations

from typing import TYPE_CHECKING

from llmlab.trace.blocks import BlockState
from llmlab.views.glyphs import text_width, visible
from llmlab.views.scene import Line, Mark, Rect, Text

if TYPE_CHECKING:
    from llmlab.views.block_map import PoolPicture

MAX_DRAWN = 4_096
LEFT = 40  # room for the block ids at the beginning of each row
LEGEND = 34
BIG, SMALL = 20.0, 9.0  # cells at least this wide have a text, cells narrower than that no outline but one
FAINT = 0.3


def draw_pool(picture: PoolPicture, width: float) -> tuple[list[Mark], float]:
    """The marks and their height."""
    marks = _legend(picture, width)
    top = max((mark.y for mark in marks if isinstance(mark, Text)), default=0) + 18
    ids = list(picture.states)[:MAX_DRAWN]
    columns, size = _layout(len(ids), width)
    for row in range(-(-len(ids) // columns)):
        line, y = ids[row * columns : (row + 1) * columns], top + row * size
        if row % max(1, int(14 // size)) == 0:
            marks.append(Text(LEFT - 6, y + size / 2 + 3.5, str(line[0]), size=10, fill="muted", anchor="end"))
        marks += _row(picture, line, y, size)
    height = -(-len(ids) // columns) * size
    if size < BIG:  # long runs of empty blocks are one box: cut it into cells
        edges = [LEFT + column * size for column in range(1, min(columns, len(ids)))]
        marks[:0] = [Line(((x, top), (x, top + height)), stroke="line") for x in edges]
    return marks, top + height


def _layout(num_blocks: int, width: float) -> tuple[int, float]:
    """Columns and size of a cell: a power of two columns, as wide as the picture lets them be."""
    smallest = 24.0 if num_blocks <= 256 else 12.0 if num_blocks <= 1_024 else 6.0
    columns = 8
    while columns < 128 and (width - LEFT) / (2 * columns) >= smallest:
        columns *= 2
    return columns, min(28.0, float((width - LEFT) // columns))


def _row(picture: PoolPicture, line: list[int], y: float, size: float) -> list[Mark]:
    marks: list[Mark] = []
    at = 0
    while at < len(line):
        run = _untouched_run(picture, line, at) if size < BIG else 0
        if run > 1:
            marks.append(_run(picture, line[at : at + run], LEFT + at * size, y, size))
        else:
            marks += _cell(picture, line[at], LEFT + at * size, y, size)
        at += max(run, 1)
    return marks


def _untouched_run(picture: PoolPicture, line: list[int], at: int) -> int:
    """How many neighbours from ``at`` on are equally empty: small cells are drawn as one."""
    end = at
    state = picture.state(line[at])
    while end < len(line) and state in ("free", "unknown") and picture.state(line[end]) == state:
        if line[end] in picture.evicted:
            break
        end += 1
    return end - at


def _run(picture: PoolPicture, ids: list[int], x: float, y: float, size: float) -> Rect:
    state = picture.state(ids[0])
    tip = f"blocks {ids[0]} to {ids[-1]}: {state}"
    look = {"stroke": "line"} if state == "free" else {"fill": "faint"}
    return Rect(x + 0.5, y + 0.5, size * len(ids) - 1, size - 1, **look, tip=tip, key={"block": ids[0]})


def _cell(picture: PoolPicture, block_id: int, x: float, y: float, size: float) -> list[Mark]:
    state, name = picture.states[block_id], picture.state(block_id)
    gap = 1.5 if size >= BIG else 0.5
    x, y, side = x + gap, y + gap, size - 2 * gap
    key = {"block": block_id} | ({"request": state.owners[0]} if state and state.owners else {})
    tip = _tip(picture, block_id, state, name, brief=side < SMALL)
    if name in ("in use", "shared") and state and state.owners:
        marks = _used(picture, state, (x, y, side), tip, key)
    else:
        marks = [_unused(name, (x, y, side), tip, key)]
    if state and state.hash and side >= SMALL:
        corner = 5 if side >= BIG else 3
        marks.append(Rect(x + side - corner, y, corner, corner, fill="ink"))
    if block_id in picture.evicted:
        bar = 4 if side >= BIG else 2
        marks.append(Rect(x, y + side - bar, side, bar, fill="alarm"))
    return marks


def _unused(name: str, box: tuple[float, float, float], tip: str, key: dict) -> Rect:
    x, y, side = box
    looks = {"free": {"stroke": "line"}, "cached": {"stroke": "muted", "dash": side >= SMALL}}
    return Rect(x, y, side, side, **looks.get(name, {"fill": "faint"}), tip=tip, key=key)


def _used(picture: PoolPicture, state: BlockState, box: tuple[float, float, float], tip: str, key: dict) -> list[Mark]:
    x, y, side = box
    is_faint = picture.focus is not None and picture.focus not in state.owners
    look = {"fill": picture.names.hue(state.owners[0]), "opacity": FAINT if is_faint else 1, "tip": tip, "key": key}
    if state.ref_count == 1:
        marks: list[Mark] = [Rect(x, y, side, side, **look)]
    elif side < SMALL:
        marks = [Rect(x, y, side, side, stroke="ink", width=1.5, **look)]
    else:
        inset = 3 if side >= BIG else 2
        inner = side - 2 * inset
        marks = [Rect(x, y, side, side, stroke="ink"), Rect(x + inset, y + inset, inner, inner, **look)]
    label = picture.names.short(state.owners[0]) if state.ref_count == 1 else f"×{state.ref_count}"
    if side >= BIG and not is_faint and text_width(label, 10) <= side:
        marks.append(Text(x + side / 2, y + side / 2 + 3.5, label, size=10, on=str(look["fill"]), anchor="middle"))
    return marks


def _tip(picture: PoolPicture, block_id: int, state: BlockState | None, name: str, brief: bool) -> str:
    """All that is known; thousands of blocks say only who holds them."""
    if brief and name in ("in use", "cached") and state:
        return f"block {block_id}: {visible(state.owners[0]) if state.owners else name}"
    parts = [f"block {block_id}: {name}"]
    if state and state.owners:
        shown = ", ".join(map(visible, state.owners[:8]))
        parts.append(f"{state.ref_count} table(s): {shown}" + ("…" if len(state.owners) > 8 else ""))
    if state and state.hash:
        parts.append(f"hash {state.hash}")
    if block_id in picture.evicted:
        parts.append(f"evicted {picture.when}")
    return "; ".join(parts)


def _legend(picture: PoolPicture, width: float) -> list[Mark]:
    """What the looks mean, each with its number of blocks."""
    counts = picture.counts()
    items = [
        ("free", f"free {counts['free']}"),
        ("cached", f"cached, can be hit or evicted {counts['cached']}"),
        ("in use", f"in use {counts['in use']}"),
        ("shared", f"shared {counts['shared']}"),
        ("unknown", f"unknown {counts['unknown']}"),
        ("hashed", f"hashed {picture.num_hashed}"),
        ("evicted", f"evicted {picture.when}: {len(picture.evicted)}"),
    ]
    marks: list[Mark] = []
    x, y = 0.0, 2.0
    for name, label in items:
        if name == "unknown" and not counts["unknown"]:
            continue
        needed = 20 + text_width(label, 12)
        if x and x + needed > width:
            x, y = 0.0, y + 20
        marks += _swatch(name, x, y)
        marks.append(Text(x + 20, y + 11, label, size=12))
        x += needed + 16
    return marks


def _swatch(name: str, x: float, y: float) -> list[Mark]:
    side = 14.0
    match name:
        case "in use":
            return [Rect(x, y, side, side, fill="muted")]
        case "shared":
            return [Rect(x, y, side, side, stroke="ink"), Rect(x + 3, y + 3, side - 6, side - 6, fill="muted")]
        case "hashed":
            return [Rect(x, y, side, side, stroke="line"), Rect(x + side - 5, y, 5, 5, fill="ink")]
        case "evicted":
            return [Rect(x, y, side, side, stroke="line"), Rect(x, y + side - 4, side, 4, fill="alarm")]
        case _:
            return [_unused(name, (x, y, side), "", {})]
