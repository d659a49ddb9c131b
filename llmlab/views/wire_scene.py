"""The picture of one exchange: a row per event, in order; raw pieces, frames and message side by side."""

from __future__ import annotations

from collections import Counter

from llmlab.trace.exchange import CLIENT
from llmlab.views.assembly import APPEND, FAILED, OVERWRITE
from llmlab.views.glyphs import fit, text_width, visible
from llmlab.views.phrases import count, fit_end, fit_prose, ms, some
from llmlab.views.scene import Line, Rect, Scene, Text
from llmlab.views.wire_canvas import HEAD, HEADINGS, HUES, LEGEND, ROW, TIME, Canvas, Columns
from llmlab.views.wire_foot import legend_marks, message_marks
from llmlab.views.wire_rows import Piece, Record, Row
from llmlab.views.wire_window import Pool, windowed


def wire_scene(record: Record, number: int, total: int, width: float) -> Scene:
    """All rows, those of a long stream's middle pooled."""
    key = {"wire": record.exchange.id or ""} | ({"request": r[0]} if (r := record.exchange.request_ids) else {})
    sides = [side for side in (CLIENT, "gateway") if any(getattr(row, f"{side}_ns") is not None for row in record.rows)]
    canvas = Canvas(record, Columns(width, sides, bool(record.pieces) and record.is_streamed), key)
    _head(canvas, number, total)
    _headings(canvas)
    y = float(HEAD + HEADINGS)
    for item in windowed(record):
        if isinstance(item, Pool):
            _pool(canvas, item.rows, y)
        else:
            _row(canvas, item, y)
        y += ROW
    _pieces(canvas)
    _chips(canvas)
    y = message_marks(canvas, y)
    legend_marks(canvas, y)
    return Scene(width, y + (LEGEND if record.is_streamed else 8), tuple(canvas.marks))


# -- above the rows ------------------------------------------------------------------------------------------


def _head(canvas: Canvas, number: int, total: int) -> None:
    record, width = canvas.record, canvas.columns.width
    status = record.response.name if record.response is not None else "no response recorded"
    request = record.request.name if record.request is not None else "request not recorded"
    sides = " and ".join(sorted(record.exchange.sides))
    right = fit(f"{number} of {total}, recorded by {sides}", width / 2, 11)
    canvas.marks.append(Rect(0, 0, width, 54, fill="faint", key=canvas.key))
    room = width - text_width(right, 11) - 40
    canvas.marks.append(
        Text(10, 21, fit_prose(f"{request}  →  {status}", room, 13, True), 13, bold=True, key=canvas.key)
    )
    canvas.marks.append(Text(width - 10, 21, right, 11, "muted", anchor="end"))
    canvas.marks.append(Text(10, 42, fit_prose(_totals(record), width - 20, 11), 11, "muted", tip=_ids(record)))


def _ids(record: Record) -> str:
    exchange = record.exchange
    return f"gateway id {exchange.wire_id}, client id {exchange.client_id}, engine {some(exchange.request_ids)}"


def _totals(record: Record) -> str:
    parts = [f"request body {count(record.request.size, 'byte')}"] if record.request is not None else []
    if record.pieces:
        size = sum(piece.event.size for piece in record.pieces)
        parts.append(f"response body {count(size, 'byte')} in {count(len(record.pieces), 'piece')}")
    elif record.is_streamed:
        size = sum(row.event.size for row in record.frames)
        parts.append(f"response body {count(size, 'byte')}")
    elif record.response is not None:
        parts.append(f"response body {count(record.response.size, 'byte')}")
    if record.is_streamed:
        parts.append(count(len(record.frames), "frame"))
    parts.append(f"assembled {count(record.assembly.characters, 'character')}")
    if record.exchange.request_ids:
        parts.append(f"engine request {some(record.exchange.request_ids, 3)}")
    return "  ·  ".join(parts)


def _headings(canvas: Canvas) -> None:
    columns, y = canvas.columns, HEAD + 12
    titles = [(TIME * (i + 1), f"{side} ms", "end") for i, side in enumerate(columns.times)]
    titles += [(columns.piece_x, "raw pieces", "start")] if columns.has_pieces else []
    what = "frames" if canvas.record.is_streamed else "what passed (not a stream)"
    titles.append((columns.frame_x, what, "start"))
    titles += [(columns.message_x, "assembled message", "start")] if canvas.record.is_streamed else []
    canvas.marks += [Text(x, y, title, 11, "muted", anchor=anchor, bold=True) for x, title, anchor in titles]
    canvas.marks.append(Line(((0, y + 8), (columns.width, y + 8))))


# -- rows ----------------------------------------------------------------------------------------------------


def _row(canvas: Canvas, row: Row, y: float) -> None:
    _times(canvas, row, y)
    if row.kind == "frame":
        _frame(canvas, row, y)
    elif row.kind in ("request", "response"):
        _passing(canvas, row, y)
    elif row.kind == "bytes":
        _silent(canvas, row, y)
    else:
        _notice(canvas, row, y)


def _times(canvas: Canvas, row: Row, y: float) -> None:
    for i, side in enumerate(canvas.columns.times):
        at = getattr(row, f"{side}_ns")
        if at is not None:
            text = ms(at - canvas.record.start_ns)
            canvas.marks.append(Text(TIME * (i + 1), y + 14, text, 11, "muted", anchor="end"))


def _tip(record: Record, row: Row) -> str:
    parts = [f"{row.kind} {row.number + 1}" if row.number is not None else row.kind, row.event.name]
    parts.append(count(row.event.size, "byte"))
    for side in (CLIENT, "gateway"):
        at = getattr(row, f"{side}_ns")
        parts += [f"{side} {ms(at - record.start_ns)} ms"] if at is not None else []
    text = (row.event.text or "")[:60] if row.kind not in ("request", "response") else ""
    return ", ".join(parts) + (f": {text}" if text else "")


def _frame(canvas: Canvas, row: Row, y: float) -> None:
    columns, tip = canvas.columns, _tip(canvas.record, row)
    if row.piece is not None:
        canvas.piece_rows.setdefault(row.piece.number, []).append(y)
    x, w = columns.frame_x, columns.frame_w
    is_lost = row.event.side != canvas.record.side
    canvas.marks.append(
        Rect(x, y + 1.5, w, ROW - 3, "" if is_lost else "faint", "line", dash=is_lost, tip=tip, key=canvas.key)
    )
    size = f"{row.event.size:,} B"
    room = w - 16 - text_width(size, 10, True)
    name = fit(f"{row.event.name} (not received)" if is_lost else row.event.name, room, 11, True)
    canvas.marks.append(Text(x + 6, y + 14, name, 11, mono=True))
    canvas.marks.append(Text(x + w - 6, y + 14, size, 10, "muted", anchor="end", mono=True))
    rest = room - text_width(name, 11, True) - 10
    if rest > 60 and row.event.text:
        start = x + 12 + text_width(name, 11, True)
        text = fit(_excerpt(row.event.text), rest, 10, True)
        canvas.marks.append(Text(start, y + 14, text, 10, "muted", mono=True))
    if row.applied is not None:
        _applied(canvas, row, y)


def _excerpt(text: str) -> str:
    """The beginning of a frame's data; of a chunk, what differs from chunk to chunk."""
    at = text.find('"choices":', 0, 1_000)
    return text[:90] if at < 0 else f"…{text[at : at + 90]}"


def _applied(canvas: Canvas, row: Row, y: float) -> None:
    applied, columns = row.applied, canvas.columns
    x, right = columns.message_x, columns.width
    hue = HUES.get(applied.operation, "")
    is_bad = applied.operation == FAILED
    if hue or is_bad:
        canvas.chips.append((applied.operation, y))
    canvas.marks.append(
        Text(x + 36, y + 14, applied.operation, 10, "alarm" if is_bad else "ink" if hue else "muted", anchor="middle")
    )
    if applied.operation == APPEND:
        added = visible(applied.added, spaces=True, limit=24)
        canvas.marks.append(Text(x + 80, y + 14, fit(f"+ {added}", 86, 11, True), 11, mono=True, bold=True))
        shown = fit_end(applied.tail, right - x - 176, 11, True)
        canvas.marks.append(Text(x + 174, y + 14, shown, 11, "muted", mono=True))
    else:
        said = f"{applied.where}: {applied.note}" if applied.where and applied.note else applied.where or applied.note
        fill = "alarm" if is_bad else "muted"
        canvas.marks.append(Text(x + 80, y + 14, fit_prose(said, right - x - 82, 11), 11, fill, tip=said))


def _passing(canvas: Canvas, row: Row, y: float) -> None:
    columns, event = canvas.columns, row.event
    arrow = "→" if row.kind == "request" else "←"
    body = count(event.size, "byte")
    what = f"{arrow} request {event.name}, body of {body}" if row.kind == "request" else f"{arrow} status {event.name}"
    what += f", body of {body}" if row.kind == "response" and event.size else ""
    tip = _tip(canvas.record, row)
    x = columns.frame_x
    canvas.marks.append(
        Text(x, y + 14, fit_prose(what, columns.width - x, 11, True), 11, tip=tip, key=canvas.key, bold=True)
    )


def _silent(canvas: Canvas, row: Row, y: float) -> None:
    columns = canvas.columns
    x, w = (columns.piece_x, columns.piece_w) if columns.has_pieces else (columns.frame_x, columns.frame_w)
    text = f"{row.event.size:,} B  {row.event.text or ''}"
    tip = _tip(canvas.record, row)
    canvas.marks.append(Rect(x, y + 1.5, w, ROW - 3, "", "mark", tip=tip, key=canvas.key))
    canvas.marks.append(Text(x + 6, y + 14, fit(text[:300], w - 12, 10, True), 10, mono=True))
    if columns.has_pieces:
        said = fit("no frame ends in this piece", columns.frame_w, 11)
        canvas.marks.append(Text(columns.frame_x + 6, y + 14, said, 11, "muted"))


def _notice(canvas: Canvas, row: Row, y: float) -> None:
    columns, event = canvas.columns, row.event
    is_end = row.kind == "end"
    text = f"{row.kind} ({event.side}): {event.name}" + (f": {event.text[:300]}" if event.text else "")
    x = columns.piece_x
    if not is_end:
        tip = _tip(canvas.record, row)
        canvas.marks.append(Rect(x, y + 1.5, columns.width - x, ROW - 3, "", "c5", 1.5, dash=True, tip=tip))
    x = columns.frame_x if is_end else x + 8
    fill = "ink" if is_end else "alarm"
    canvas.marks.append(
        Text(
            x, y + 14, fit_prose(text, columns.width - x - 8, 11, not is_end), 11, fill, bold=not is_end, key=canvas.key
        )
    )


def _pool(canvas: Canvas, rows: list[Row], y: float) -> None:
    columns = canvas.columns
    x = columns.piece_x
    names = Counter(row.event.name for row in rows if row.kind == "frame")
    parts = [some((f"{n:,} x {name}" for name, n in names.most_common()), 3)] if names else []
    others = Counter(row.kind for row in rows if row.kind != "frame")
    parts += [
        count(n, "piece") + " in which no frame ends" if kind == "bytes" else count(n, kind)
        for kind, n in others.items()
    ]
    parts.append(count(sum(row.event.size for row in rows), "byte"))
    added = sum(len(row.applied.added) for row in rows if row.applied)
    parts += [f"{count(added, 'character')} appended"] if added else []
    text = fit_prose("⋮  not drawn: " + ", ".join(parts), columns.width - x - 8, 11)
    canvas.marks.append(Rect(x, y + 1.5, columns.width - x, ROW - 3, "", "line", dash=True, tip=text))
    canvas.marks.append(Text(x + 8, y + 14, text, 11, "muted"))


def _pieces(canvas: Canvas) -> None:
    """A box per piece over the rows of the frames that ended in it."""
    if canvas.columns.has_pieces:
        for number, ys in canvas.piece_rows.items():
            _piece(canvas, canvas.record.pieces[number], ys)


def _piece(canvas: Canvas, piece: Piece, ys: list[float]) -> None:
    x, w = canvas.columns.piece_x, canvas.columns.piece_w
    at = ms(piece.event.t_ns - canvas.record.start_ns)
    tip = f"piece {piece.number + 1}, {count(piece.event.size, 'byte')}, {count(piece.frames, 'frame')}, {at} ms"
    canvas.marks.append(Rect(x, ys[0] + 1.5, w, ys[-1] - ys[0] + ROW - 3, "", "mark", tip=tip, key=canvas.key))
    text = f"{piece.event.size:,} B  {(piece.event.text or '')[:60]}"
    canvas.marks.append(Text(x + 6, ys[0] + 14, fit(text, w - 12, 10, True), 10, mono=True))


def _chips(canvas: Canvas) -> None:
    """A box around the names of operations; rows that follow each other with the same one share it."""
    runs: list[list] = []
    for operation, y in canvas.chips:
        if runs and runs[-1][0] == operation and y - runs[-1][2] == ROW:
            runs[-1][2] = y
        else:
            runs.append([operation, y, y])
    for operation, first, last in runs:
        stroke, dash = HUES.get(operation, "c5"), operation in (OVERWRITE, FAILED)
        h = last - first + ROW - 5
        canvas.marks.append(
            Rect(canvas.columns.message_x, first + 2.5, 72, h, "", stroke, dash=dash, tip=operation, key=canvas.key)
        )
