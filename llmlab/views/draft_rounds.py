"""Speculation, round by round: what was drafted, what was kept, and what it gave."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import pandas as pd

from llmlab.errors import InvalidParameter
from llmlab.trace.drafts import num_tokens
from llmlab.trace.events import DraftPolicy, DraftRound
from llmlab.trace.trace import Trace
from llmlab.views import draft_scene as scenes
from llmlab.views.choose import choose_request, token_label
from llmlab.views.draft_facts import Totals, in_order, left, offsets, policies_of, states, totals
from llmlab.views.glyphs import fit, visible
from llmlab.views.missing import missing_view
from llmlab.views.phrases import count, some
from llmlab.views.scene import Mark, Scene, Text
from llmlab.views.view import View

if TYPE_CHECKING:
    import plotly.graph_objects as go

MIN_WIDTH, MAX_ROUNDS, MAX_POLICIES, LISTED, NAME = (
    480,
    100,
    4,
    8,
    "draft_rounds",
)  # policies drawn: at most so many per round
TURN_ON = 'Turn it on: llmlab.open(speculative="ngram").'
COLUMNS = (
    "request_id",
    "step",
    "draft",
    "start_position",
    "num_drafted",
    "num_judged",
    "num_accepted",
    "outcome",
    "tokens",
    "states",
    "p",
    "q",
    "u",
    "token",
    "num_output_tokens",
    "propose_ms",
    "verify_ms",
    "time_s",
)


def draft_rounds(trace: Trace, request_id: str | None = None, *, width: float = 960, limit: int = 24) -> View:
    """Every verification of a request's drafts: tokens with their probabilities under target (p) and proposer (q) and
    the number they were judged by (u), what was accepted, rejected, recovered or given as a bonus; when it was drafted
    and verified; every change of k with its reason; mean acceptance length and acceptance by place.

    ``request_id`` ``None`` is the last request that was drafted for. The last ``limit`` rounds are drawn; the table has
    all. Raises ``UnknownRequest``, and ``InvalidParameter`` for a picture too small to hold anything.
    """
    if width < MIN_WIDTH or not 1 <= limit <= MAX_ROUNDS:
        raise InvalidParameter(
            f"width={width!r}, limit={limit!r}: use {MIN_WIDTH} pixels or more, 1 to {MAX_ROUNDS} rounds"
        )
    if request_id is None and trace.index.drafts:
        request_id = trace.index.drafts[-1].request_id
    elif request_id is not None or trace.index.request_ids:
        request_id = choose_request(trace, request_id)
    rounds = [r for r in trace.index.drafts if r.request_id == request_id]
    if not rounds:
        return _without(trace, request_id, width)
    return _Rounds(trace, request_id, rounds, limit).view(width)


def _without(trace: Trace, request_id: str | None, width: float) -> View:
    speculative = trace.info.speculative if trace.info else ""
    policies = trace.index.draft_policies if request_id is None else policies_of(trace.index, request_id)
    if speculative == "off":
        what = f"Speculation was off: no draft was verified. {TURN_ON}"
    elif not speculative and not policies:
        what = f"No draft was verified, and the trace does not say whether speculation was on. {TURN_ON}"
    else:
        why = _policy_words(policies[-1]) if policies else "none was proposed"
        what = f"No draft was verified: {why} (speculation: {visible(speculative) or 'on'})"
    return missing_view(NAME, "Draft rounds", what, COLUMNS, width)


def _policy_words(event: DraftPolicy) -> str:
    whose = "" if event.request_id is not None else " for all requests"
    return f"k = {event.k}{whose} from step {event.step}: {visible(event.reason)}"


class _Rounds:
    """The rounds of one request, told as text, picture, table and figure."""

    def __init__(self, trace: Trace, request_id: str, rounds: Sequence[DraftRound], limit: int) -> None:
        self.trace, self.request_id, self.rounds, self.limit = trace, request_id, rounds, limit
        self.shown, self.totals = rounds[-limit:], totals(rounds)
        self.offsets = dict(zip(map(id, rounds), offsets(rounds), strict=True))
        policies = policies_of(trace.index, request_id)
        whole = len(self.shown) == len(rounds)
        policies = [p for p in policies if whole or p.step >= self.shown[0].step]
        self.policies = policies[-MAX_POLICIES * limit :]
        self.hidden_policies = len(policies) - len(self.policies)

    def view(self, width: float) -> View:
        return View(
            name=NAME,
            title=f"Draft rounds of request {fit(self.request_id, width / 2, 14)}",
            alt=f"Speculation for request {visible(self.request_id)}: {_counts(self.totals)}.",
            text="\n".join(self._lines()),
            scene=self._scene(width),
            frame=self._frame(),
            notes=tuple(self._notes(width)),
            plot=self._figure,
        )

    def _label(self, token_id: int) -> str:
        return token_label(self.trace, token_id)

    # -- words ----------------------------------------------------------------------------------------------

    def _lines(self) -> Iterator[str]:
        yield f"request {visible(self.request_id)}, proposer {self._how()}"
        yield _counts(self.totals)
        yield _length(self.totals)
        yield f"kept of those judged, by place: {_places(self.totals)}"
        for event in in_order(self.shown, self.policies):
            if isinstance(event, DraftPolicy):
                yield _policy_words(event)
            else:
                yield self._round_words(event, self.offsets[id(event)])
        if len({r.request_id for r in self.trace.index.drafts}) > 1:
            everyone = totals(self.trace.index.drafts)
            yield f"all requests: {_counts(everyone)}; {_length(everyone)}"

    def _how(self) -> str:
        first = self.rounds[0]
        return f"{visible(first.proposer)}, rule {visible(first.rule)}"

    def _round_words(self, round_: DraftRound, offset: int) -> str:
        judged = [f"{self._label(t)} {state}" for t, state in zip(round_.tokens, states(round_), strict=True)]
        if len(judged) > LISTED:
            judged = [*judged[: LISTED - 2], f"… {len(judged) - LISTED + 1} more …", judged[-1]]
        rest = left(round_, offset)
        later = [f"{rest} {'to be judged later' if round_.outcome == 'held' else 'not judged'}"] if rest else []
        given = [f"{self._label(round_.token_id)} {round_.outcome}"] if round_.token_id >= 0 else [round_.outcome]
        return f"step {round_.step}, draft {round_.number}: {', '.join([*judged, *later, *given])}"

    def _notes(self, width: float) -> Iterator[str]:
        hidden, shown = len(self.rounds) - len(self.shown), self.shown
        if hidden:
            yield f"{count(hidden, 'earlier round')} of {len(self.rounds):,} left out of the picture: see table()."
        if self.hidden_policies:
            yield f"{count(self.hidden_policies, 'change')} of k left out: see trace.draft_policies."
        slots = scenes.num_slots(width)
        if any(len(r.tokens) + 2 > slots for r in shown):
            yield "Of drafts too long for a row the first and last tokens are drawn."
        if sum(shown[0].step <= s.step <= shown[-1].step for s in self.trace.index.steps) > scenes.MAX_STEPS:
            yield f"The lanes end after {scenes.MAX_STEPS} steps."

    # -- picture --------------------------------------------------------------------------------------------

    def _scene(self, width: float) -> Scene:
        marks: list[Mark] = list(self._head(width))
        marks += scenes.places(self.totals, 12, width)
        marks += scenes.lanes(self.trace.index, self.shown, 104, width)
        marks += scenes.lane_legend(170)
        y = self._rows(marks, 198.0, width)
        y = self._legend(marks, y + 4, width)
        return Scene(width, y, tuple(marks))

    def _head(self, width: float) -> Iterator[Mark]:
        room = width / 2 - 16
        yield Text(0, 14, fit(_length(self.totals), room, 14.5), 13, bold=True)
        kept = self.totals
        lines = (
            f"{kept.num_tokens:,} output tokens from {count(kept.rounds, 'verification')}",
            f"{kept.drafted:,} drafted: {kept.accepted:,} accepted, {kept.rejected:,} rejected, "
            f"{kept.not_judged:,} not judged" + (f", {kept.dropped:,} dropped" if kept.dropped else ""),
            f"proposer {self._how()}",
        )
        for i, line in enumerate(lines):
            yield Text(0, 34 + 17 * i, fit(line, room, 12), 12, "muted")

    def _rows(self, marks: list[Mark], y: float, width: float) -> float:
        outcome_x = scenes.outcome_x([(r, self.offsets[id(r)]) for r in self.shown], width)
        for event in in_order(self.shown, self.policies):
            if isinstance(event, DraftPolicy):
                marks += scenes.policy_row(event, y, width)
                y += scenes.POLICY_ROW
            else:
                marks += scenes.round_row(event, self.offsets[id(event)], self._label, y, width, outcome_x)
                y += scenes.ROW
        return y

    def _legend(self, marks: list[Mark], y: float, width: float) -> float:
        used = {state for r in self.shown for state in states(r)} | {r.outcome for r in self.shown if r.token_id >= 0}
        if self.totals.not_judged:
            used.add("drafted")
        legend = list(scenes.row_legend(used, y, width))
        marks += legend
        return max((mark.y for mark in legend), default=y) + 12

    # -- numbers --------------------------------------------------------------------------------------------

    def _frame(self) -> pd.DataFrame:
        return pd.DataFrame([self._row(r) for r in self.rounds], columns=list(COLUMNS))

    def _row(self, r: DraftRound) -> tuple:
        return (
            r.request_id,
            r.step,
            r.number,
            r.start,
            r.num_drafted,
            len(r.tokens),
            r.num_accepted,
            r.outcome,
            tuple(map(self._label, r.tokens)),
            tuple(states(r)),
            r.p,
            r.q,
            r.u,
            self._label(r.token_id) if r.token_id >= 0 else None,
            num_tokens(r),
            r.draft_ns / 1e6,
            r.verify_ns / 1e6,
            (r.t_ns - self.trace.index.start_ns) / 1e9,
        )

    def _figure(self) -> go.Figure:
        import plotly.graph_objects as go

        places = self.totals.places
        bars = go.Bar(
            x=list(range(1, len(places) + 1)),
            y=[place.accepted / place.judged for place in places],
            text=[f"{place.accepted} of {place.judged}" for place in places],
            marker_color="#009e73",
            hovertemplate="place %{x}: %{text} kept<extra></extra>",
        )
        figure = go.Figure(bars)
        grid = {"gridcolor": "rgba(128,128,128,.25)"}
        figure.update_layout(
            title=f"{_length(self.totals)}",
            font_color="#808080",
            paper_bgcolor="rgba(0,0,0,0)",
            plot_bgcolor="rgba(0,0,0,0)",
            xaxis={"title": "place in the draft", "dtick": 1, **grid},
            yaxis={"title": "share kept of those judged", "range": [0, 1], **grid},
        )
        return figure


def _counts(kept: Totals) -> str:
    dropped = f", {kept.dropped:,} dropped because the output had ended" if kept.dropped else ""
    return (
        f"{count(kept.rounds, 'verification')}, {count(kept.drafted, 'drafted token')}: {kept.accepted:,} accepted, "
        f"{kept.rejected:,} rejected, {kept.not_judged:,} not judged{dropped}"
    )


def _length(kept: Totals) -> str:
    return f"mean acceptance length {kept.acceptance_length:.2f} (1 without speculation)"


def _places(kept: Totals) -> str:
    return some((f"{i}: {place.accepted} of {place.judged}" for i, place in enumerate(kept.places, 1)), 2 * LISTED)
