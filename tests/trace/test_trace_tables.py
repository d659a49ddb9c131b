from __future__ import annotations

import math

import pandas as pd
import pytest
from hypothesis import HealthCheck, given, settings
from synthetic import clockwork, story, traces

from llmlab.errors import InvalidParameter, UnknownRequest
from llmlab.trace import Trace
from llmlab.trace.columns import COLUMNS
from llmlab.trace.events import (
    Decision,
    Gap,
    PromptLogprobs,
    RequestFinished,
    RequestSubmitted,
    Step,
    StepRow,
    Token,
)

TABLES = [name for name in COLUMNS if name != "block_map"]


@pytest.fixture(scope="module")
def clock() -> Trace:
    return Trace(clockwork())


@pytest.fixture(scope="module")
def told() -> Trace:
    return Trace(story())


def test_repr_is_compact_and_deterministic(clock):
    assert repr(clock) == "<Trace of synthetic: 2 requests, 5 steps, 29 events>"


@pytest.mark.parametrize("name", TABLES)
@pytest.mark.parametrize("events", [[], clockwork()[:1], clockwork()], ids=["empty", "info only", "full"])
def test_every_column_is_documented_and_typed_alike_in_every_trace(name, events, clock):
    table = getattr(Trace(events), name)
    assert list(table) == list(Trace.columns(name)) == list(table.attrs["columns"])
    assert table.dtypes.equals(getattr(clock, name).dtypes)


def test_unknown_table_is_refused_with_the_names():
    with pytest.raises(InvalidParameter, match="requests, steps"):
        Trace.columns("nonsense")


def test_request_times_are_seconds_since_the_first_event(clock):
    r0 = clock.requests.iloc[0]
    assert (r0.submitted_s, r0.first_scheduled_s, r0.first_token_s) == (0.002, 0.004, 0.014)
    assert (r0.finished_s, r0.queue_ms, r0.ttft_ms, r0.e2e_ms) == (0.0355, 2.0, 12.0, 33.5)
    assert (r0.itl_ms, r0.tokens_per_s) == (20.0, 50.0)


def test_an_unfinished_request_has_no_end(clock):
    r1 = clock.requests.iloc[1]
    assert (r1.status, r1.stop_reason, r1.num_preemptions) == ("preempted", None, 1)
    assert all(map(math.isnan, (r1.finished_s, r1.ttft_ms, r1.e2e_ms, r1.itl_ms, r1.tokens_per_s)))


def test_step_phases_and_kv_bytes(clock):
    assert clock.steps.forward_ms.tolist() == [1.0] * 5
    assert clock.steps.total_ms.tolist() == [6.0] * 5
    assert clock.steps.num_prefill_tokens.tolist() == [4, 1, 1, 0, 0]
    assert clock.steps.num_decode_tokens.tolist() == [0, 0, 0, 1, 0]
    assert clock.steps.kv_bytes_used.tolist() == [32, 64, 96, 64, 0]


def test_a_decision_to_wait_is_repeated_until_the_next_one(clock):
    r1 = clock.schedule[clock.schedule.request_id == "r1"]
    assert list(zip(r1.step, r1.action, r1.reason, strict=True)) == [
        (0, "waited", "behind"),
        (1, "waited", "behind"),
        (2, "ran", "prefill"),
        (3, "preempted", "blocks"),
        (4, "waited", "blocks"),
    ]
    assert r1.by.tolist() == [None, None, None, "r0", "r0"]
    assert r1.admission.tolist() == [None, None, "fits", None, None]


def test_a_waiting_request_that_is_aborted_waits_no_longer():
    events = [
        *clockwork()[:9],
        Step(*range(10_000_000, 10_000_007), 1, (), 1, 0, 4, 0, 0),
        Decision(20_000_000, 2, "r1", "aborted", "aborted", 0, None),
        RequestFinished(20_000_001, 2, "r1", "aborted", None, {}),
        Step(*range(20_000_002, 20_000_009), 2, (), 1, 0, 4, 0, 0),
        Step(*range(30_000_000, 30_000_007), 3, (), 1, 0, 4, 0, 0),
    ]
    schedule = Trace(events).schedule
    r1 = schedule[schedule.request_id == "r1"]
    assert r1.action.tolist() == ["waited", "waited", "aborted"]
    assert Trace(events).requests.status.tolist()[1] == "aborted"


def test_a_preemption_is_not_hidden_by_the_wait_that_follows_it_in_the_step(told):
    preempted = told.schedule[told.schedule.action == "preempted"]
    assert len(preempted) == told.requests.num_preemptions.sum() > 0
    assert preempted.by.notna().all()


@settings(deadline=None, max_examples=40, suppress_health_check=[HealthCheck.too_slow])
@given(traces())
def test_schedule_has_one_row_per_step_and_request_and_every_row_that_ran(events):
    trace = Trace(events)
    schedule = trace.schedule
    assert not schedule.duplicated(["step", "request_id"]).any()
    ran = schedule[schedule.action == "ran"]
    recorded = {(s.step, r.request_id): r for s in events if isinstance(s, Step) for r in s.rows}
    assert set(zip(ran.step, ran.request_id, strict=True)) == set(recorded)
    for row in ran.itertuples():
        expected = recorded[row.step, row.request_id]
        assert (row.start, row.num_tokens) == (expected.start, expected.num_tokens)
        assert (row.num_cached, row.is_prefill) == (expected.num_cached, expected.is_prefill)
    assert (schedule.num_tokens[schedule.action != "ran"] == 0).all()


@settings(deadline=None, max_examples=40, suppress_health_check=[HealthCheck.too_slow])
@given(traces())
def test_totals_of_the_tables_reconcile(events):
    trace = Trace(events)
    usage = {e.request_id: e.usage for e in events if isinstance(e, RequestFinished)}
    for r in trace.requests[trace.requests.status == "finished"].itertuples():
        ran = trace.schedule[(trace.schedule.request_id == r.request_id) & (trace.schedule.action == "ran")]
        served = reached = r.num_prompt_tokens if r.parent_id else 0
        for row in ran.itertuples():  # a resumption may hit more than the request had computed itself
            served += max(row.num_cached - reached, 0)
            reached = max(reached, row.start + row.num_tokens)
        length = r.num_prompt_tokens + r.num_output_tokens
        assert ran.num_tokens.sum() == length - 1 - served + r.num_preempted_tokens
        assert r.num_preempted_tokens == usage[r.request_id]["recomputed_tokens"]
        assert (trace.tokens.request_id == r.request_id).sum() == r.num_prompt_tokens + r.num_output_tokens
    assert trace.schedule.num_tokens.sum() == trace.steps.num_tokens.sum()
    assert (trace.steps.num_prefill_tokens + trace.steps.num_decode_tokens == trace.steps.num_tokens).all()


def test_the_story_holds_what_it_promises(told):
    requests = told.requests.set_index("request_id")
    assert requests.loc["r1", "num_cached_tokens"] == 16
    assert requests.num_preempted_tokens.sum() > 0
    assert set(requests.status) == {"finished", "aborted"}
    assert requests.loc["r4.1", "parent_id"] == "r4"
    assert (told.schedule.groupby("request_id").is_prefill.sum() > 1).any()


def test_token_sources_say_what_was_not_computed(told):
    tokens = told.tokens[told.tokens["index"].isna()]
    counts = tokens.groupby("request_id").source.value_counts()
    assert counts["r1", "cached"] == 16
    assert counts["r1", "prompt"] == 1
    assert counts["r4.1", "shared"] == 10
    assert tokens.step[tokens.source != "prompt"].isna().all()
    assert tokens.step[tokens.source == "prompt"].notna().sum() == 18 + 1 + 9 + 5 + 10


def test_prompt_tokens_know_the_chunk_that_computed_them(clock):
    r0 = clock.tokens[clock.tokens.request_id == "r0"]
    assert r0.step.tolist() == [0, 0, 0, 0, 1, 1, 3]
    assert r0["index"].dropna().tolist() == [0, 1]
    assert r0.top.iloc[5] == ((50, -0.5), (51, -2.0))


def test_prompt_logprobs_land_on_their_positions():
    top = (((2, -0.1),), ((3, -0.2),))
    events = [*clockwork(), PromptLogprobs(9, 0, "r0", 1, (-0.1, -0.2), top)]
    tokens = Trace(events).tokens
    r0 = tokens[(tokens.request_id == "r0") & tokens["index"].isna()]
    assert r0.logprob.fillna(0).tolist() == [0, -0.1, -0.2, 0, 0]
    assert r0.top.tolist() == [(), *top, (), ()]


def test_a_trace_without_its_beginning_still_shows_what_is_known():
    whole = clockwork()
    trace = Trace([whole[0], Gap(19_000_000, 12), *whole[13:]])
    r0 = trace.requests.set_index("request_id").loc["r0"]
    assert (r0.status, r0.num_prompt_tokens, r0.stop_reason) == ("finished", 5, "length")
    assert math.isnan(r0.submitted_s)
    assert trace.tokens["index"].isna().all()
    assert trace.check() == []


def test_untrusted_text_stays_text():
    submitted = RequestSubmitted(1, "r\ud800", None, 0, "\ud83d <script>", (1,), {})
    token = Token(2, 0, "r\ud800", 1, 5, -0.1, "target")
    trace = Trace([submitted, token, Step(*range(7), 0, (StepRow("r\ud800", 0, 1, 0, True, True),), 0, 1, 0, 0, 1)])
    assert trace.requests.prompt.tolist() == ["\ud83d <script>"]
    assert trace.tokens.request_id.unique().tolist() == ["r\ud800"]


# -- parts --------------------------------------------------------------------------------------------------


@settings(deadline=None, max_examples=30, suppress_health_check=[HealthCheck.too_slow])
@given(traces())
def test_a_part_shows_its_request_as_the_whole_does(events):
    whole = Trace(events)
    for request_id in whole.requests.request_id:
        part = whole.for_request(request_id)
        for name in ("requests", "schedule", "tokens", "spans"):
            # the cached tokens of an open sample of a group are known from its first sample only
            if name in ("requests", "tokens") and "." in request_id:
                continue
            theirs = getattr(whole, name)
            theirs = theirs[theirs.request_id == request_id].reset_index(drop=True)
            ours = getattr(part, name)
            ours = ours[ours.request_id == request_id].reset_index(drop=True)
            ids = ["span_id", "parent_id"] if name == "spans" else []
            pd.testing.assert_frame_equal(ours.drop(columns=ids), theirs.drop(columns=ids))
        assert part.check() == []


def test_a_part_takes_several_requests_and_only_those(told):
    part = told.for_request("r4", "r4.1", "r4.2")
    assert part.requests.request_id.tolist() == ["r4", "r4.1", "r4.2"]
    assert part.info == told.info
    assert len(part.steps) < len(told.steps)
    assert set(part.blocks.request_id.dropna()) == {"r4", "r4.1", "r4.2"}


def test_unknown_request_is_refused_with_the_known_ones(told):
    with pytest.raises(UnknownRequest, match=r"'r99' is not in the trace, which has: r0, r1"):
        told.for_request("r99")
    with pytest.raises(UnknownRequest):
        told.leaves("r99")
