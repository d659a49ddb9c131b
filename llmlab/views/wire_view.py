"""One exchange as it crossed the wire: the pieces that came, the frames in them, the message they add up to."""

from __future__ import annotations

from collections import Counter
from itertools import groupby

import pandas as pd

from llmlab.trace.trace import Trace
from llmlab.views.exchange_choice import HOW_TO_RECORD, choose_exchange, has_exchanges
from llmlab.views.glyphs import visible
from llmlab.views.missing import missing_view
from llmlab.views.phrases import count, quoted, some
from llmlab.views.view import View
from llmlab.views.wire_rows import Record, Row, read
from llmlab.views.wire_scene import wire_scene
from llmlab.views.wire_window import WINDOW

QUIET = ("ping", "comment")  # sent by the clock, so a second run may have another number of them
COLUMNS = (
    "kind",
    "side",
    "name",
    "bytes",
    "frame",
    "client_ms",
    "gateway_ms",
    "piece",
    "piece_bytes",
    "operation",
    "part",
    "added",
    "message_characters",
    "note",
    "text",
)


def wire_view(trace: Trace, wire_id: str | None = None, *, width: float = 960) -> View:
    """Raw pieces, parsed frames and the assembled message of one exchange, in order, with the time on either side.

    ``wire_id``: the gateway's or the client's id of the exchange, or an engine request it was served by; the exchange
    that began last when ``None``. The message is put together again from the recorded frames. Raises
    ``UnknownRequest``.
    """
    if wire_id is None and not has_exchanges(trace):
        return missing_view("wire_view", "The wire", HOW_TO_RECORD, COLUMNS, width)
    place, exchange = choose_exchange(trace, wire_id)
    record = read(exchange)
    number, total = place + 1, len(trace.index.exchanges.all)
    facts = _facts(record, number, total, _next_number(trace, record))
    return View(
        name="wire_view",
        title=f"The wire: exchange {number} of {total}",
        alt=_alt(record, number),
        text="\n".join(facts),
        scene=wire_scene(record, number, total, width),
        frame=_table(record),
        notes=_notes(record),
    )


# -- text ----------------------------------------------------------------------------------------------------


def head_line(record: Record) -> str:
    """Method, path and status."""
    request = record.request.name if record.request is not None else "the request was not recorded"
    status = record.response.name if record.response is not None else "no response was recorded"
    return f"{request}, {f'status {status}' if record.response is not None else status}"


def _next_number(trace: Trace, record: Record) -> int | None:
    """Number of the exchange that tried this one again."""
    ids = {str(stage.details["next_id"]) for stage in record.exchange.stages if "next_id" in stage.details}
    found = enumerate(trace.index.exchanges.all, 1)
    return next((number for number, each in found if each.client_id in ids), None)


def _facts(record: Record, number: int, total: int, following: int | None) -> list[str]:
    sides = " and ".join(sorted(record.exchange.sides)) or "nobody"
    sides = visible(sides, limit=60)
    facts = [f"exchange {number} of {total}: {visible(head_line(record), limit=160)}; recorded by {sides}"]
    if record.request is not None:
        facts.append(f"request: a body of {count(record.request.size, 'byte')}")
    if record.exchange.request_ids:
        facts.append(f"engine: {some(record.exchange.request_ids)}")
    facts += _frame_facts(record)
    facts += _message_facts(record)
    facts += [_notice_fact(row) for row in record.rows if row.kind in ("fault", "warning", "retry", "error")][:12]
    facts += ["disconnect: the connection ended early"] if any(r.kind == "disconnect" for r in record.rows) else []
    facts += [f"tried again as exchange {following}"] if following else []
    return facts


def _frame_facts(record: Record) -> list[str]:
    if not record.is_streamed:
        return ["the reply came in one piece, not as a stream of frames"] if record.response is not None else []
    told = [row.event.name for row in record.frames if row.event.name not in QUIET]
    runs = [(name, len(list(group))) for name, group in groupby(told)]
    names = some((f"{n} x {visible(name, limit=40)}" if n > 1 else visible(name, limit=40) for name, n in runs), 10)
    done = Counter(row.applied.operation for row in record.frames if row.applied and row.event.name not in QUIET)
    operations = ", ".join(f"{operation} {done[operation]}" for operation in done)
    return [f"{count(len(told), 'frame')} besides pings: {names}", f"operations: {operations}"]


def _message_facts(record: Record) -> list[str]:
    assembly = record.assembly
    facts = [
        f"assembled {visible(part.kind, limit=40)}: {count(len(part.text), 'character')} {quoted(part.text, 120)}"
        for part in assembly.parts()[:8]
    ]
    if assembly.stop_reason:
        facts.append(f"stop reason: {visible(str(assembly.stop_reason), limit=60)}")
    numbers = [f"{visible(name, limit=40)} {value}" for name, value in assembly.usage.items() if type(value) is int]
    facts += [f"usage: {some(numbers, 12)}"] if numbers else []
    facts += [f"not usable: {visible(assembly.problem, limit=120)}"] if assembly.problem else []
    return facts


def _notice_fact(row: Row) -> str:
    return f"{row.kind} ({row.event.side}): {visible(row.event.name, limit=100)}"


def _alt(record: Record, number: int) -> str:
    told = sum(row.event.name not in QUIET for row in record.frames)
    how = f"{count(told, 'frame')} besides pings" if record.is_streamed else "a reply in one piece"
    whole = count(record.assembly.characters, "character")
    return f"Exchange {number} with {how}, which add up to a message of {whole}."


def _notes(record: Record) -> tuple[str, ...]:
    notes = []
    if record.attempts > 1:
        notes.append(f"{record.attempts} attempts were made under this id; the last one is shown.")
    if len(record.frames) > 2 * WINDOW:
        notes.append(f"The first {WINDOW} and the last {WINDOW} frames are drawn; the table has all of them.")
    if record.assembly.is_cut:
        notes.append("A frame or body is cut in the record: the assembled message lacks what was cut.")
    if record.is_streamed and not record.pieces:
        notes.append("The pieces that passed the socket are not known: the client's side was not recorded.")
    if record.is_streamed and not record.assembly.is_complete:
        notes.append("No proper end of the stream is recorded so far: the message is what came until now.")
    return tuple(notes)


# -- table ---------------------------------------------------------------------------------------------------


def _table(record: Record) -> pd.DataFrame:
    """A row per recorded event, in the picture's order, none left out."""
    return pd.DataFrame([_cells(record, row) for row in record.rows], columns=list(COLUMNS))


def _cells(record: Record, row: Row) -> tuple:
    applied, piece = row.applied, row.piece
    start = record.start_ns
    return (
        row.kind,
        row.event.side,
        row.event.name,
        row.event.size,
        pd.NA if row.number is None else row.number,
        float("nan") if row.client_ns is None else (row.client_ns - start) / 1e6,
        float("nan") if row.gateway_ns is None else (row.gateway_ns - start) / 1e6,
        pd.NA if piece is None else piece.number,
        pd.NA if piece is None else piece.event.size,
        applied.operation if applied else None,
        applied.where if applied else None,
        applied.added if applied else None,
        applied.characters if applied else pd.NA,
        applied.note if applied else None,
        row.event.text,
    )
