"""The processes of a divided model on one clock: what each computed, when it waited, and what they told each other."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import groupby

import pandas as pd

from llmlab.errors import InvalidParameter
from llmlab.trace.bubble import bubble_of
from llmlab.trace.index import Index
from llmlab.trace.split_events import Collective, RankWork
from llmlab.trace.trace import Trace
from llmlab.views.glyphs import visible
from llmlab.views.looked import MIN_WIDTH, check_size
from llmlab.views.missing import missing_view
from llmlab.views.phrases import count
from llmlab.views.rank_scene import Window, scene_of
from llmlab.views.view import View

FEW, MOST, MANY, MAX_LANES = 3, 60, 250, 32
"""Steps that are shown unless asked otherwise, at most, messages that are enough for one picture, and lanes."""
COLUMNS = (
    "step",
    "role",
    "rank",
    "micro_batches",
    "num_tokens",
    "first_layer",
    "last_layer",
    "messages",
    "nbytes",
    "forward_ms",
    "wait_ms",
)


def rank_lanes(
    trace: Trace, *, first_step: int | None = None, last_step: int | None = None, width: float = 960
) -> View:
    """A lane per process of the model: its share of every step, its waits, and its messages.

    Shows the steps ``first_step`` to ``last_step``, at most 60; without them the last 3, or fewer where they have many
    messages. A lane has what the process computed above, and its messages below; there are at most 32. Raises
    ``InvalidParameter`` for steps that are not in the trace, and a width that cannot be drawn.
    """
    check_size("width", width, MIN_WIDTH, 4_000)
    index = trace.index
    numbers = sorted({e.step for e in (*index.rank_work, *index.collectives)})
    calls = Counter(e.step for e in index.collectives)
    first, last = _bounds(numbers or [step.step for step in index.steps], first_step, last_step, calls)
    if not numbers:
        what = (
            "No process of a group recorded any work in this trace: a lab opened with "
            "llmlab.open(tensor_parallel=2), or pipeline_parallel=2, divides its model over processes that do."
        )
        return missing_view("rank_lanes", "Ranks", what, COLUMNS, width)
    shown = [n for n in numbers if first <= n <= last]
    if not shown:
        raise InvalidParameter(f"no rank worked in steps {first} to {last}: the nearest are {_around(numbers, first)}")
    window, num_lanes = _window(index, shown)
    groups = " and ".join(_group_name(window, role) for role in window.roles)
    span = f"step {shown[0]}" if len(shown) == 1 else f"steps {shown[0]} to {shown[-1]}"
    return View(
        "rank_lanes",
        f"{groups}, {span}",
        f"{count(len(window.lanes), 'lane')} of processes, {groups}, over {span}: what each computed, where it waited, "
        "and their messages.",
        "\n".join(_told(window)),
        scene_of(window, width),
        _table(window),
        tuple(_notes(numbers, shown, num_lanes)),
    )


def _window(index: Index, steps: Sequence[int]) -> tuple[Window, int]:
    """What happened from the first to the last of some steps in the first lanes, and how many lanes there are."""
    work, calls = ([e for e in of if steps[0] <= e.step <= steps[-1]] for of in (index.rank_work, index.collectives))
    lanes = sorted({(e.role, e.rank) for e in (*work, *calls)})
    drawn = set(lanes[:MAX_LANES])
    kept = (tuple(e for e in events if (e.role, e.rank) in drawn) for events in (work, calls))
    return Window(tuple(steps), *kept), len(lanes)


def _bounds(numbers: Sequence[int], first: int | None, last: int | None, calls: Counter[int]) -> tuple[int, int]:
    for name, step in (("first_step", first), ("last_step", last)):
        known = f"its steps are {numbers[0]} to {numbers[-1]}" if numbers else "it has no steps"
        if step is not None and (type(step) is not int or not numbers or not numbers[0] <= step <= numbers[-1]):
            raise InvalidParameter(f"{name}={step!r} is not in the trace: {known}")
    if not numbers:
        return 0, 0
    last = min(numbers[-1], first + MOST - 1) if last is None and first is not None else last
    last = numbers[-1] if last is None else last
    first = _few(numbers, last, calls) if first is None else first
    if first > last:
        raise InvalidParameter(f"first_step={first!r} is after last_step={last!r}")
    return first, min(last, first + MOST - 1)


def _around(numbers: Sequence[int], step: int) -> str:
    """The steps before and after one that is not among them."""
    at = bisect_left(numbers, step)
    return " and ".join(str(n) for n in numbers[max(at - 1, 0) : at + 1])


def _few(numbers: Sequence[int], last: int, calls: Counter[int]) -> int:
    """The first of the steps that end with ``last`` and are shown without being asked for."""
    before = [n for n in numbers if n <= last][-FEW:]
    while len(before) > 1 and sum(calls[n] for n in before) > MANY:
        before = before[1:]
    return before[0] if before else last


def _group_name(window: Window, role: str) -> str:
    ranks = count(len({rank for r, rank in window.lanes if r == role}), "process")
    known = role in ("tensor", "pipeline", "expert")
    return f"{role} parallel over {ranks}" if known else f"{visible(role)}: {ranks}"


def _notes(numbers: Sequence[int], shown: Sequence[int], num_lanes: int) -> Iterator[str]:
    if num_lanes > MAX_LANES:
        yield f"The first {MAX_LANES} of {num_lanes:,} processes have a lane, and are told and counted here."
    if len(shown) < len(numbers):
        yield (
            f"Shown: {len(shown)} of the {len(numbers):,} steps with ranks ({numbers[0]} to {numbers[-1]}); "
            f"first_step= and last_step= choose others, at most {MOST}."
        )


# -- words ----------------------------------------------------------------------------------------------------


def _told(window: Window) -> Iterator[str]:
    for step in window.steps:
        for role in window.roles:
            said = [(rank, _said(window, step, role, rank)) for r, rank in window.lanes if r == role]
            said = [(rank, words) for rank, words in said if words]
            for words, same in groupby(said, key=lambda pair: pair[1]):
                ranks = [rank for rank, _ in same]
                who = f"rank {ranks[0]}" if len(ranks) == 1 else f"ranks {ranks[0]} to {ranks[-1]}, each"
                yield f"step {step}, {visible(role)} {who}: {words}"
        if any(e.step == step and e.role == "pipeline" and e.name == "forward" for e in window.work):
            found = bubble_of(step, [e for e in window.work if e.step == step])
            yield (
                f"step {step}: {found.slots} slots of {count(found.stages, 'stage')}, {found.idle} of "
                f"{found.slots * found.stages} empty ({found.idle_share:.0%}; (p - 1) / (m + p - 1) is "
                f"{found.expected_share:.0%})"
            )


def _said(window: Window, step: int, role: str, rank: int) -> str:
    work = [e for e in window.work_of(role, rank, step) if e.name == "forward"]
    parts = []
    if work:
        layers = f"layers {work[0].first_layer} to {work[0].last_layer}" if work[0].first_layer >= 0 else ""
        tokens = count(sum(e.num_tokens for e in work), "token")
        cut = f" in {len(work)} micro-batches" if len(work) > 1 else ""
        parts.append(", ".join(filter(None, [f"{tokens}{cut}", layers])))
    return "; ".join([*parts, *_messages(window.calls_of(role, rank, step))])


def _messages(calls: Sequence[Collective]) -> Iterator[str]:
    kinds = Counter((e.kind, e.place) for e in calls)
    for (kind, place), number in kinds.items():
        nbytes = sum(e.nbytes for e in calls if (e.kind, e.place) == (kind, place))
        yield f"{number} {visible(kind)} ({visible(place)}) of {nbytes:,} bytes in all"


def _table(window: Window) -> pd.DataFrame:
    records = [_record(window, step, role, rank) for step in window.steps for role, rank in window.lanes]
    return pd.DataFrame([record for record in records if record], columns=list(COLUMNS))


def _record(window: Window, step: int, role: str, rank: int) -> tuple | None:
    work, calls = window.work_of(role, rank, step), window.calls_of(role, rank, step)
    if not work and not calls:
        return None
    forward = [e for e in work if e.name == "forward"]
    layers = (forward[0].first_layer, forward[0].last_layer) if forward else (-1, -1)
    tokens = sum(e.num_tokens for e in forward)
    messages = len(calls), sum(e.nbytes for e in calls)
    times = _ms(forward), _ms([e for e in work if e.name == "wait"])
    return (step, role, rank, len(forward), tokens, *layers, *messages, *times)


def _ms(work: Sequence[RankWork]) -> float:
    return sum(e.end_ns - e.t_ns for e in work) / 1e6
