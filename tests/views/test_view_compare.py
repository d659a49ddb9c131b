"""Two recordings side by side: the same numbers as their tables have, and what differs is said."""

from __future__ import annotations

import math
import time
from xml.etree import ElementTree

import pytest
import recordings

import llmlab
from llmlab.errors import InvalidParameter, UnknownRequest
from llmlab.trace import Trace
from llmlab.trace.events import Gap, Token
from llmlab.views.compare import compare
from llmlab.views.scene import Text


@pytest.fixture(scope="module")
def again() -> Trace:
    return recordings.record_lab()


def metric(view, name: str, scope: str = "counts"):
    table = view.table()
    return table[(table.metric == name) & (table.scope == scope)].iloc[0]


def test_it_is_part_of_the_package():
    assert llmlab.compare is compare


def test_two_runs_of_the_same_requests_have_no_difference(lab_trace, again):
    view = compare(lab_trace, again)
    assert "settings: no difference" in view.text
    assert "params: no difference" in view.text
    assert "8 of 8 matched requests have the same tokens" in view.alt
    assert view.text == compare(again, lab_trace).text
    counts = view.table()[view.table().scope == "counts"]
    assert (counts.a == counts.b).all()


def test_counts_are_those_of_the_tables(lab_trace, draft_trace):
    view = compare(lab_trace, draft_trace)
    for column, trace in (("a", lab_trace), ("b", draft_trace)):
        requests, steps = trace.requests, trace.steps
        assert metric(view, "computed tokens")[column] == steps.num_tokens.sum()
        assert metric(view, "cached tokens")[column] == requests.num_cached_tokens.sum()
        assert metric(view, "output tokens")[column] == requests.num_output_tokens.sum()
        assert metric(view, "recomputed tokens")[column] == requests.num_preempted_tokens.sum()
        assert metric(view, "preemptions")[column] == requests.num_preemptions.sum()
        assert metric(view, "blocks used at most")[column] == steps.used.max()
        assert metric(view, "mean batch size")[column] == pytest.approx(steps.num_rows.mean())
    length = draft_trace.drafts.attrs["summary"]["mean_acceptance_length"]
    assert metric(view, "mean acceptance length").a is None
    assert metric(view, "mean acceptance length").b == length


def test_output_tokens_of_the_pairs_add_up(lab_trace, other_trace):
    table = compare(lab_trace, other_trace).table()
    pairs = table[(table.metric == "output tokens") & (table.scope != "counts")]
    assert pairs.a.sum() == lab_trace.requests.num_output_tokens.sum()
    assert pairs.b.dropna().sum() == other_trace.requests.num_output_tokens.sum()
    assert sum(note.startswith("only a has this request") for note in pairs.note) == 4


def test_times_are_in_the_table_and_not_in_the_text(lab_trace, again):
    view = compare(lab_trace, again)
    for row in lab_trace.requests.itertuples():
        assert metric(view, "TTFT", row.request_id).a == pytest.approx(row.ttft_ms)
        assert metric(view, "ITL", row.request_id).a == pytest.approx(row.itl_ms)
        assert metric(view, "e2e", row.request_id).a == pytest.approx(row.e2e_ms)
    assert "TTFT" not in view.text
    assert "ms" not in view.text.split()


def test_settings_and_params_that_differ_are_named(lab_trace, other_trace):
    text = compare(lab_trace, other_trace).text
    assert "setting num_blocks 21 -> 64" in text
    assert "setting max_num_seqs 4 -> 8" in text
    assert "r0: param max_tokens 4 -> 7" in text
    assert "block_size" not in text


def test_the_first_different_token_is_found(lab_trace):
    victim = [token for token in lab_trace.index.tokens if token.request_id == "r2"][5]
    changed = Token(victim.t_ns, victim.step, "r2", victim.position, victim.token_id + 1, victim.logprob, victim.source)
    other = Trace([changed if event is victim else event for event in lab_trace.events])
    text = compare(lab_trace, other).text
    assert f"r2: first difference at output token 5: {victim.token_id} and {victim.token_id + 1}" in text
    assert "r1: same tokens (16)" in text


def test_tokens_that_are_gone_from_the_record_are_not_taken_for_different_ones(lab_trace):
    first = next(token for token in lab_trace.index.tokens if token.request_id == "r2")
    other = Trace([Gap(0, 1), *(event for event in lab_trace.events if event is not first)])
    view = compare(lab_trace, other)
    assert "r2: same 23 tokens, then one ends: 24 and 23" in view.text
    assert "its counts may be too low" in " ".join(view.notes)


def test_one_request_of_each_side(lab_trace):
    view = compare((lab_trace, "r3"), (lab_trace, "r4"), labels=("three", "four"))
    rows = lab_trace.requests.set_index("request_id")
    assert metric(view, "requests").a == 1
    assert metric(view, "prompt tokens").b == rows.num_prompt_tokens["r4"]
    schedule = lab_trace.schedule
    ran = schedule[(schedule.request_id == "r3") & (schedule.num_tokens > 0)]
    assert metric(view, "computed tokens").a == ran.num_tokens.sum()
    assert metric(view, "steps").a == ran.step.nunique()
    assert "differ from position" in view.text


def test_ratios_are_b_over_a_and_missing_where_there_is_none(lab_trace, draft_trace):
    for row in compare(lab_trace, draft_trace).table().itertuples():
        if isinstance(row.a, int | float) and isinstance(row.b, int | float) and row.a:
            assert row.ratio == pytest.approx(row.b / row.a)
        else:
            assert math.isnan(row.ratio)


def test_the_figure_ends_at_all_computed_tokens(lab_trace, other_trace):
    figure = compare(lab_trace, other_trace).figure()
    ends = [trace.y[-1] for trace in figure.data]
    assert ends == [lab_trace.steps.num_tokens.sum(), other_trace.steps.num_tokens.sum()]
    assert [trace.line.dash for trace in figure.data] == ["solid", "dash"]


def test_traces_without_steps_or_requests_say_so(lab_trace):
    for empty in (Trace([]), recordings.info_only()):
        view = compare(empty, lab_trace)
        assert "No steps are recorded in a" in " ".join(view.notes)
        assert "only b has this request" in view.text
        ElementTree.fromstring(view.svg)
    assert "no requests on either side" in [
        m.text for m in compare(Trace([]), Trace([])).scene.marks if isinstance(m, Text)
    ]


def test_other_traces_give_another_picture(lab_trace, other_trace, draft_trace):
    assert compare(lab_trace, other_trace).scene.marks != compare(lab_trace, draft_trace).scene.marks


def test_hostile_prompts_and_labels(hostile_trace, lab_trace):
    view = compare(hostile_trace, lab_trace, labels=(recordings.INVISIBLE, recordings.MARKUP * 9))
    ElementTree.fromstring(view.svg)
    assert not {"\u202e", "\x00", "\n"} & set(view.svg)
    assert "\u202e" not in str(view)


def test_many_requests_are_drawn_in_part_and_listed_whole():
    with llmlab.open("mock", num_blocks=512, background=False) as lab:
        runs = [lab.submit("a" * (n % 30 + 1), max_tokens=3, ignore_eos=True) for n in range(200)]
        for run in runs:
            run.wait()
        trace = lab.trace
    start = time.perf_counter()
    view = compare(trace, trace)
    assert time.perf_counter() - start < 2
    assert len(view.svg) < 64_000
    assert "The first 16 of 200 requests are drawn" in " ".join(view.notes)
    assert view.table().scope.nunique() == 201


def test_mistakes_say_what_would_work(lab_trace):
    with pytest.raises(InvalidParameter, match="request id"):
        compare(lab_trace, "r0")
    with pytest.raises(InvalidParameter, match="two different names"):
        compare(lab_trace, lab_trace, labels=("a", "a"))
    with pytest.raises(UnknownRequest, match="r0"):
        compare((lab_trace, "r99"), lab_trace)
