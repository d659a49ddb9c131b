"""Draft rounds show what the verification of each draft recorded, and totals that add up to the usage."""

from __future__ import annotations

import math
from dataclasses import replace
from time import perf_counter

import drawn
import pytest
import recordings

from llmlab.errors import InvalidParameter, UnknownRequest
from llmlab.trace import Trace
from llmlab.trace.events import DraftPolicy, DraftRound, RequestSubmitted, Step, StepRow
from llmlab.views.draft_facts import states, totals
from llmlab.views.draft_rounds import draft_rounds
from llmlab.views.scene import Rect

MS = 1_000_000
NAN = math.nan


def verified(step: int, number: int, drafted: int, start: int, tokens: bytes, kept: int, outcome: str, token: int = -1):
    n = len(tokens)
    numbers = (0.71,) * n, (0.5,) * n, (0.37,) * n
    times = (2 * MS, 1, MS // 2)
    return DraftRound(
        step * 10 * MS,
        step,
        "r",
        "head",
        "exact",
        number,
        drafted,
        start,
        tuple(tokens),
        *numbers,
        kept,
        outcome,
        token,
        *times,
    )


def by_hand(*events) -> Trace:
    steps = {e.step for e in events}
    rows = (StepRow("r", 3, 1, 0, False, True),)
    return Trace(
        [
            RequestSubmitted(0, "r", None, 0, None, (1, 2, 3), {}),
            *(Step(*[(10 * s + i) * MS for i in range(6)], (10 * s + 9) * MS, s, rows, 0, 1, 1, 1, 1) for s in steps),
            *events,
        ],
        pieces={i: bytes([i]) for i in range(256)},
    )


def chips(view, tip: str):
    return [m for m in view.scene.marks if isinstance(m, Rect) and tip in m.tip and "position" in m.key]


def requests_with_rounds(trace) -> list[str]:
    return list(dict.fromkeys(r.request_id for r in trace.index.drafts))


def test_totals_are_the_traces_and_the_usages(draft_trace):
    ours, theirs = totals(draft_trace.index.drafts), draft_trace.drafts.attrs["summary"]
    assert (ours.rounds, ours.judged, ours.accepted) == (theirs["rounds"], theirs["judged"], theirs["accepted"])
    assert ours.acceptance_length == theirs["mean_acceptance_length"]
    assert [p.accepted / p.judged for p in ours.places] == theirs["acceptance_by_place"]
    for request_id in requests_with_rounds(draft_trace):
        usage = draft_trace.index.finished[request_id].usage
        one = totals([r for r in draft_trace.index.drafts if r.request_id == request_id])
        assert one.accepted == usage["accepted_draft_tokens"]
        assert one.drafted - one.accepted == usage["rejected_draft_tokens"]
        assert one.accepted + one.rejected + one.dropped + one.not_judged == one.drafted


def test_every_judged_token_is_a_chip_that_says_what_became_of_it(draft_trace):
    for request_id in requests_with_rounds(draft_trace):
        view, rounds = draft_rounds(draft_trace, request_id), draft_trace.drafts.query("request_id == @request_id")
        accepted, rejected = chips(view, ": accepted; p"), chips(view, ": rejected; p")
        assert len(accepted) == rounds["num_accepted"].sum()
        assert len(accepted) + len(rejected) == rounds["tokens"].map(len).sum()
        assert all(m.fill and not m.hatch for m in accepted)
        assert all(m.hatch and not m.fill for m in rejected)
        given = chips(view, ": bonus") + chips(view, ": recovered")
        assert len(given) == (rounds["token_id"] >= 0).sum()


def test_the_table_has_every_round(draft_trace):
    for request_id in requests_with_rounds(draft_trace):
        table, rounds = (
            draft_rounds(draft_trace, request_id).table(),
            draft_trace.drafts.query("request_id == @request_id"),
        )
        for column in ("step", "num_drafted", "num_accepted", "outcome", "p", "q", "verify_ms"):
            assert table[column].tolist() == rounds[column].tolist()
        assert table["num_output_tokens"].tolist() == rounds["num_tokens"].tolist()


def test_positions_of_chips_are_those_of_the_output(draft_trace):
    view = draft_rounds(draft_trace)
    tokens = draft_trace.tokens.query("request_id == @view.table().request_id[0]").set_index("position")["source"]
    for source in ("accepted", "bonus", "recovered"):
        at = [m.key["position"] for m in chips(view, f": {source}")]
        assert at == tokens[tokens == source].index.tolist()


def test_the_two_lanes_are_to_one_scale():
    trace = by_hand(verified(1, 0, 1, 3, b"a", 1, "bonus", 98), verified(2, 1, 1, 5, b"a", 1, "bonus", 98))
    marks = draft_rounds(trace).scene.marks
    bars = {
        fill: [m for m in marks if isinstance(m, Rect) and m.fill == fill and m.h == 16]
        for fill in ("c1", "c0", "faint")
    }
    per_ms = bars["faint"][0].w / 9
    assert [m.w / per_ms for m in bars["c1"]] == pytest.approx([2, 2])  # draft_ns
    assert [m.w / per_ms for m in bars["c0"]] == pytest.approx([1, 1])  # from forward to sample
    assert (bars["c0"][1].x - bars["c0"][0].x) / per_ms == pytest.approx(10)


def test_a_draft_verified_in_two_steps_is_counted_once():
    view = draft_rounds(by_hand(verified(1, 0, 4, 3, b"ab", 2, "held"), verified(2, 0, 4, 5, b"cd", 2, "bonus", 101)))
    assert "4 drafted tokens: 4 accepted, 0 rejected, 0 not judged" in view.text
    assert "a accepted, b accepted, 2 to be judged later, held" in view.text
    assert "1: 1 of 1, 2: 1 of 1, 3: 1 of 1, 4: 1 of 1" in view.text


def test_tokens_beyond_the_end_are_not_called_rejected():
    view = draft_rounds(by_hand(verified(1, 0, 4, 3, b"abc", 1, "stopped")))
    assert "4 drafted tokens: 1 accepted, 0 rejected, 1 not judged, 2 dropped" in view.text
    assert len(chips(view, ": dropped; p")) == 2


def test_changes_of_k_stand_with_their_reason_before_the_round_they_lead_to(draft_trace):
    led = 0
    for request_id in requests_with_rounds(draft_trace):
        view = draft_rounds(draft_trace, request_id)
        lines, rounds = view.text.splitlines(), view.table()["step"].tolist()
        policies = [p for p in draft_trace.index.draft_policies if p.request_id == request_id]
        told = [f"k = {p.k} from step {p.step}: {p.reason}" for p in policies]
        assert [line for line in lines if line.startswith("k = ")] == told
        for policy, line in zip(policies, told, strict=True):
            assert any(policy.reason in getattr(m, "tip", "") for m in view.scene.marks)
            if policy.step in rounds:
                assert lines[lines.index(line) + 1].startswith(f"step {policy.step}, draft")
                led += 1
    assert led > 3


def test_a_failed_proposer_is_told_to_every_request():
    failed = DraftPolicy(21 * MS, 2, None, 0, "head failed: <b>\u202eboom", NAN, 0)
    view = draft_rounds(by_hand(verified(1, 0, 1, 3, b"a", 1, "bonus", 98), failed))
    assert "k = 0 for all requests from step 2: head failed: <b><202E>boom" in view.text
    assert "<b>" not in view.svg


def test_the_figure_is_acceptance_by_place(draft_trace):
    only = requests_with_rounds(draft_trace)[0]
    figure = draft_rounds(draft_trace, only).figure()
    assert type(figure).__name__ == "Figure"
    assert list(figure.data[0].y) == draft_trace.for_request(only).drafts.attrs["summary"]["acceptance_by_place"]
    by_hand_figure = draft_rounds(by_hand(verified(1, 0, 4, 3, b"ab", 1, "recovered", 99))).figure()
    assert list(by_hand_figure.data[0].text) == ["1 of 1", "0 of 1"]


def test_text_has_no_time_and_repeats(draft_trace):
    again = recordings.record_drafts()
    slower = [
        replace(e, draft_ns=e.draft_ns + MS, verify_ns=e.verify_ns + MS) if isinstance(e, DraftRound) else e
        for e in draft_trace.events
    ]
    for request_id in requests_with_rounds(draft_trace):
        one = draft_rounds(draft_trace, request_id)
        for other in (again, Trace(slower, pieces=draft_trace.pieces)):
            view = draft_rounds(other, request_id)
            assert (one.text, one.alt, one.notes) == (view.text, view.alt, view.notes)


def test_another_request_gives_another_picture(draft_trace):
    pictures = {draft_rounds(draft_trace, i).svg for i in requests_with_rounds(draft_trace)}
    assert len(pictures) == len(requests_with_rounds(draft_trace)) > 3


def test_a_saved_trace_gives_the_same_picture(draft_trace, tmp_path):
    loaded = Trace.load(draft_trace.save(tmp_path / "t.gz"))
    assert draft_rounds(loaded).svg == draft_rounds(draft_trace).svg


@pytest.mark.parametrize("width", [480, 640, 960, 1400])
def test_nothing_is_outside_or_on_other_text(draft_trace, width):
    for request_id in requests_with_rounds(draft_trace):
        assert drawn.faults(draft_rounds(draft_trace, request_id, width=width)) == []
    long = verified(1, 0, 64, 3, bytes(range(33, 96)), 62, "recovered", 99)
    failed = DraftPolicy(19 * MS, 1, None, 0, recordings.MARKUP * 9, NAN, 0)
    assert drawn.faults(draft_rounds(by_hand(long, failed), width=width)) == []


def test_tokens_of_others_are_shown_not_obeyed():
    trace = by_hand(verified(1, 0, 3, 3, bytes([1, 2]), 1, "recovered", 3))
    evil = {1: recordings.MARKUP.encode() * 9, 2: recordings.INVISIBLE.encode(), 3: b"\xff\xf0"}
    view = draft_rounds(Trace(trace.events, pieces=evil))
    assert "<script" not in view.svg
    assert "\u202e" not in view.svg + view.text
    assert drawn.faults(view) == []


def test_many_rounds_leave_the_earlier_ones_out_and_say_so():
    trace = by_hand(*(verified(s, s, 4, 3 + s, b"ab", 1, "recovered", 99) for s in range(512)))
    trace.index  # noqa: B018 (sorted before the clock starts)
    start = perf_counter()
    view = draft_rounds(trace)
    assert perf_counter() - start < 1.5
    assert view.notes == ("488 earlier rounds of 512 left out of the picture: see table().",)
    assert len(view.table()) == 512
    assert len(chips(view, ": rejected; p")) == 24
    assert "512 verifications" in view.text
    assert drawn.faults(view) == []


def test_speculation_that_was_off_says_how_to_turn_it_on(lab_trace):
    for view in (draft_rounds(lab_trace), draft_rounds(Trace([])), draft_rounds(recordings.info_only())):
        assert 'llmlab.open(speculative="ngram")' in view.text
        assert "speculative=" in view.svg
        assert len(view.table()) == 0
    assert "Speculation was off" in draft_rounds(lab_trace).text


def test_a_request_without_rounds_says_why_it_had_none(draft_trace):
    info = draft_trace.info
    refused = DraftPolicy(5, 0, "r", 0, "its probes look at one new position a step", NAN, 1)
    view = draft_rounds(Trace([info, RequestSubmitted(0, "r", None, 0, None, (1,), {}), refused]), "r")
    assert "k = 0 from step 0: its probes look at one new position a step (speculation: ngram" in view.text
    quiet = draft_rounds(Trace([info, RequestSubmitted(0, "r", None, 0, None, (1,), {})]), "r")
    assert "No draft was verified: none was proposed" in quiet.text


def test_mistakes_say_what_would_work(draft_trace):
    with pytest.raises(UnknownRequest, match="r1"):
        draft_rounds(draft_trace, "nobody")
    with pytest.raises(InvalidParameter, match="480"):
        draft_rounds(draft_trace, width=10)
    with pytest.raises(InvalidParameter, match="100"):
        draft_rounds(draft_trace, limit=0)


def test_more_kept_than_was_drafted_is_not_believed(draft_trace):
    first = draft_trace.index.drafts[0]
    assert len(states(replace(first, num_accepted=10**9))) == len(first.tokens)
    assert len(states(replace(first, num_accepted=-3))) == len(first.tokens)
