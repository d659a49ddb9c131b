"""``max_tokens=0``: the prompt is computed and cached, nothing is sampled; and how much the cache served."""

from __future__ import annotations

import pytest
from mock_serving import assert_all_returned, continuation, greedy, mock_engine, prompt, step_until, streamed

from llmlab.engine.params import SamplingParams
from llmlab.errors import InvalidParameter, PoolTooSmall

BLOCK = 4


@pytest.mark.parametrize("length", [1, 3, 4, 5, 8, 23])
@pytest.mark.parametrize("budget", [64, 4])
def test_nothing_is_sampled_and_every_full_block_can_be_hit(length, budget):
    engine = mock_engine(budget=budget)
    run = engine.submit(prompt(length), greedy(0)).wait()
    assert (run.stop_reason, run.token_ids, run.text, run.num_cached) == ("length", [], "", 0)
    assert streamed(run) == ([], "")
    assert run.usage["output_tokens"] == 0
    assert engine.pool.num_cached == length // BLOCK
    assert_all_returned(engine)
    again = engine.submit(prompt(length + 1), greedy(4)).wait()
    assert again.num_cached == again.usage["cached_tokens"] == length // BLOCK * BLOCK
    assert again.token_ids == continuation(prompt(length + 1), 4)
    assert_all_returned(engine)


@pytest.mark.parametrize("length", [1, 4, 9, 16])
def test_a_warm_prompt_computes_only_the_rest(length):
    engine = mock_engine()
    engine.submit(prompt(length), greedy(0)).wait()
    run = engine.submit(prompt(length), greedy(0)).wait()
    served = (length - 1) // BLOCK * BLOCK
    assert run.num_cached == served
    assert sum(row.num_tokens for row in run.trace.schedule.itertuples() if row.action == "ran") == length - served
    assert_all_returned(engine)


def test_without_a_prefix_cache_it_computes_and_keeps_nothing():
    engine = mock_engine(prefix_cache=False)
    assert engine.submit(prompt(9), greedy(0)).wait().num_cached == 0
    assert engine.pool.num_cached == 0
    assert_all_returned(engine)


def test_prewarming_beside_others_disturbs_nobody():
    engine = mock_engine(budget=8)
    first = engine.submit(prompt(9, 1), greedy(12))
    step_until(engine, lambda: len(first.token_ids) == 2)
    warming = engine.submit(prompt(30), greedy(0))
    second = engine.submit(prompt(5, 2), greedy(12))
    engine.run_until_idle()
    assert (warming.stop_reason, warming.token_ids) == ("length", [])
    assert first.token_ids == continuation(prompt(9, 1), 12)
    assert second.token_ids == continuation(prompt(5, 2), 12)
    assert_all_returned(engine)


def test_prewarming_survives_preemption():
    engine = mock_engine(num_blocks=10, budget=3, slots=2)
    older = engine.submit(prompt(5), greedy(24))
    step_until(engine, lambda: len(older.token_ids) == 1)
    run = engine.submit(prompt(28, 1), greedy(0))
    engine.run_until_idle()
    assert run.usage["preemptions"] > 0
    assert (run.stop_reason, run.token_ids) == ("length", [])
    assert older.token_ids == continuation(prompt(5), 24)
    assert_all_returned(engine)


def test_a_prompt_that_fills_the_pool_can_be_prewarmed_and_a_longer_one_is_refused():
    engine = mock_engine(num_blocks=4)
    assert engine.submit(prompt(16), greedy(0)).wait().stop_reason == "length"
    with pytest.raises(PoolTooSmall, match="num_blocks >= 5"):
        engine.submit(prompt(17), greedy(0))
    assert_all_returned(engine)


def test_the_prompt_can_be_scored_on_the_way():
    engine = mock_engine(budget=4)
    run = engine.submit(prompt(9), greedy(0, prompt_logprobs=1)).wait()
    whole = mock_engine().submit(prompt(9), greedy(1, prompt_logprobs=1)).wait()
    assert len(run.prompt_logprobs) == 8
    assert run.prompt_logprobs == whole.prompt_logprobs
    assert_all_returned(engine)


def test_prewarming_can_be_aborted():
    engine = mock_engine(budget=4)
    run = engine.submit(prompt(20), greedy(0))
    engine.step()
    run.abort()
    assert run.wait().stop_reason == "aborted"
    assert_all_returned(engine)


def test_the_tables_of_the_trace_know_a_request_without_output():
    engine = mock_engine()
    run = engine.submit(prompt(9), greedy(0)).wait()
    row = run.trace.requests.iloc[0]
    assert (row.num_output_tokens, row.stop_reason) == (0, "length")
    assert len(run.trace.tokens) == 9
    assert (run.trace.spans.duration_ms >= 0).all()


@pytest.mark.parametrize("wrong", [{"n": 2}, {"min_tokens": 1}])
def test_what_needs_output_is_refused(wrong):
    with pytest.raises(InvalidParameter, match="max_tokens"):
        SamplingParams(max_tokens=0, **wrong)


# -- how much the cache served -------------------------------------------------------------------------------


def test_the_cached_tokens_are_known_from_admission_on():
    engine = mock_engine(slots=1)
    engine.submit(prompt(9), greedy(0)).wait()
    blocking = engine.submit(prompt(5, 1), greedy(3))
    run = engine.submit(prompt(12), greedy(3, n=1))
    step_until(engine, lambda: bool(blocking.token_ids))
    assert run.num_cached is None
    step_until(engine, lambda: bool(run.token_ids))
    assert run.num_cached == 8
    engine.run_until_idle()
    assert run.num_cached == run.usage["cached_tokens"] == 8


def test_a_chunked_prompt_and_a_preemption_do_not_change_the_cached_tokens():
    engine = mock_engine(num_blocks=10, budget=5, slots=2)
    older = engine.submit(prompt(5), greedy(24))
    run = engine.submit(prompt(12, 1), greedy(20))
    seen = set()
    while engine.step():
        seen.add(run.num_cached)
    assert run.usage["preemptions"] > 0
    assert seen - {None} == {0}
    assert older.token_ids == continuation(prompt(5), 24)


def test_a_run_aborted_while_waiting_never_learns_its_cached_tokens():
    engine = mock_engine(slots=1)
    engine.submit(prompt(5), greedy(5))
    waiting = engine.submit(prompt(5, 1), greedy(5))
    engine.step()
    waiting.abort()
    engine.run_until_idle()
    assert waiting.num_cached is None


async def test_a_stream_knows_its_cached_tokens_at_the_first_delta():
    engine = mock_engine()
    for expected in (0, 8):
        run = engine.submit(prompt(9), greedy(3))
        first = await anext(run.adeltas())
        assert first.token_ids
        assert run.num_cached == expected
        await run
    engine.close()
    assert_all_returned(engine)
