"""What each request did in each step, from the schedule: the facts behind the batch lanes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType

import numpy as np

from llmlab.trace.trace import Trace
from llmlab.views.glyphs import visible
from llmlab.views.host_pool import swapped_steps

# the letter of a reason to wait; one that is not here gets the first letter that is free
LETTERS = MappingProxyType(
    {
        "the step's token budget is spent": "T",
        "every slot of the batch is taken": "S",
        "not enough free blocks": "B",
        "behind an earlier request": "Q",
        "the prompt it shares is still being computed": "G",
        "the static batch has not finished": "F",
        "a request was preempted in this step": "J",
        "its blocks were needed by an earlier request": "O",
        "no free block for its next token": "N",
        "its blocks were needed by an earlier request; swapped out to the host pool": "H",
        "no free block for its next token; swapped out to the host pool": "W",
    }
)
RAN = ("prefill", "recompute", "decode", "verify")
MAX_SEGMENTS = 40


@dataclass(frozen=True, slots=True)
class Cell:
    """One request in one step. ``did`` is one of ``RAN``, or the schedule's action: waited, preempted, admitted, ..."""

    step: int
    request_id: str
    did: str
    num_tokens: int
    reason: str
    by: str | None


@dataclass(slots=True)
class Lanes:
    """Steps ``first .. last`` and, for each request in order of arrival, its cells in order of steps.

    ``swapped`` has the steps, first and last, in which a request's K/V waited in the host pool.
    """

    first: int
    last: int
    cells: dict[str, list[Cell]] = field(default_factory=dict)
    ends: dict[str, tuple[int, str]] = field(default_factory=dict)
    swapped: dict[str, list[tuple[int, int]]] = field(default_factory=dict)

    def letters(self) -> dict[str, str]:
        """The letter of every reason to wait that occurs."""
        reasons = dict.fromkeys(c.reason for line in self.cells.values() for c in line if c.did == "waited")
        letters = {reason: LETTERS[reason] for reason in reasons if reason in LETTERS}
        spare = (c for c in "ACDEHIKLMUVWXYZ0123456789" if c not in letters.values())
        for reason in reasons:
            if reason not in letters:
                letters[reason] = next(spare, "?")
        return letters


def read_lanes(trace: Trace, first: int, last: int) -> Lanes:
    """The cells of steps ``first .. last``."""
    lanes, table, spans = Lanes(first, last), trace.schedule, swapped_steps(trace.index)
    again = _recomputed(trace)
    steps = table["step"].to_numpy()
    chosen = np.flatnonzero((steps >= first) & (steps <= last))
    columns = [table[name].to_numpy()[chosen].tolist() for name in ("step", "request_id", "action", "reason", "by")]
    counts = [table[name].to_numpy()[chosen].tolist() for name in ("num_tokens", "is_prefill")]
    found: dict[str, list[Cell]] = {}
    for step, request, action, reason, by, num_tokens, is_prefill in zip(*columns, *counts, strict=True):
        did = _did(action, reason, is_prefill, (step, request) in again)
        found.setdefault(request, []).append(Cell(step, request, did, num_tokens, reason, by))
    lanes.cells = {i: sorted(found[i], key=lambda c: c.step) for i in trace.index.request_ids if i in found}
    ends = trace.index.finished
    is_end = last == trace.index.step_numbers[-1]  # one aborted since then has a later step
    known = {i: ends[i] for i in lanes.cells if i in ends}
    lanes.ends = {i: (end.step, end.stop_reason) for i, end in known.items() if end.step <= last or is_end}
    lanes.swapped = {i: parts for i in lanes.cells if (parts := _within(spans.get(i, ()), first, last))}
    return lanes


def _within(spans: Iterable[tuple[int, int | None]], first: int, last: int) -> list[tuple[int, int]]:
    """The parts of some spans, which end before their second step, that lie in steps ``first .. last``."""
    cut = ((max(begin, first), last if end is None else min(end - 1, last)) for begin, end in spans)
    return [(begin, end) for begin, end in cut if begin <= end]


def _recomputed(trace: Trace) -> set[tuple[int, str]]:
    index = trace.index
    rows = index.rows
    which = np.flatnonzero(rows.recomputed > 0)
    numbers = index.step_numbers[rows.step[which]].tolist()
    return {(step, index.request_ids[code]) for step, code in zip(numbers, rows.request[which].tolist(), strict=True)}


def _did(action: str, reason: str, is_prefill: bool, again: bool) -> str:
    if action != "ran":
        return action
    if is_prefill:
        return "recompute" if again else "prefill"
    return "verify" if "draft" in reason else "decode"


def runs(cells: Sequence[Cell]) -> list[list[Cell]]:
    """Cells in groups of consecutive steps that are alike."""
    groups: list[list[Cell]] = []
    for cell in cells:
        last = groups[-1][-1] if groups else None
        if last and last.step + 1 == cell.step and _alike(last, cell):
            groups[-1].append(cell)
        else:
            groups.append([cell])
    return groups


def _alike(one: Cell, other: Cell) -> bool:
    same_reason = one.did in RAN or one.reason == other.reason
    return one.did == other.did and same_reason and one.by == other.by and one.did != "preempted"


def story(cells: Sequence[Cell], end: tuple[int, str] | None) -> str:
    """A request's steps in words, alike ones together."""
    parts = [_segment(group) for group in runs(cells) if group[0].did not in ("finished", "aborted")]
    if len(parts) > MAX_SEGMENTS:
        half = MAX_SEGMENTS // 2
        parts = [*parts[:half], f"… {len(parts) - 2 * half} more …", *parts[-half:]]
    if end:
        parts.append(f"ended in step {end[0]}: {visible(end[1])}")
    return ", ".join(parts)


def _segment(group: Sequence[Cell]) -> str:
    first = group[0]
    match first.did:
        case "prefill" | "recompute":
            shown = "+".join(str(c.num_tokens) for c in group[:12])
            return f"{first.did} {shown}" + (f"+… ({len(group)} chunks)" if len(group) > 12 else "")
        case "decode":
            return f"decode {len(group)}"
        case "verify":
            return f"decode {len(group)} with drafts ({sum(c.num_tokens for c in group)} tokens)"
        case "preempted":
            by = "itself" if first.by == first.request_id else visible(first.by or "an unknown request")
            return f"preempted by {by} ({visible(first.reason)})"
        case _:
            reason = f" ({visible(first.reason)})" if first.reason else ""
            return f"{first.did} {len(group)}{reason}"
