"""What the engine records adds up: reconciled by ``Trace.check``, which recomputes it from the events."""

from __future__ import annotations

import pytest
from mock_serving import assert_all_returned, continuation, greedy, mock_engine, prompt, step_until

from llmlab.engine.engine import Engine
from llmlab.engine.plan import Reason
from llmlab.engine.request import Status
from llmlab.trace import Trace


def chunked() -> Engine:
    engine = mock_engine(budget=5)
    for i in range(3):
        engine.submit(prompt(17, i), greedy(4))
    return engine


def prefix_hits() -> Engine:
    engine = mock_engine()
    for length in (9, 13, 13, 22):
        engine.submit(prompt(length), greedy(3)).wait()
    return engine


def preemption() -> Engine:
    engine = mock_engine(num_blocks=8, slots=4)
    for i in range(4):
        engine.submit(prompt(5, i), greedy(16))
    return engine


def groups() -> Engine:
    engine = mock_engine(num_blocks=12, slots=6)
    for i in range(4):
        engine.submit(prompt(6 + i, i), greedy(12, n=1 + i))
    return engine


def aborts() -> Engine:
    engine = mock_engine(slots=2, budget=6)
    runs = [engine.submit(prompt(9, i), greedy(12, n=1 + i % 2)) for i in range(6)]
    for run in runs[::2]:
        run.abort()
        engine.step()
        engine.step()
    return engine


def static() -> Engine:
    engine = mock_engine(policy="static", slots=3, num_blocks=14)
    for i in range(7):
        engine.submit(prompt(5, i % 2), greedy(3 + 2 * i))
    return engine


def everything() -> Engine:
    engine = mock_engine(num_blocks=10, slots=4, budget=7)
    runs = [
        engine.submit(prompt(3 + i % 8, i % 2), greedy(9, n=1 + i % 3, logprobs=i % 3), priority=i % 2)
        for i in range(20)
    ]
    for run in runs[::6]:
        engine.step()
        run.abort()
    engine.submit(prompt(9), greedy(5, prompt_logprobs=2))
    return engine


SCENES = [chunked, prefix_hits, preemption, groups, aborts, static, everything]


@pytest.fixture(scope="module", params=SCENES, ids=lambda scene: scene.__name__)
def engine(request) -> Engine:
    engine = request.param()
    engine.run_until_idle()
    assert_all_returned(engine)
    return engine


def test_the_events_agree_with_each_other(engine):
    assert engine.trace.check() == []


def test_the_part_of_every_request_agrees_too(engine):
    for request_id in engine.trace.requests.request_id:
        assert engine.trace.for_request(request_id).check() == []


def test_a_saved_trace_is_the_same_trace(engine, tmp_path):
    path = engine.trace.save(tmp_path / "a.trace.jsonl.gz")
    assert Trace.load(path).events == engine.trace.events


def test_leaf_spans_tile_every_request(engine):
    trace = engine.trace
    roots = trace.spans.query("name == 'request'").set_index("request_id")
    assert set(roots.index) == set(trace.requests.request_id)
    for request_id, root in roots.iterrows():
        leaves = trace.leaves(request_id).sort_values("start_s")
        assert leaves.duration_ms.sum() == pytest.approx(root.duration_ms, abs=1e-5)
        assert leaves.start_s.iloc[0] == pytest.approx(root.start_s, abs=1e-9)
        assert leaves.end_s.iloc[-1] == pytest.approx(root.end_s, abs=1e-9)
        assert leaves.start_s.tolist()[1:] == pytest.approx(leaves.end_s.tolist()[:-1], abs=1e-9)


def test_no_span_says_that_something_was_not_recorded(engine):
    assert "not recorded" not in set(engine.trace.spans.name)


def test_every_live_request_has_one_reason_in_every_step(engine):
    """Live: submitted before the step began, and not finished before its batch was chosen."""
    trace = engine.trace
    index, table = trace._index, trace.schedule
    assert not table.duplicated(["step", "request_id"]).any()
    known = set(zip(table.step, table.request_id, strict=True))
    first_decision = {decision.request_id: decision.step for decision in reversed(index.decisions)}
    num_live = 0
    for step in index.steps:
        for request_id, submitted in index.submitted.items():
            is_live = submitted.t_ns < step.t_ns and index.finished[request_id].t_ns > step.build_ns
            if submitted.parent_id:  # until it joins, it waits within its group's first sample
                is_live = is_live and first_decision[request_id] <= step.step
            assert not is_live or (step.step, request_id) in known
            num_live += is_live
    assert num_live >= len(index.steps)
    assert set(table.reason) <= {*map(str, Reason), "aborted", "length", "eos"}


def test_scheduled_tokens_are_the_computed_ones(engine):
    trace = engine.trace
    computed = trace.schedule.query("action == 'ran'").groupby("step").num_tokens.sum()
    steps = trace.steps.set_index("step")
    assert computed.to_dict() == steps.num_tokens[steps.num_tokens > 0].to_dict()
    assert (steps.num_prefill_tokens + steps.num_decode_tokens == steps.num_tokens).all()
    assert (steps.free + steps.cached + steps.used == engine.pool.num_blocks).all()


def test_the_block_map_of_the_last_step_agrees_with_the_pool(engine):
    last = engine.trace.block_map(int(engine.trace.steps.step.iloc[-1]))
    assert len(last) == engine.pool.num_blocks
    states = last.state.value_counts().to_dict()
    assert states.get("cached", 0) == engine.pool.num_cached
    assert states.get("free", 0) == engine.pool.num_free
    for row in last.itertuples():
        digest = engine.pool.blocks[row.block_id].digest
        assert row.hash == digest[:6].hex()


def test_emitted_texts_are_the_outputs(engine):
    texts: dict[str, str] = {}
    for event in engine.trace._index.texts:
        texts[event.request_id] = texts.get(event.request_id, "") + event.text
    for row in engine.trace.requests.itertuples():
        submitted = engine.trace._index.submitted[row.request_id]
        expected = continuation(list(submitted.prompt_token_ids), row.num_output_tokens)
        assert texts.get(row.request_id, "") == bytes(expected).decode()


# -- reasons to wait -----------------------------------------------------------------------------------------


def reasons(engine: Engine, action: str = "waited") -> set[str]:
    engine.run_until_idle()
    assert_all_returned(engine)
    return set(engine.trace.schedule.query("action == @action").reason)


def test_waiting_for_budget():
    engine = mock_engine(budget=6)
    for i in range(3):
        engine.submit(prompt(9, i), greedy(3))
    assert reasons(engine) == {Reason.NO_BUDGET, Reason.BEHIND}


def test_a_running_request_can_wait_for_budget_too():
    engine = mock_engine(budget=2, slots=4)
    runs = [engine.submit(prompt(1, i), greedy(6)) for i in range(3)]
    step_until(engine, lambda: len(engine.scheduler.running) == 3 or all(run.finished for run in runs))
    engine.run_until_idle()
    late = engine.trace.schedule.query("request_id == 'r2' and action == 'waited'")
    assert set(late.reason) <= {Reason.NO_BUDGET, Reason.BEHIND}
    assert Reason.NO_BUDGET in set(late.reason)


def test_waiting_for_a_slot():
    engine = mock_engine(slots=1)
    for i in range(3):
        engine.submit(prompt(3, i), greedy(3))
    assert reasons(engine) == {Reason.NO_SLOT, Reason.BEHIND}


def test_waiting_for_blocks():
    engine = mock_engine(num_blocks=4)
    for i in range(3):
        engine.submit(prompt(9, i), greedy(4))
    assert reasons(engine) == {Reason.NO_BLOCKS, Reason.BEHIND}


def test_waiting_for_the_static_batch():
    engine = mock_engine(policy="static", slots=2)
    for i in range(4):
        engine.submit(prompt(3, i), greedy(3))
    assert reasons(engine) == {Reason.NO_SLOT, Reason.STATIC_BATCH, Reason.BEHIND}


def test_waiting_because_a_request_was_preempted_in_the_same_step():
    engine = mock_engine(num_blocks=6, slots=3)
    for i in range(2):
        engine.submit(prompt(5, i), greedy(12), priority=1)
    engine.step()
    engine.submit(prompt(12, 2), greedy(2))  # goes first, but the running ones leave too few blocks
    assert reasons(engine) >= {Reason.NO_BLOCKS, Reason.JUST_PREEMPTED}


def test_a_preemption_names_its_cause_and_resumes():
    engine = mock_engine(num_blocks=8, slots=2)
    runs = [engine.submit(prompt(5, i), greedy(20)) for i in range(2)]
    step_until(engine, lambda: any(r.status is Status.PREEMPTED for r in engine.scheduler.waiting))
    engine.run_until_idle()
    table = engine.trace.schedule
    preempted = table[table.action == "preempted"]
    assert set(preempted.request_id) == {runs[1].id}
    first = preempted.iloc[0]
    assert (first.by, first.reason) == (runs[0].id, Reason.OUT_OF_BLOCKS)
    assert Reason.RESUMED in set(table.admission)
    assert Reason.RECOMPUTE in set(table.reason)


def test_a_full_ring_drops_the_oldest_events_and_still_agrees():
    engine = mock_engine(capacity=300)
    for i in range(12):
        engine.submit(prompt(5, i), greedy(8))
    engine.run_until_idle()
    assert engine.recorder.dropped > 0
    assert engine.trace.check() == []


def test_recording_changes_no_token_and_can_be_off():
    runs = []
    for record in (True, False):
        engine = mock_engine(num_blocks=8, slots=4, record=record)
        runs.append([engine.submit(prompt(5, i), greedy(16)) for i in range(4)])
        engine.run_until_idle()
    assert [run.token_ids for run in runs[0]] == [run.token_ids for run in runs[1]]
    assert len(engine.trace) == 1  # the description of the engine
