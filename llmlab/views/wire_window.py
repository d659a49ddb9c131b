"""Which rows of a long exchange are drawn."""

from __future__ import annotations

from dataclasses import dataclass

from llmlab.views.wire_rows import NOTICES, Record, Row

WINDOW = 20  # frames drawn at either end of a long stream
MOST_NOTICES = 30


@dataclass(frozen=True, slots=True)
class Pool:
    """Rows that are not drawn one by one."""

    rows: list[Row]


def windowed(record: Record) -> list[Row | Pool]:
    """The rows to draw; a run of the others becomes one pool."""
    items: list[Row | Pool] = []
    for row, is_kept in zip(record.rows, _kept(record), strict=True):
        if is_kept:
            items.append(row)
        elif items and isinstance(items[-1], Pool):
            items[-1].rows.append(row)
        else:
            items.append(Pool([row]))
    return items


def _kept(record: Record) -> list[bool]:
    frames, silent, notices = len(record.frames), 0, 0
    kept = []
    for row in record.rows:
        if row.kind == "frame":
            kept.append(row.number < WINDOW or row.number >= frames - WINDOW)
        elif row.kind == "bytes":
            silent += 1
            kept.append(silent <= 3)
        elif row.kind in NOTICES:
            notices += 1
            kept.append(notices <= MOST_NOTICES or row.kind in ("end", "disconnect"))
        else:
            kept.append(True)
    return kept
