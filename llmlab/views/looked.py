"""What views of the inside of the model share: whose arrays are shown, what its positions hold, and pooled axes."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from llmlab.errors import InvalidParameter
from llmlab.trace.captures import Captures
from llmlab.trace.trace import Trace
from llmlab.views.choose import choose_request, token_label
from llmlab.views.glyphs import fit, text_width, visible
from llmlab.views.scene import Rect, Scene, Text
from llmlab.views.view import View

MIN_WIDTH = 480
NOTE_SIZE = 11


def looked_at(trace: Trace, request_id: str | None, kind: str) -> str | None:
    """The request to show: ``request_id``, else the last one with arrays of ``kind``, else the last one of all.

    ``None`` for a trace without requests. Raises ``UnknownRequest`` for an id that is not in the trace.
    """
    index = trace.index
    if request_id is not None:
        return request_id if request_id in index.code else choose_request(trace, request_id)
    held = (e.request_id for e in reversed(index.captured) if e.kind == kind and e.array_id in trace.arrays)
    return next(held, index.request_ids[-1] if index.request_ids else None)


def captures_of(
    trace: Trace,
    request_id: str,
    kinds: Collection[str],
    layer: int | None = None,
    positions: Collection[int] | None = None,
) -> Captures:
    """A request's arrays of some kinds; only those pieces that have ``layer`` and any of ``positions``, if given."""
    wanted = None if positions is None else frozenset(positions)
    events = (
        event
        for event in trace.index.captured
        if event.request_id == request_id
        and event.kind in kinds
        and (layer is None or event.layer == layer)
        and (wanted is None or not wanted.isdisjoint(event.positions))
    )
    notes = (note for note in trace.index.probe_notes if note.request_id == request_id)
    return Captures(request_id, events, trace.arrays, notes)


def num_cached(captures: Captures) -> int:
    """Leading positions that the prefix cache served, so that nothing was computed there."""
    return next((note.num_cached for note in captures.notes if note.action == "started"), 0)


def token_ids(trace: Trace, request_id: str) -> dict[int, int]:
    """Position -> token id, as far as the trace says."""
    submitted = trace.index.submitted.get(request_id)
    known = dict(enumerate(submitted.prompt_token_ids)) if submitted else {}
    known.update((t.position, t.token_id) for t in trace.index.tokens if t.request_id == request_id)
    return known


def labels_at(trace: Trace, request_id: str, positions: Iterable[int]) -> dict[int, str]:
    """Position -> its token's text with visible whitespace, ``?`` where the trace has no token."""
    ids = token_ids(trace, request_id)
    return {p: token_label(trace, ids[p]) if p in ids else "?" for p in positions}


def one_of(name: str, wanted: int | None, known: Sequence[int], size: int) -> int:
    """``wanted`` (negative: from the end of ``size``), or the last known one for ``None``.

    Raises ``InvalidParameter`` for what was not recorded.
    """
    if wanted is None:
        return known[-1]
    number = wanted + size if type(wanted) is int and wanted < 0 else wanted
    if type(wanted) is not int or number not in known:
        raise InvalidParameter(f"{name}={wanted!r} was not recorded: choose one of {spans(known)}")
    return number


def some_of(name: str, wanted: int | slice | Iterable[int] | None, known: Sequence[int]) -> tuple[int, ...]:
    """The known numbers that are wanted, ascending: all for ``None``, an int, a slice of numbers, or several.

    Raises ``InvalidParameter`` for what was not recorded.
    """
    if wanted is None:
        return tuple(known)
    if isinstance(wanted, slice):
        chosen = set(range(*wanted.indices(known[-1] + 1))) & set(known)
    else:
        chosen = {wanted} if type(wanted) is int else set(wanted)
    if not chosen or not chosen <= set(known):
        raise InvalidParameter(f"{name}={wanted!r} was not all recorded: choose from {spans(known)}")
    return tuple(sorted(chosen))


def check_size(name: str, value: float, least: int, most: int) -> None:
    """Raises ``InvalidParameter`` unless ``value`` is a number between the two."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not least <= value <= most:
        raise InvalidParameter(f"{name}={value!r} must be a number from {least} to {most:,}")


def spans(numbers: Sequence[int], most: int = 6) -> str:
    """Ascending numbers in few words: ``0-4, 7, 9-11``."""
    numbers = list(numbers)
    breaks = [i for i in range(1, len(numbers)) if numbers[i] != numbers[i - 1] + 1]
    runs = [numbers[a:b] for a, b in zip([0, *breaks], [*breaks, len(numbers)], strict=True)] if numbers else []
    words = [str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs]
    return ", ".join(words[:most]) + (f", ... {numbers[-1]}" if len(words) > most else "")


def wrapped(words: str, room: float, size: float = NOTE_SIZE) -> tuple[str, ...]:
    """The words in lines that fit into ``room`` pixels at a font size."""
    lines = [""]
    for word in words.split():
        longer = f"{lines[-1]} {word}".strip()
        if lines[-1] and text_width(longer, size) > room:
            lines.append(word)
        else:
            lines[-1] = longer
    return tuple(lines)


def notes_for(sentences: Iterable[str], width: float) -> tuple[str, ...]:
    """Notes in lines that fit under a picture."""
    return tuple(line for sentence in sentences for line in wrapped(sentence, width))


@dataclass(frozen=True, slots=True)
class Axis:
    """Positions along one side of a matrix, ``factor`` of them in a cell."""

    positions: tuple[int, ...]
    factor: int

    def __len__(self) -> int:
        return -(-len(self.positions) // self.factor)

    @property
    def firsts(self) -> tuple[int, ...]:
        """The first position of every cell."""
        return self.positions[:: self.factor]

    @property
    def lasts(self) -> tuple[int, ...]:
        """The last position of every cell."""
        return (*self.positions[self.factor - 1 :: self.factor], self.positions[-1])[: len(self)]

    def names(self, tokens: dict[int, str]) -> list[str]:
        """``12 ␣the`` for a single position, ``12-15`` for several."""
        pairs = zip(self.firsts, self.lasts, strict=True)
        return [f"{a} {tokens.get(a, '?')}" if a == b else f"{a}-{b}" for a, b in pairs]

    def cell_of(self, position: int) -> int:
        """The cell that a position lies in."""
        return self.positions.index(position) // self.factor


def pool(values: np.ndarray, rows: Axis, columns: Axis) -> np.ndarray:
    """``(..., rows, columns)``: the largest number of every cell, NaN where there is none."""
    starts = [np.arange(0, len(axis.positions), axis.factor) for axis in (rows, columns)]
    return np.fmax.reduceat(np.fmax.reduceat(values, starts[0], axis=-2), starts[1], axis=-1)


def missing(trace: Trace, name: str, request_id: str | None, kind: str, field: str, width: float) -> View:
    """A picture that says what the trace does not hold and how to record it."""
    lines = _why_missing(trace, request_id, kind, field)
    title = f"{name.replace('_', ' ')}: nothing to draw"
    rows = [Text(width / 2, 30 + 20 * i, fit(line, width - 40, 12), fill="muted", anchor="middle") for i, line in
            enumerate(lines)]  # fmt: skip
    height = 32 + 20 * len(lines)
    scene = Scene(width, height, (Rect(0, 0, width, height, stroke="line", dash=True), *rows))
    text = "\n".join(lines)
    return View(name, title, visible(" ".join(lines)), text, scene, pd.DataFrame())


def _why_missing(trace: Trace, request_id: str | None, kind: str, field: str) -> list[str]:
    how = f"lab.ask(prompt, capture=Capture({field}=True)) would record it."
    if request_id is None:
        return ["There is no request in this trace.", how]
    events = [e for e in trace.index.captured if e.request_id == request_id and e.kind == kind]
    if events:
        return [
            f"The {field} of request {request_id} was recorded in {len(events)} pieces, but the numbers are not here.",
            "They were dropped, or saved without them: trace.save(path, captures=True) keeps them.",
        ]
    others = sorted({e.request_id for e in trace.index.captured if e.kind == kind and e.array_id in trace.arrays})
    return [
        f"No {field} was recorded for request {request_id}.",
        how,
        *([f"It was for: {', '.join(others[:8])}."] if others else []),
        *_stopped(trace, request_id),
    ]


def _stopped(trace: Trace, request_id: str) -> list[str]:
    notes = trace.index.probe_notes
    return [f"Recording stopped: {n.reason}." for n in notes if n.request_id == request_id and n.action == "stopped"]
