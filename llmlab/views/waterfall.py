"""One request on one clock, from the client's bytes to its usage."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import pandas as pd

from llmlab.trace.index import Index
from llmlab.trace.requests import cached_tokens, num_prompt
from llmlab.trace.trace import Trace
from llmlab.views.choose import choose_request
from llmlab.views.glyphs import fit, text_width, visible
from llmlab.views.missing import missing_view
from llmlab.views.scene import Key, Line, Mark, Rect, Scene, Text
from llmlab.views.timeaxis import TimeAxis, duration
from llmlab.views.view import View
from llmlab.views.waterfall_rows import ENGINE, Life, Row, life_of, rows_of

NAMES, LABELS = 172, 124  # pixels left and right of the bars
TOP, ROW, SECTION = 20, 18, 25
MAX_BARS, MAX_PHASE_BARS, TICK_DISTANCE = 80, 40, 8
FILLS = {"client": "c4", "gateway": "c1", ENGINE: "c3", "prefill": "c0", "decode": "c2", "phase": "c7", "trouble": "c5"}
WORDS = {"client": "the client", "gateway": "the gateway", ENGINE: "the engine"}
COLUMNS = ("side", "row", "part", "start_ms", "duration_ms", "step", "note")


def waterfall(trace: Trace, request_id: str | None = None, *, width: float = 960) -> View:
    """The stages of one request, nested by who recorded them, over the engine steps it ran in.

    The rows ``queue``, ``prefill``, ``decode`` and ``between its steps`` tile the request's time in the engine. Raises
    ``UnknownRequest``.
    """
    if request_id is None and not trace.index.request_ids:
        what = (
            "There is no request in this trace: lab.ask('...'), or lab.client().send({...}) over the wire, records one."
        )
        return missing_view("waterfall", "Waterfall", what, COLUMNS, width)
    request_id = choose_request(trace, request_id)
    index = trace.index
    life = life_of(index, request_id)
    rows = rows_of(index, request_id, life)
    start = min([life.submitted, *(time[0] for row in rows for time in row.times)])
    end = max([life.end, *(time[1] for row in rows for time in row.times)])
    drawing = _Drawing(index, request_id, life, rows, TimeAxis(start, end, NAMES, width - NAMES - LABELS), width)
    scene = drawing.scene()
    return View(
        "waterfall",
        f"Waterfall of request {request_id}",
        f"Waterfall of request {request_id}: {_sides(rows)} on one clock, {_story(index, life, request_id)}.",
        _text(index, request_id, life, rows),
        scene,
        _table(rows, start),
        tuple(drawing.notes),
    )


def _sides(rows: Sequence[Row]) -> str:
    sides = list(dict.fromkeys(WORDS[row.side] for row in rows)) or [WORDS[ENGINE]]
    return " and ".join([", ".join(sides[:-1]), sides[-1]] if len(sides) > 1 else sides)


# -- words ---------------------------------------------------------------------------------------------------


def _story(index: Index, life: Life, request_id: str) -> str:
    prefill, decode = int(life.is_prefill.sum()), int((~life.is_prefill).sum())
    finished = index.finished.get(request_id)
    ending = f"ended by {visible(finished.stop_reason)}" if finished else "not finished"
    return f"{prefill} prefill and {decode} decode steps, {ending}"


def _usage(index: Index, request_id: str) -> str:
    output = sum(token.request_id == request_id for token in index.tokens)
    cached = cached_tokens(index)[request_id]
    return f"{num_prompt(index, request_id):,} prompt tokens ({cached:,} cached), {output:,} output tokens"


def _text(index: Index, request_id: str, life: Life, rows: Sequence[Row]) -> str:
    lines = [f"{request_id}: {_usage(index, request_id)}; {_story(index, life, request_id)}"]
    for side in dict.fromkeys(row.side for row in rows):
        named = [
            row for row in rows if row.side == side and row.kind in ("stage", "queue", "prefill", "decode", "trouble")
        ]
        words = [row.name + (f" ({row.note})" if row.note else "") for row in named]
        lines.append(f"{side}: {', '.join(words)}")
    if len(life.places):
        numbers = [index.steps[place].step for place in life.places]
        lines.append(
            f"steps {numbers[0]} to {numbers[-1]}: in {len(numbers)} of the {_num_meanwhile(life)} in that time"
        )
    again = [d for d in index.decisions if d.action == "preempted" and d.request_id == request_id]
    lines += [f"preempted in step {d.step}: {d.reason}" for d in again]
    return "\n".join(lines)


def _num_meanwhile(life: Life) -> int:
    return int(life.places[-1] - life.places[0]) + 1


def _table(rows: Sequence[Row], zero: int) -> pd.DataFrame:
    records = [
        (
            row.side,
            row.name,
            part,
            (start - zero) / 1e6,
            (end - start) / 1e6,
            row.steps[part] if row.steps else pd.NA,
            row.note,
        )
        for row in rows
        for part, (start, end) in enumerate(row.times)
    ]
    return pd.DataFrame(records, columns=list(COLUMNS)).astype({"step": "Int64"})


# -- the picture ---------------------------------------------------------------------------------------------


class _Drawing:
    """Rows from top to bottom; ``notes`` say what was pooled."""

    def __init__(
        self, index: Index, request_id: str, life: Life, rows: Sequence[Row], axis: TimeAxis, width: float
    ) -> None:
        self.index, self.life, self.rows, self.axis, self.width = index, life, rows, axis, width
        self.request_id = request_id
        self.key: Key = {"request": request_id}
        self.notes: dict[str, None] = {}
        exchange = index.exchanges.by_request_id.get(request_id)
        self.wire: Key = {"wire": exchange.id} if exchange else {}
        self.y = float(TOP)

    def scene(self) -> Scene:
        """All marks: grid first, so that bars lie on it."""
        marks = [mark for side in dict.fromkeys(row.side for row in self.rows) for mark in self._section(side)]
        marks += self._ruler()
        grid = list(self.axis.marks(TOP, self.y))
        closing = f"usage: {_usage(self.index, self.request_id)}"
        marks.append(Text(0, self.y + 20, fit(closing, self.width, 12), 12, bold=True, key=self.key))
        return Scene(self.width, self.y + 30, (*grid, *marks))

    def _section(self, side: str) -> Iterator[Mark]:
        rows = [row for row in self.rows if row.side == side]
        begin = min(start for row in rows for start, _ in row.times)
        end = max(end for row in rows for _, end in row.times)
        key = self.key if side == ENGINE else self.key | self.wire
        x = self.axis.at(begin), self.axis.at(end)
        yield Text(
            0, self.y + 17, f"{side} {self.request_id if side == ENGINE else ''}".strip(), 12, bold=True, key=key
        )
        yield Line(
            ((x[0], self.y + 13), (x[1], self.y + 13)), "muted", 1.5, tip=f"{WORDS[side]}: {duration(end - begin)}"
        )
        yield Text(x[1] + 6, self.y + 17, duration(end - begin), 10.5, "muted")
        self.y += SECTION
        for row in rows:
            yield from self._row(row, key)

    def _row(self, row: Row, key: Key) -> Iterator[Mark]:
        label = fit(row.name, NAMES - 22 - 12 * row.indent, 11.5)
        yield Text(12 + 12 * row.indent, self.y + 13, label, 11.5, "alarm" if row.kind == "trouble" else "ink", key=key)
        times, steps = self._pooled(row)
        for i, (start, end) in enumerate(times):
            yield self._bar(row, start, end, key | ({"step": steps[i]} if steps else {}))
        at = self.axis.at(max(end for _, end in row.times))
        yield Text(at + 6, self.y + 13, self._label(row), 10.5, "muted")
        self.y += ROW

    def _label(self, row: Row) -> str:
        if row.kind == "ticks":
            return f"{len(row.times):,} times" if len(row.times) != 1 else "once"
        said = f"at {duration(row.times[-1][1] - self.axis.start)}" if row.is_moment else duration(row.total)
        return fit(f"{said} · {row.note}" if row.note else said, LABELS - 8, 10.5)

    def _bar(self, row: Row, start: int, end: int, key: Key) -> Rect:
        left, right = self.axis.at(start), self.axis.at(end)
        # what is shorter than two pixels is drawn as wide, and what would cross the right end ends there
        w = max(right - left, 2.0)
        left = min(left, self.axis.x + self.axis.width - w)
        fill = FILLS.get(row.kind, FILLS[row.side])
        if row.kind in ("queue", "between"):
            dash = row.kind == "queue"
            tip = self._tip(row, start, end) if len(row.times) <= MAX_BARS else ""
            return Rect(left, self.y + 3, w, 12, "", "muted", dash=dash, tip=tip, key=key)
        if row.kind in ("moment", "ticks"):
            return Rect(left, self.y + 3, w, 12, "ink" if row.kind == "moment" else "muted", key=key)
        tip = "" if row.kind == "phase" else self._tip(row, start, end)
        return Rect(
            left,
            self.y + (5 if row.kind == "phase" else 3),
            w,
            8 if row.kind == "phase" else 12,
            fill,
            tip=tip,
            key=key,
        )

    def _tip(self, row: Row, start: int, end: int) -> str:
        return f"{row.name}: {duration(end - start)} from {duration(start - self.axis.start)}"

    def _pooled(self, row: Row) -> tuple[list[tuple[int, int]], list[int]]:
        """As many of a row's stretches as can be told apart."""
        if row.kind == "ticks" or (row.kind == "between" and len(row.times) > MAX_BARS):
            return self._apart(row.times), []
        if row.kind == "phase" and len(row.times) > MAX_PHASE_BARS:
            every = -(-len(row.times) // MAX_PHASE_BARS)
            self.notes[f"Phases are drawn for 1 step in {every}; their durations are those of all steps."] = None
            return row.times[::every], row.steps[::every]
        if len(row.times) > MAX_BARS:
            together = -(-len(row.times) // MAX_BARS)
            self.notes[f"Neighbouring parts of a row are drawn as one bar where it has more than {MAX_BARS}."] = None
            parts = [row.times[i : i + together] for i in range(0, len(row.times), together)]
            return [(part[0][0], part[-1][1]) for part in parts], row.steps[::together]
        return row.times, row.steps

    def _apart(self, times: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
        pixels = self.axis.of([start for start, _ in times])
        slots = np.unique((pixels / TICK_DISTANCE).astype(int), return_index=True)[1]
        return [times[i] for i in slots]

    def _ruler(self) -> Iterator[Mark]:
        """The engine's steps in the picture's time: filled where this request was in the batch."""
        marks = self.index.marks
        seen = np.flatnonzero((marks[:, 6] > self.axis.start) & (marks[:, 0] < self.axis.end))
        if not len(seen):
            return
        self.y += 10
        yield Text(0, self.y + 13, "engine steps", 12, bold=True)
        mine = set(self.life.places.tolist())
        together = -(-len(seen) // MAX_BARS)
        if together > 1:
            self.notes[f"Neighbouring engine steps are drawn as one box where there are more than {MAX_BARS}."] = None
        for i in range(0, len(seen), together):
            yield self._step(seen[i : i + together], mine)
        numbers = self.index.step_numbers[seen]
        right = self.axis.at(int(marks[seen[-1], 6])) + 6
        yield Text(min(right, self.width - LABELS + 6), self.y + 13, f"{numbers[0]} to {numbers[-1]}", 10.5, "muted")
        self.y += 34
        said = f"filled: this request is in the batch. Ticks nearer than {TICK_DISTANCE} px are one."
        x = self.axis.x
        if text_width(said, 10.5) < self.width - x:
            yield Text(x, self.y - 4, said, 10.5, "muted")

    def _step(self, places: np.ndarray, mine: set[int]) -> Rect:
        first, last = int(places[0]), int(places[-1])
        left, right = self.axis.at(self.index.marks[first, 0]), self.axis.at(self.index.marks[last, 6])
        is_mine = any(place in mine for place in places.tolist())
        number = self.index.steps[first].step
        took = duration(int(self.index.marks[last, 6] - self.index.marks[first, 0]))
        name = f"step {number}" if first == last else f"steps {number} to {self.index.steps[last].step}"
        fill = "mark" if is_mine else ""
        return Rect(
            left, self.y + 2, max(right - left, 1.5), 14, fill, "mark", 0.6, tip=f"{name}: {took}", key={"step": number}
        )
