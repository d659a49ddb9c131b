"""What the trace says about drafts, and that it notices when that cannot be."""

from __future__ import annotations

from dataclasses import replace

import pytest
from guessing import Guesser, speculating_engine
from mock_serving import greedy, prompt

import llmlab
from llmlab.engine.params import SamplingParams
from llmlab.engine.speculative.config import Speculation
from llmlab.errors import InvalidParameter
from llmlab.trace import Trace
from llmlab.trace.events import DraftRound, Step


def _recorded(**shape):
    engine = speculating_engine(Guesser(0.7, draws=True), **shape)
    params = SamplingParams(max_tokens=20, temperature=1.0, seed=3)
    runs = [engine.submit(prompt(6, i), params) for i in range(3)]
    for run in runs:
        run.wait()
    return engine, runs


def test_every_round_has_both_probabilities_the_number_it_was_judged_by_and_its_end():
    engine, _ = _recorded()
    drafts = engine.trace.drafts
    assert len(drafts) > 5
    assert set(engine.trace.columns("drafts")) == set(drafts.columns)
    for row in drafts.itertuples():
        assert len(row.tokens) == len(row.p) == len(row.q) == len(row.u) >= 1
        kept = [u * q < p for u, p, q in zip(row.u, row.p, row.q, strict=True)]
        assert kept == [True] * row.num_accepted + [False] * (row.outcome == "recovered")
        assert row.num_tokens == row.num_accepted + (row.outcome in ("recovered", "bonus"))
        assert row.draft_ms >= 0
        assert row.verify_ms > 0


def test_the_summary_adds_up():
    engine, runs = _recorded()
    summary, drafts = engine.trace.drafts.attrs["summary"], engine.trace.drafts
    assert summary["accepted"] == sum(run.usage["accepted_draft_tokens"] for run in runs) == drafts.num_accepted.sum()
    assert summary["judged"] == drafts.tokens.map(len).sum()
    assert summary["mean_acceptance_length"] == pytest.approx(drafts.num_tokens.mean())
    first = summary["acceptance_by_place"][0]
    assert first == pytest.approx((drafts.num_accepted >= 1).mean())


def test_rejected_tokens_are_what_was_drafted_and_not_accepted():
    engine, runs = _recorded()
    drafts = engine.trace.drafts
    assert set(drafts.number[drafts.request_id == runs[0].id]) == set(
        range(len(drafts[drafts.request_id == runs[0].id]))
    )
    accepted = sum(run.usage["accepted_draft_tokens"] for run in runs)
    rejected = sum(run.usage["rejected_draft_tokens"] for run in runs)
    assert accepted + rejected == drafts.num_drafted.sum()


def test_a_held_draft_goes_on_in_later_rows_of_the_same_number():
    engine, _ = _recorded(budget=2)
    drafts = engine.trace.drafts
    assert engine.trace.check() == []
    assert (drafts.outcome == "held").any()
    for _, rounds in drafts.groupby(["request_id", "number"]):
        assert (rounds.outcome.iloc[:-1] == "held").all()
        assert rounds.num_drafted.nunique() == 1
        ends = rounds.start + rounds.num_accepted
        assert rounds.start.iloc[1:].tolist() == ends.iloc[:-1].tolist()


def test_it_is_saved_loaded_cut_and_exported_like_the_rest(tmp_path):
    engine, runs = _recorded()
    trace = engine.trace
    again = Trace.load(trace.save(tmp_path / "a.trace.jsonl.gz"))
    assert again.drafts.equals(trace.drafts)
    assert again.check() == []
    part = again.for_request(runs[1].id)
    assert set(part.drafts.request_id) == {runs[1].id}
    assert part.check() == []
    assert part.to_perfetto()["traceEvents"]


def _changed(trace: Trace, kind: type, change) -> Trace:
    """The trace with its first changeable event of a kind replaced."""
    events, done = [], False
    for event in trace.events:
        other = change(event) if isinstance(event, kind) and not done else None
        done = done or other is not None
        events.append(event if other is None else other)
    assert done
    return Trace(events)


def _row(event: Step, **fields) -> Step | None:
    for i, row in enumerate(event.rows):
        if row.num_rejected:
            return replace(event, rows=(*event.rows[:i], replace(row, **fields), *event.rows[i + 1 :]))
    return None


@pytest.mark.parametrize(
    ("kind", "change"),
    [
        (Step, lambda e: _row(e, num_rejected=0)),
        (Step, lambda e: _row(e, num_rejected=99)),
        (DraftRound, lambda e: replace(e, num_accepted=e.num_accepted + 1)),
        (DraftRound, lambda e: replace(e, token_id=e.token_id + 1) if e.token_id >= 0 else None),
        (DraftRound, lambda e: replace(e, p=(2.0,) * len(e.p))),
        (DraftRound, lambda e: replace(e, start=e.start + 1)),
    ],
)
def test_contradictions_are_found(kind, change):
    engine, _ = _recorded()
    assert engine.trace.check() == []
    assert _changed(engine.trace, kind, change).check() != []


def test_open_takes_a_name_settings_or_a_proposer():
    for speculative, expected in (
        (None, "off"),
        ("ngram", "ngram, at most 5 tokens, adaptive, exact"),
        (Speculation("ngram", k=2, adaptive=False), "ngram, 2 tokens, exact"),
        (Guesser(0.5), "guesser, at most 5 tokens, adaptive, exact"),
    ):
        with llmlab.open("mock", background=False, speculative=speculative) as lab:
            assert lab.trace.info.speculative == expected
            assert len(lab.ask("abcabcabc", max_tokens=9).token_ids) == 9
    with pytest.raises(InvalidParameter, match="ngram"):
        llmlab.open("mock", speculative="magic")
    with pytest.raises(InvalidParameter, match="weights"):
        llmlab.open("mock", speculative="early-exit")


def test_reading_the_trace_of_a_speculating_engine_needs_no_drafts():
    engine = speculating_engine(Guesser(0.0), k=1)
    engine.submit(prompt(4), greedy(1)).wait()
    assert engine.trace.drafts.empty
    assert engine.trace.drafts.attrs["summary"]["rounds"] == 0
