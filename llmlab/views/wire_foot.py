"""Below the rows of a wire's picture: what the frames add up to, and what the operations mean."""

from __future__ import annotations

from llmlab.views.assembly import APPEND, OVERWRITE, SNAPSHOT
from llmlab.views.glyphs import fit, text_width
from llmlab.views.phrases import count, fit_prose
from llmlab.views.scene import Line, Rect, Text
from llmlab.views.wire_canvas import HUES, ROW, Canvas
from llmlab.views.wire_rows import Record

MEANING = (
    (APPEND, "added to what is there"),
    (OVERWRITE, "replaces what was there"),
    (SNAPSHOT, "totals so far; they replace earlier totals"),
)


def message_marks(canvas: Canvas, y: float) -> float:
    """What it all adds up to: a line per part. Returns where it ends."""
    record, width = canvas.record, canvas.columns.width
    y += 12
    canvas.marks.append(Line(((0, y), (width, y))))
    rows = [(part.kind, part.text, count(len(part.text), "character")) for part in record.assembly.parts()]
    left = len(rows) - 6
    for kind, text, size in rows[:6]:
        y += ROW
        canvas.marks.append(Text(10, y - 2, fit_prose(kind, 110, 11, True), 11, "muted", bold=True))
        room = width - 130 - text_width(size, 11) - 24
        canvas.marks.append(Text(130, y - 2, fit(text[:400], room, 11, True), 11, mono=True, key=canvas.key))
        canvas.marks.append(Text(width - 10, y - 2, size, 11, "muted", anchor="end"))
    if left > 0:
        y += ROW
        canvas.marks.append(Text(130, y - 2, f"and {count(left, 'part')} more", 11, "muted"))
    y += ROW
    canvas.marks.append(Text(10, y - 2, fit_prose(_ending(record), width - 20, 11), 11, _fill(record)))
    return y


def _fill(record: Record) -> str:
    return "alarm" if record.assembly.problem else "ink"


def _ending(record: Record) -> str:
    assembly = record.assembly
    if assembly.problem:
        return f"not usable: {assembly.problem}"
    usage = ", ".join(f"{name} {value}" for name, value in assembly.usage.items() if type(value) is int and value)
    parts = [f"stop reason {assembly.stop_reason}" if assembly.stop_reason else "no stop reason so far"]
    return "  ·  ".join([*parts, *([f"usage {usage}"] if usage else [])])


def legend_marks(canvas: Canvas, y: float) -> None:
    """The three ways in which a frame changes a message (article A, section 3.4)."""
    x, y = 10.0, y + 26
    if not canvas.record.is_streamed:
        return
    for operation, meaning in MEANING:
        dash = operation == OVERWRITE
        canvas.marks.append(Rect(x, y - 12, 64, 15, "", HUES[operation], dash=dash))
        canvas.marks.append(Text(x + 32, y - 1, operation, 10, anchor="middle"))
        canvas.marks.append(Text(x + 70, y - 1, meaning, 11, "muted"))
        x += 70 + text_width(meaning, 11) + 24
