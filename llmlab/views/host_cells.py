"""The host pool beneath a block map: one small cell a block."""

from __future__ import annotations

from llmlab.views.glyphs import fit, text_width, visible
from llmlab.views.host_pool import HostPool
from llmlab.views.names import Names
from llmlab.views.scene import Mark, Rect, Text

CELL, MAX_CELLS = 20, 512


def draw_host(host: HostPool, names: Names, top: float, width: float) -> tuple[list[Mark], float]:
    """The marks from ``top`` on, and where they end."""
    heading = f"Host pool: {host.num_held} of {host.size} blocks wait for their request"
    marks: list[Mark] = [Text(0, top + 12, fit(heading, width, 12), size=12, bold=True)]
    aside = text_width(heading, 12) + 40
    for look, label in (({"fill": "muted"}, "swapped out"), ({"stroke": "muted", "dash": True}, "may be found again")):
        if aside + 20 + text_width(label, 12) < width:
            marks += [Rect(aside, top + 2, 14, 14, **look), Text(aside + 20, top + 12, label, size=12)]
        aside += 44 + text_width(label, 12)
    columns, shown = max(1, int(width // CELL)), min(host.size, MAX_CELLS)
    for block_id in range(shown):
        row, column = divmod(block_id, columns)
        marks += _cell(host, names, block_id, column * CELL, top + 24 + row * CELL)
    return marks, top + 24 + -(-shown // columns) * CELL


def _cell(host: HostPool, names: Names, block_id: int, x: float, y: float) -> list[Mark]:
    side, owner = CELL - 3.0, host.blocks.get(block_id)
    tip = f"host block {block_id}"
    if owner is None:
        return [Rect(x, y, side, side, stroke="line", tip=f"{tip}: no copy to it is recorded")]
    whose = visible(owner) if owner else "an evicted prefix"
    if not host.held(block_id):
        return [Rect(x, y, side, side, stroke="muted", dash=True, tip=f"{tip}: copied for {whose}, may be found again")]
    key, hue = {"request": owner}, names.hue(owner)
    marks: list[Mark] = [Rect(x, y, side, side, fill=hue, tip=f"{tip}: swapped out with {whose}", key=key)]
    label = names.short(owner)
    if text_width(label, 9) <= side:
        marks.append(Text(x + side / 2, y + side / 2 + 3, label, size=9, on=hue, anchor="middle", key=key))
    return marks
