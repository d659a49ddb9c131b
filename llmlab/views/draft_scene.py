"""The picture of draft rounds: acceptance, two lanes on one clock, a row per round."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence

from llmlab.trace.drafts import num_tokens
from llmlab.trace.events import DraftPolicy, DraftRound
from llmlab.trace.index import Index
from llmlab.views.draft_facts import ACCEPTED, REJECTED, Totals, left, states
from llmlab.views.glyphs import fit, text_width
from llmlab.views.phrases import count, ms
from llmlab.views.scene import Key, Line, Mark, Rect, Text
from llmlab.views.timeaxis import TimeAxis, quiet_stretches

GUTTER, OUTCOME, CHIP, SPACE = 92, 156, 118, 6
ROW, POLICY_ROW, LANE, BAR_HEIGHT, PLACE_WIDTH = 44, 20, 16, 44, 58
MAX_STEPS = 400
LEGEND = (
    ("accepted", "c2", "", False, False),
    ("rejected", "", "muted", True, False),
    ("dropped: the output had ended", "", "line", True, False),
    ("drafted, not judged", "", "muted", False, True),
    ("recovered, in place of a rejected token", "c1", "ink", False, True),
    ("bonus, after a whole draft", "c3", "ink", False, False),
)


def places(totals: Totals, y: float, width: float) -> Iterator[Mark]:
    """Of the tokens judged at each place of a draft, the share that was kept, as columns."""
    x, base = width / 2, y + BAR_HEIGHT + 12
    yield Text(x, y + 2, fit("kept of those judged, by place in the draft", width - x, 11), 11, "muted")
    room = max(int((width - x) / PLACE_WIDTH), 1)
    for i, place in enumerate(totals.places[:room]):
        left_edge, height = x + i * PLACE_WIDTH, BAR_HEIGHT * place.accepted / place.judged
        tip = f"place {i + 1}: {place.accepted} of {place.judged} kept ({place.accepted / place.judged:.0%})"
        yield Rect(left_edge, base - BAR_HEIGHT, 40, BAR_HEIGHT, "faint", tip=tip)
        if height:
            yield Rect(left_edge, base - height, 40, height, "c2", tip=tip)
        yield Text(left_edge + 20, base + 12, f"{place.accepted} of {place.judged}", 10, anchor="middle", tip=tip)
        yield Text(left_edge + 20, base + 24, f"{_ordinal(i + 1)}", 10, "muted", anchor="middle")


def _ordinal(number: int) -> str:
    ending = "th" if number % 100 in (11, 12, 13) else {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    return f"{number}{ending}"


# -- lanes --------------------------------------------------------------------------------------------------


def lanes(index: Index, rounds: Sequence[DraftRound], y: float, width: float) -> Iterator[Mark]:
    """When was drafted, and when the target computed and judged, from the first round's step to the last's."""
    numbers = {r.step: r for r in rounds}
    within = [s for s in index.steps if min(numbers) <= s.step <= max(numbers)][:MAX_STEPS]
    if not within:
        return
    busy = [(s.t_ns, s.end_ns) for s in within]
    axis = TimeAxis(within[0].t_ns, within[-1].end_ns, GUTTER, width - GUTTER - 24, quiet_stretches(busy))
    yield from axis.marks(y + 16, y + 16 + 2 * LANE + 10)
    draft_y, step_y = y + 20, y + 20 + LANE + 4
    yield Text(GUTTER - 8, draft_y + 12, "draft", 11, "muted", anchor="end")
    yield Text(GUTTER - 8, step_y + 12, "target step", 11, "muted", anchor="end")
    for step in within:
        round_ = numbers.get(step.step)
        key: Key = {"step": step.step} | ({"request": round_.request_id} if round_ else {})
        took = f"step {step.step}, {ms(step.end_ns - step.t_ns)} ms"
        if round_ is None:
            yield _span(axis, step.t_ns, step.end_ns, step_y, "faint", f"{took}: no draft of this request", key)
            continue
        forward, sample = step.sample_ns - step.forward_ns, step.detokenize_ns - step.sample_ns
        if round_.draft_ns:
            drafted = f"draft {round_.number}: {ms(round_.draft_ns)} ms for {count(round_.num_proposed_for, 'request')}"
            yield _span(axis, step.t_ns, step.t_ns + round_.draft_ns, draft_y, "c1", drafted, key)
        yield _span(axis, step.t_ns, step.end_ns, step_y, "faint", took, key)
        tip = f"{took}: forward {ms(forward)} ms"
        yield _span(axis, step.forward_ns, step.sample_ns, step_y, "c0", tip, key)
        judged = f"{took}: sample {ms(sample)} ms, of it judging this draft {ms(round_.verify_ns)} ms"
        yield _span(axis, step.sample_ns, step.detokenize_ns, step_y, "c2", judged, key)


def _span(axis: TimeAxis, start: int, end: int, y: float, fill: str, tip: str, key: Key) -> Rect:
    x, right = float(axis.at(start)), float(axis.at(end))
    return Rect(min(x, axis.x + axis.width - 1.5), y, max(right - x, 1.5), LANE, fill, tip=tip, key=key)


def lane_legend(y: float) -> Iterator[Mark]:
    """What the colours of the lanes are."""
    x = float(GUTTER)
    for fill, words in (("c1", "propose"), ("c0", "forward pass"), ("c2", "sample and judge"), ("faint", "the rest")):
        yield Rect(x, y, 12, 10, fill, "line")
        yield Text(x + 17, y + 9, words, 10, "muted")
        x += 17 + text_width(words, 10) + 18


# -- rows ---------------------------------------------------------------------------------------------------


def policy_row(event: DraftPolicy, y: float, width: float) -> Iterator[Mark]:
    """A change of ``k`` with its reason."""
    key = {"step": event.step} | ({"request": event.request_id} if event.request_id is not None else {})
    whose = "" if event.request_id is not None else " for all requests"
    words = f"k = {event.k}{whose} from step {event.step}: {event.reason}"
    yield Line(((GUTTER, y + 10), (GUTTER + 14, y + 10)), "muted", 1.5, dash=True)
    yield Text(GUTTER + 20, y + 14, fit(words, width - GUTTER - 20, 11), 11, "muted", tip=words, key=key)


def round_row(
    round_: DraftRound, offset: int, label: Callable[[int], str], y: float, width: float, out_x: float
) -> Iterator[Mark]:
    """One verification: its tokens as chips, what came after them, and what it gave."""
    key = {"request": round_.request_id, "step": round_.step}
    when = f"step {round_.step}, rest" if offset else f"step {round_.step}"
    began = f"{when}: the draft's tokens from number {offset + 1} on" if offset else when
    yield Text(0, y + 15, fit(f"draft {round_.number}", GUTTER - 8, 12), 11, bold=True, key=key)
    yield Text(0, y + 29, fit(when, GUTTER - 8, 10), 10, "muted", tip=began, key=key)
    chip, slots = chip_width(width), num_slots(width)
    chips = [*_judged(round_, label), *_after(round_, offset, label)]
    x = float(GUTTER)
    for one in _cut(chips, slots):
        yield from one(x, y, chip)
        x += chip + SPACE
    words = f"{round_.outcome}: {count(num_tokens(round_), 'token')}"
    tip = f"proposing {ms(round_.draft_ns)} ms, judging {ms(round_.verify_ns)} ms"
    yield Text(out_x, y + 15, fit(words, width - out_x, 12), 12, tip=tip, key=key)


def outcome_x(rounds: Sequence[tuple[DraftRound, int]], width: float) -> float:
    """Where outcomes are written: right of the longest row of ``(round, offset)``."""
    chips = max(len(r.tokens) + (left(r, offset) > 0) + (r.token_id >= 0) for r, offset in rounds)
    return GUTTER + min(chips, num_slots(width)) * (chip_width(width) + SPACE) + 8


def chip_width(width: float) -> float:
    """Pixels of a chip: less in a narrow picture, so that four fit."""
    return min(CHIP, (width - GUTTER - OUTCOME) / 4 - SPACE)


def num_slots(width: float) -> int:
    """Chips that fit into a row."""
    return int((width - GUTTER - OUTCOME + 1e-6) / (chip_width(width) + SPACE))


Chip = Callable[[float, float, float], Iterator[Mark]]


def _cut(chips: list[Chip], slots: int) -> list[Chip]:
    """At most ``slots`` chips: the first and the last two, and how many are between."""
    if len(chips) <= slots:
        return chips
    head = slots - 3
    hidden = len(chips) - head - 2

    def gap(x: float, y: float, width: float) -> Iterator[Mark]:
        yield Rect(x, y, width, 20, "", "muted", dash=True, tip=f"{hidden} more judged tokens: see the table")
        yield Text(x + width / 2, y + 14, fit(f"… {hidden} more …", width - 4, 11), 11, "muted", anchor="middle")

    return [*chips[:head], gap, *chips[-2:]]


def _judged(round_: DraftRound, label: Callable[[int], str]) -> Iterator[Chip]:
    for i, state in enumerate(states(round_)):
        yield _judged_chip(round_, i, state, label(round_.tokens[i]))


def _judged_chip(round_: DraftRound, i: int, state: str, label: str) -> Chip:
    p, q, u = round_.p[i], round_.q[i], round_.u[i]
    key = {"request": round_.request_id, "step": round_.step, "position": round_.start + i}
    drawn = "no draw needed" if math.isnan(u) else f"u = {u:.4f}"
    tip = f"{label}: {state}; p = {p:.4g}, q = {q:.4g}, {drawn}"

    def chip(x: float, y: float, width: float) -> Iterator[Mark]:
        fill, stroke = ("c2", "") if state == ACCEPTED else ("", "muted" if state == REJECTED else "line")
        yield Rect(x, y, width, 20, fill, stroke, hatch=state != ACCEPTED, tip=tip, key=key)
        shown = fit(label, width - 8, 12, mono=True)
        yield Text(x + width / 2, y + 14, shown, 12, on=fill, anchor="middle", mono=True, key=key)
        if state == REJECTED:
            half = min(text_width(shown, 12, mono=True) / 2 + 3, width / 2 - 2)
            yield Line(((x + width / 2 - half, y + 10), (x + width / 2 + half, y + 10)), "ink", 1.5)
        numbers = f"p {_number(p)} q {_number(q)} u {_number(u)}"
        yield Text(x + width / 2, y + 32, fit(numbers, width, 10), 10, "muted", anchor="middle", tip=tip, key=key)

    return chip


def _number(value: float) -> str:
    return "–" if math.isnan(value) else f"{value:.2f}"


def _after(round_: DraftRound, offset: int, label: Callable[[int], str]) -> Iterator[Chip]:
    """What follows the judged tokens: those that were not come to, then the token the target gave."""
    rest = left(round_, offset)
    if rest:
        later = round_.outcome == "held"
        words = f"{rest} more, later" if later else f"{rest} not judged"
        why = "they are judged in a later step" if later else "ids of tokens that nobody judged are not recorded"
        yield _chip(
            words, "", "muted", f"{words}: {why}", {"request": round_.request_id, "step": round_.step}, dash=True
        )
    if round_.token_id >= 0:
        bonus = round_.outcome == "bonus"
        key = {"request": round_.request_id, "step": round_.step, "position": round_.start + round_.num_accepted}
        text = label(round_.token_id)
        yield _chip(text, "c3" if bonus else "c1", "ink", f"{text}: {round_.outcome}", key, not bonus, round_.outcome)


def _chip(words: str, fill: str, stroke: str, tip: str, key: Key, dash: bool = False, under: str = "") -> Chip:
    mono = bool(fill)

    def chip(x: float, y: float, width: float) -> Iterator[Mark]:
        yield Rect(x, y, width, 20, fill, stroke, 2 if fill else 1, dash=dash, tip=tip, key=key)
        shown = fit(words, width - 8, 12 if mono else 11, mono=mono)
        ink = {"on": fill} if fill else {"fill": "muted"}
        yield Text(x + width / 2, y + 14, shown, 12 if mono else 11, **ink, anchor="middle", mono=mono, key=key)
        if under:
            yield Text(x + width / 2, y + 32, fit(under, width, 10), 10, "muted", anchor="middle", key=key)

    return chip


def row_legend(used: set[str], y: float, width: float) -> Iterator[Mark]:
    """What chips look like, of the kinds in the picture."""
    x = float(GUTTER)
    for words, fill, stroke, hatch, dash in LEGEND:
        if not any(words.startswith(kind) for kind in used):
            continue
        needed = 24 + text_width(words, 11) + 18
        if x + needed > width and x > GUTTER:
            x, y = float(GUTTER), y + 18
        yield Rect(x, y, 18, 11, fill, stroke, 2 if stroke == "ink" else 1, hatch=hatch, dash=dash)
        yield Text(x + 24, y + 10, fit(words, width - x - 24, 11), 11, "muted")
        x += needed
