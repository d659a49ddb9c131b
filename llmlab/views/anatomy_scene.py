"""The picture of a request's body: a bar of what its bytes are for, and below it a row per part."""

from __future__ import annotations

from dataclasses import dataclass, field

from llmlab.views.body_rows import CACHING, CONTENT, GLUE, NOT_KNOWN, POLICY, TRANSPORT, Body, BodyRow
from llmlab.views.body_rows import MARKER as MARKER_FIELD
from llmlab.views.glyphs import fit, text_width
from llmlab.views.phrases import count, fit_prose
from llmlab.views.scene import Key, Line, Mark, Rect, Scene, Text

ROW, MARKER, HEAD, STACK = 20, 18, 62, 66
FIRST, LAST, MOST = 8, 6, 48
HUES = {CONTENT: "c0", POLICY: "c1", TRANSPORT: "c4", CACHING: "c3", GLUE: "line", NOT_KNOWN: ""}
MEANING = {
    CONTENT: "the model reads it",
    POLICY: "how to answer",
    TRANSPORT: "how it travels",
    CACHING: "what to keep",
    GLUE: "JSON itself",
    NOT_KNOWN: "cut or unreadable",
}


@dataclass(frozen=True, slots=True)
class Heading:
    """What stands above the rows."""

    name: str
    where: str
    totals: str
    key: Key
    has_counts: bool


@dataclass(slots=True)
class Canvas:
    """Marks so far, and the left edges of the columns."""

    width: float
    size: int
    key: Key
    has_counts: bool
    marks: list[Mark] = field(default_factory=list)
    role_x: float = 250
    bytes_x: float = 388
    bar_x: float = 398
    bar_w: float = 190

    @property
    def value_x(self) -> float:
        """Where the values begin."""
        return self.bar_x + self.bar_w + (70 if self.has_counts else 16)


def anatomy_scene(body: Body, heading: Heading, width: float) -> Scene:
    """A row per part; the bars of all rows have one scale, the whole body."""
    canvas = Canvas(width, max(body.size, 1), heading.key, heading.has_counts)
    _head(canvas, heading)
    _stack(canvas, body)
    y = _headings(canvas, HEAD + STACK)
    numbers = {id(row): number for number, row in enumerate(body.breakpoints, 1)}
    for item in windowed(body.rows):
        if isinstance(item, list):
            _pool(canvas, item, y)
        else:
            _row(canvas, item, y)
            if item.breakpoint:
                y = _breakpoint(canvas, item, y + ROW, numbers[id(item)]) - ROW
        y += ROW
    return Scene(width, y + 6, tuple(canvas.marks))


def windowed(rows: list[BodyRow]) -> list[BodyRow | list[BodyRow]]:
    """Rows to draw; the middles of long lists become a list of what is not drawn."""
    if len(rows) <= MOST:
        return list(rows)
    kept = _kept(rows)
    items: list[BodyRow | list[BodyRow]] = []
    for row, is_kept in zip(rows, kept, strict=True):
        if is_kept:
            items.append(row)
        elif items and isinstance(items[-1], list):
            items[-1].append(row)
        else:
            items.append([row])
    return items


def _kept(rows: list[BodyRow]) -> list[bool]:
    """The first and last rows of every field and of the fields themselves, and the first few cache markers."""
    places: dict[int, list[int]] = {}  # of the rows below a field, by the place of the field
    fields: list[int] = []
    for place, row in enumerate(rows):
        if row.depth == 0:
            fields.append(place)
        else:
            places.setdefault(fields[-1], []).append(place)
    chosen = {*fields[:30], *fields[-4:]}
    for parent, below in places.items():
        if parent in chosen:
            chosen |= {*below[:FIRST], *below[-LAST:]}
    chosen |= set([place for place, row in enumerate(rows) if row.breakpoint][:8])
    return [place in chosen for place in range(len(rows))]


def _head(canvas: Canvas, heading: Heading) -> None:
    width = canvas.width
    canvas.marks.append(Rect(0, 0, width, 54, fill="faint", key=canvas.key))
    room = width - text_width(heading.where, 11) - 40
    canvas.marks.append(Text(10, 21, fit_prose(heading.name, room, 13, True), 13, bold=True, key=canvas.key))
    canvas.marks.append(Text(width - 10, 21, heading.where, 11, "muted", anchor="end"))
    canvas.marks.append(Text(10, 42, fit_prose(heading.totals, width - 20, 11), 11, "muted"))


def _stack(canvas: Canvas, body: Body) -> None:
    """All bytes in one bar, by what they are for."""
    x, legend = 0.0, 0.0
    said = {role: f"{role} {size:,} B: {MEANING[role]}" for role, size in body.by_role().items()}
    is_short = sum(31 + text_width(words, 10) for words in said.values()) > canvas.width
    for role, size in body.by_role().items():
        w = canvas.width * size / canvas.size
        tip = f"{role}: {count(size, 'byte')}, {size / canvas.size:.1%}: {MEANING[role]}"
        _bar(canvas, x, HEAD, w, 20, role, tip)
        words = f"{role} {size:,} B"
        if text_width(words, 11) + 12 < w:
            on = HUES[role]
            canvas.marks.append(Text(x + 6, HEAD + 14, words, 11, on=on) if on else Text(x + 6, HEAD + 14, words, 11))
        _bar(canvas, legend, HEAD + 30, 10, 10, role, tip)
        label = fit(words if is_short else said[role], canvas.width - legend - 15, 10)
        canvas.marks.append(Text(legend + 15, HEAD + 39, label, 10, "muted"))
        legend += 31 + text_width(label, 10)
        x += w


def _bar(canvas: Canvas, x: float, y: float, w: float, h: float, role: str, tip: str, is_leaf: bool = True) -> None:
    hue = HUES[role]
    stroke = "" if hue and is_leaf else hue or "muted"
    fill = hue if is_leaf else ""
    canvas.marks.append(Rect(x, y, max(w, 1), h, fill, stroke, dash=not hue, tip=tip, key=canvas.key))


def _headings(canvas: Canvas, y: float) -> float:
    titles = [(0.0, "part", "start"), (canvas.role_x, "for", "start"), (canvas.bytes_x, "bytes", "end")]
    titles += [(canvas.bar_x, f"share of {count(canvas.size, 'byte')}", "start"), (canvas.value_x, "value", "start")]
    titles += [(canvas.value_x - 14, "tokens", "end")] if canvas.has_counts else []
    canvas.marks += [Text(x, y, title, 11, "muted", anchor=anchor, bold=True) for x, title, anchor in titles]
    canvas.marks.append(Line(((0, y + 8), (canvas.width, y + 8))))
    return y + 12


def _row(canvas: Canvas, row: BodyRow, y: float) -> None:
    indent = 16 * row.depth
    tip = f"{row.path or row.label}: {count(row.bytes, 'byte')}, {row.bytes / canvas.size:.1%}"
    tip += f"; {row.why}" if row.why else ""
    is_syntax = row.role in (GLUE, NOT_KNOWN)
    is_bold = row.depth == 0 and not is_syntax
    label = fit_prose(row.label[:200], canvas.role_x - indent - 8, 11, is_bold)
    canvas.marks.append(Text(indent, y + 14, label, 11, "muted" if is_syntax else "ink", bold=is_bold, tip=tip))
    canvas.marks.append(Text(canvas.role_x, y + 14, row.role if row.is_leaf else "", 11, "muted"))
    canvas.marks.append(Text(canvas.bytes_x, y + 14, f"{row.bytes:,}", 11, anchor="end"))
    if row.bytes > 0:
        w = canvas.bar_w * row.bytes / canvas.size
        _bar(canvas, canvas.bar_x, y + 5, w, ROW - 10, row.role, tip, row.is_leaf)
    if canvas.has_counts and row.tokens is not None:
        canvas.marks.append(Text(canvas.value_x - 14, y + 14, f"{row.tokens:,}", 11, "muted", anchor="end"))
    if row.value:
        value = fit(row.value[:200], canvas.width - canvas.value_x, 10, True)
        canvas.marks.append(Text(canvas.value_x, y + 14, value, 10, "muted", mono=True))


def _breakpoint(canvas: Canvas, row: BodyRow, y: float, number: int) -> float:
    """A dashed line below a part that carries a cache marker. Returns where it ends."""
    what = "for the whole request" if row.path == MARKER_FIELD else "the prompt up to here"
    text = fit(f"▲ cache breakpoint {number}, kept for {row.breakpoint}: {what}", 480, 10)
    indent = 16 * row.depth
    right = canvas.width
    start = indent + text_width(text, 10) + 12
    tip = f"{row.path}; the prefix is tools, then system, then messages"
    canvas.marks.append(Text(indent, y + 11, text, 10, tip=tip))
    canvas.marks.append(Line(((start, y + 8), (right, y + 8)), "c3", 1.5, dash=True, tip=row.path, key=canvas.key))
    return y + MARKER


def _pool(canvas: Canvas, rows: list[BodyRow], y: float) -> None:
    size = sum(row.bytes for row in rows if row.is_leaf)
    text = f"⋮  {count(len(rows), 'row')} not drawn"
    tip = f"{text}, {count(size, 'byte')}"
    canvas.marks.append(Text(16, y + 14, text, 11, "muted", tip=tip))
    canvas.marks.append(Text(canvas.bytes_x, y + 14, f"{size:,}", 11, "muted", anchor="end"))
    w = canvas.bar_w * size / canvas.size
    canvas.marks.append(Rect(canvas.bar_x, y + 5, max(w, 1), ROW - 10, "", "muted", dash=True, tip=tip))
