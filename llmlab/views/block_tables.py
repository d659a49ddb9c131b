"""The block tables beneath a block map: one strip a request, its blocks in the order of its positions."""

from __future__ import annotations

from typing import TYPE_CHECKING

from llmlab.views.glyphs import fit, text_width
from llmlab.views.phrases import count
from llmlab.views.scene import Mark, Rect, Text

if TYPE_CHECKING:
    from llmlab.views.block_map import PoolPicture

MAX_TABLES = 16
LEFT = 190
CELL, ROW, HEIGHT = 30, 30, 20


def draw_tables(picture: PoolPicture, top: float, width: float) -> tuple[list[Mark], float]:
    """The marks from ``top`` on, and where they end."""
    requests = picture.tables()[:MAX_TABLES]
    if not requests:
        who = "no request holds a block" if picture.focus is None else "it holds no block"
        return [Text(0, top + 12, f"Block tables: {who} after this step.", size=12, fill="muted")], top + 20
    heading = "Block tables: block ids in the order of the positions"
    marks: list[Mark] = [Text(0, top + 12, fit(heading, width, 12), size=12, bold=True)]
    aside = text_width(heading, 12) + 40
    if picture.pool.hits and aside + 240 < width:
        marks.append(Rect(aside, top + 2, 14, 14, stroke="muted", hatch=True))
        marks.append(Text(aside + 20, top + 12, "came from the prefix cache (a hit)", size=12))
    y = top + 26
    for request_id in requests:
        marks += _strip(picture, request_id, y, width)
        y += ROW
    return marks, y


def _strip(picture: PoolPicture, request_id: str, y: float, width: float) -> list[Mark]:
    table, tokens = picture.pool.table(request_id), picture.pool.reached.get(request_id, 0)
    key = {"request": request_id}
    size = picture.pool.block_size
    detail = f"{count(len(table), 'block')}, {count(tokens, 'token')}"
    marks: list[Mark] = [
        Text(0, y + 9, picture.names.full(request_id, LEFT - 12, 12), size=12, bold=True, key=key),
        Text(0, y + 22, fit(detail, LEFT - 12, 10), size=10, fill="muted", key=key),
    ]
    for slot, place in enumerate(_places(len(table), int((width - LEFT) // CELL))):
        x = LEFT + slot * CELL
        if place is None:
            marks.append(Text(x + CELL / 2, y + 14, "…", size=12, fill="muted", anchor="middle"))
            continue
        marks += _cell(picture, request_id, table[place], place, min(size, max(0, tokens - place * size)), (x, y))
    return marks


def _places(length: int, room: int) -> list[int | None]:
    """Places of a table that are drawn: all, or its beginning and end around a ``None``."""
    if length <= room:
        return list(range(length))
    head = max(1, room // 2)
    tail = max(1, room - head - 1)
    return [*range(head), None, *range(length - tail, length)]


def _cell(
    picture: PoolPicture, request_id: str, block_id: int, place: int, held: int, at: tuple[float, float]
) -> list[Mark]:
    """A block: filled from the left as far as it holds tokens."""
    x, y = at
    size, colour = picture.pool.block_size, picture.names.hue(request_id)
    is_hit = (request_id, place) in picture.pool.hits
    tip = f"{request_id}: place {place} is block {block_id}, {held} of {size} tokens"
    key = {"request": request_id, "block": block_id, "position": place * size}
    box = CELL - 3
    marks: list[Mark] = []
    if 0 < held < size:
        marks.append(Rect(x, y + HEIGHT - 4, box * held / size, 4, fill=colour))
        marks.append(Rect(x, y, box, HEIGHT, stroke=colour, tip=tip, key=key))
    elif held:
        tip += ", from the prefix cache" if is_hit else ""
        marks.append(Rect(x, y, box, HEIGHT, fill=colour, hatch=is_hit, tip=tip, key=key))
    else:
        marks.append(Rect(x, y, box, HEIGHT, stroke=colour, dash=True, tip=tip, key=key))
    label = str(block_id)
    if text_width(label, 10) <= box:
        on = colour if held == size else ""
        if is_hit and on:  # the number is not struck through
            plate = text_width(label, 10) + 4
            marks.append(Rect(x + (box - plate) / 2, y + 4, plate, HEIGHT - 8, fill=colour, tip=tip, key=key))
        marks.append(Text(x + box / 2, y + 13.5, label, size=10, on=on, anchor="middle", key=key))
    return marks
