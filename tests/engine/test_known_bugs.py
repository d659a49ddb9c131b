"""Bugs that serving engines have had again and again, each as a test that would have caught it."""

from __future__ import annotations

import pytest
from mock_serving import (
    assert_all_returned,
    assert_sound,
    continuation,
    greedy,
    mock_engine,
    prompt,
    sampled_continuation,
    step_until,
    streamed,
)

from llmlab.engine.blocks import hash_block
from llmlab.engine.engine import Engine
from llmlab.engine.params import SamplingParams
from llmlab.engine.request import Status
from llmlab.errors import PoolTooSmall


def hashes(engine: Engine) -> dict[tuple[int, ...], bytes]:
    return {block.tokens: block.digest for block in engine.pool.blocks if block.content}


def assert_right(runs, num_tokens: int) -> None:
    for run in runs:
        assert run.token_ids == continuation(run.prompt_token_ids, num_tokens)


@pytest.mark.parametrize("weak", [lambda *_: b"same", lambda _, tokens, __: bytes(t & 1 for t in tokens)])
def test_colliding_hashes_never_share_a_wrong_block(weak):
    engine = mock_engine(num_blocks=24)
    engine.pool.index.hash_fn = weak
    prompts = [prompt(13, start) for start in (1, 2, 3)] * 2
    runs = [engine.submit(tokens, greedy(6)) for tokens in prompts]
    engine.run_until_idle()
    again = [engine.submit(tokens, greedy(6)) for tokens in prompts]
    engine.run_until_idle()
    assert_right([*runs, *again], 6)
    assert all(run.usage["cached_tokens"] == 12 for run in again)
    assert_all_returned(engine)


@pytest.mark.parametrize("length", [1, 3, 4, 5, 8, 12])
def test_a_prompt_sent_twice_computes_at_least_its_last_token(length):
    engine = mock_engine()
    first = engine.submit(prompt(length), greedy(5)).wait()
    second = engine.submit(prompt(length), greedy(5)).wait()
    assert second.token_ids == first.token_ids == continuation(prompt(length), 5)
    assert second.usage["cached_tokens"] == (length - 1) // 4 * 4
    assert_all_returned(engine)


@pytest.mark.parametrize("chunk", [64, 5])
def test_blocks_in_flight_are_not_matched_before_they_are_computed(chunk):
    engine = mock_engine(budget=chunk)
    runs = [engine.submit(prompt(14), greedy(4)) for _ in range(2)]
    engine.run_until_idle()
    assert_right(runs, 4)
    if chunk == 64:  # both were admitted in the same step, so neither could be served by the other
        assert [run.usage["cached_tokens"] for run in runs] == [0, 0]
    assert_all_returned(engine)


def test_equal_prompts_of_one_step_can_part_and_still_be_hit():
    engine = mock_engine()
    stays = engine.submit(prompt(13), greedy(30))
    leaves = engine.submit(prompt(13), greedy(2))
    leaves.wait()
    third = engine.submit(prompt(13), greedy(4)).wait()
    assert third.usage["cached_tokens"] == 12
    stays.wait()
    fourth = engine.submit(prompt(13), greedy(4)).wait()
    assert_right([stays], 30)
    assert_right([third, fourth], 4)
    assert_all_returned(engine)


def test_hundreds_of_requests_resume_with_prefix_hits_in_a_tiny_pool():
    engine = mock_engine(num_blocks=9, block_size=4, slots=6, budget=24)
    runs = [engine.submit(prompt(3 + i % 9, start=i % 2), greedy(12)) for i in range(300)]
    engine.run_until_idle()
    assert_right(runs, 12)
    assert sum(run.usage["preemptions"] for run in runs) > 50
    resumed = engine.trace.schedule.query("admission == 'resumed after preemption' and num_cached > 0")
    assert len(resumed) > 10
    assert_all_returned(engine)


def test_no_freed_block_is_in_any_table_at_any_step():
    engine = mock_engine(num_blocks=10, slots=5, budget=16)
    for i in range(40):
        engine.submit(prompt(2 + i % 11, start=i % 3), greedy(8, n=1 + i % 3))
    while engine.step():
        live = [sequence.request for sequence in engine._sequences.values()]
        engine.pool.check_integrity(live)
    assert_all_returned(engine)


@pytest.mark.parametrize("n", [2, 3, 5])
@pytest.mark.parametrize("length", [1, 4, 6])
def test_samples_of_one_prompt_free_each_block_once(n, length):
    engine = mock_engine(num_blocks=24)
    run = engine.submit(prompt(length), greedy(7, n=n)).wait()
    assert [output.token_ids for output in run.outputs] == [continuation(prompt(length), 7)] * n
    assert_all_returned(engine)


def test_every_chunk_size_gives_the_same_hashes_and_tokens():
    tokens, by_chunk = prompt(17), []
    for budget in range(1, 18):
        engine = mock_engine(budget=budget, block_size=4)
        run = engine.submit(tokens, greedy(6)).wait()
        assert run.token_ids == continuation(tokens, 6)
        by_chunk.append(hashes(engine))
        assert_all_returned(engine)
    full = [*tokens, *continuation(tokens, 6)]
    digest, expected = b"", {}
    for i in range(0, 20, 4):
        digest = hash_block(digest, full[i : i + 4], "")
        expected[tuple(full[i : i + 4])] = digest
    assert all(found == expected for found in by_chunk)


@pytest.mark.parametrize("budget", [1, 2, 3, 5, 7])
def test_a_chunked_prompt_after_a_hit_starts_where_the_hit_ends(budget):
    engine = mock_engine(budget=budget)
    engine.submit(prompt(9), greedy(1)).wait()
    longer = engine.submit(prompt(22), greedy(5)).wait()
    assert longer.usage["cached_tokens"] == 8
    assert longer.token_ids == continuation(prompt(22), 5)
    assert_all_returned(engine)


def test_preemption_neither_repeats_nor_loses_output():
    engine = mock_engine(num_blocks=8, block_size=4, slots=4)
    runs = [engine.submit(prompt(5, start), greedy(16, n=1 + (start == 2))) for start in range(3)]
    engine.run_until_idle()
    assert sum(run.usage["preemptions"] for run in runs) > 0
    for run in runs:
        for which, output in enumerate(run.outputs):
            assert streamed(run, which) == (output.token_ids, output.text)
            assert output.token_ids == continuation(run.prompt_token_ids, 16)
    positions = engine.trace.tokens.query("source == 'target'").groupby("request_id")["position"]
    assert all(group.is_unique and len(group) == 16 for _, group in positions)
    assert_all_returned(engine)


def test_preempt_and_resume_do_not_thrash():
    """Computing everything takes at most a small multiple of the tokens there are."""
    engine = mock_engine(num_blocks=8, block_size=4, slots=8, prefix_cache=False)
    runs = [engine.submit(prompt(6, start), greedy(14)) for start in range(8)]
    engine.run_until_idle()
    assert sum(run.usage["preemptions"] for run in runs) > 0
    recomputed = sum(run.usage["recomputed_tokens"] for run in runs)
    assert recomputed < 2 * sum(6 + 14 for _ in runs)


def test_recomputed_tokens_are_not_counted_as_cache_hits():
    engine = mock_engine(num_blocks=8, block_size=4, slots=4)
    runs = [engine.submit(prompt(5, start), greedy(16)) for start in range(3)]
    engine.run_until_idle()
    preempted = [run for run in runs if run.usage["preemptions"]]
    assert preempted
    assert all(run.usage["cached_tokens"] == 0 for run in runs)
    assert any(run.usage["recomputed_tokens"] for run in preempted)
    table = engine.trace.requests.set_index("request_id")
    for run in runs:
        assert table.loc[run.id, "num_preempted_tokens"] == run.usage["recomputed_tokens"]
        assert table.loc[run.id, "num_cached_tokens"] == 0
    assert_all_returned(engine)


def test_a_preemption_in_the_middle_of_recomputing_counts_every_token_once():
    engine = mock_engine(num_blocks=39, block_size=1, budget=3, slots=3, prefix_cache=False)
    runs = [engine.submit(prompt(length, i), greedy(n)) for i, (length, n) in enumerate([(1, 28), (1, 19), (8, 18)])]
    twice = False
    while engine.step():
        victims = [r for r in engine.scheduler.waiting if r.num_preemptions == 2]
        twice = twice or any(0 < r.num_recomputed < r.num_prompt + r.num_output - 1 for r in victims)
    assert twice
    for run, length in zip(runs, (28, 19, 18), strict=True):
        assert run.token_ids == continuation(run.prompt_token_ids, length)
    assert_all_returned(engine)


def test_a_request_larger_than_the_pool_is_refused_and_the_next_one_runs():
    engine = mock_engine(num_blocks=4, block_size=4)
    with pytest.raises(PoolTooSmall, match=r"5 blocks of 4, the pool has 4.*max_tokens of at most 7"):
        engine.submit(prompt(10), greedy(8))
    largest = engine.submit(prompt(10), greedy(7)).wait()  # 16 positions: the whole pool
    assert largest.token_ids == continuation(prompt(10), 7)
    assert_all_returned(engine)


PHASES = ("before any step", "in the queue", "mid prompt", "mid decode", "preempted", "finished")


def reach(engine: Engine, run, phase: str) -> None:
    request = engine._sequences.get(run.id)
    if phase == "before any step":
        return
    engine.step()
    request = engine._sequences[run.id].request
    if phase == "in the queue":
        assert request.status is Status.WAITING
    elif phase == "mid prompt":
        step_until(engine, lambda: 0 < request.num_computed < request.num_prompt)
    elif phase == "mid decode":
        step_until(engine, lambda: request.status is Status.RUNNING and request.num_output > 2)
    elif phase == "preempted":
        step_until(engine, lambda: request.status is Status.PREEMPTED)
    else:
        run.wait()


@pytest.mark.parametrize("n", [1, 2])
@pytest.mark.parametrize("phase", PHASES)
def test_a_client_that_leaves_in_any_phase_leaks_nothing(phase, n):
    engine = mock_engine(num_blocks=9, block_size=4, budget=6, slots=3)
    neighbour = engine.submit(prompt(9, 1), greedy(24))
    leaver = engine.submit(prompt(9, 2), greedy(10, n=n))
    if phase == "in the queue":
        leaver.abort()
        blocker = engine.submit(prompt(9, 3), greedy(10))
        leaver = engine.submit(prompt(20, 2), greedy(4, n=n))
        reach(engine, leaver, phase)
        blocker.abort()
    else:
        reach(engine, leaver, phase)
    seen = [list(output.token_ids) for output in leaver.outputs]
    leaver.abort()
    leaver.wait()
    assert leaver.stop_reason == ("length" if phase == "finished" else "aborted")
    assert [output.token_ids for output in leaver.outputs] == seen
    assert all(streamed(leaver, which)[0] == tokens for which, tokens in enumerate(seen))
    assert_sound(engine)
    assert neighbour.wait().token_ids == continuation(prompt(9, 1), 24)
    assert_all_returned(engine)


def test_a_seed_does_not_depend_on_an_unseeded_neighbour():
    params = SamplingParams(max_tokens=12, temperature=1.2, seed=11)
    expected = sampled_continuation(prompt(5), params)
    engine = mock_engine()
    runs = [engine.submit(prompt(5), SamplingParams(max_tokens=12, temperature=1.2)), engine.submit(prompt(5), params)]
    engine.run_until_idle()
    assert runs[1].token_ids == expected
    assert runs[0].token_ids != expected


@pytest.mark.parametrize("temperature", [0.0, 1e-6, 1e-5, 1e-4])
def test_near_zero_temperature_is_greedy_and_harms_nobody(temperature):
    engine = mock_engine()
    cold = engine.submit(prompt(6), SamplingParams(max_tokens=8, temperature=temperature, seed=1, logprobs=2))
    neighbour = engine.submit(prompt(6, 1), greedy(8))
    engine.run_until_idle()
    assert_right([cold, neighbour], 8)
    assert all(value == value and value <= 0 for value in cold.outputs[0].logprobs)
    assert_all_returned(engine)


@pytest.mark.parametrize(
    ("max_tokens", "eos_every", "reason"),
    [
        (4, 0, "length"),
        (31, 5, "eos"),
        (None, 0, "context"),
    ],
)
def test_the_reason_and_the_counts_say_what_happened(max_tokens, eos_every, reason):
    engine = mock_engine(eos_every=eos_every, max_model_len=40)
    tokens = prompt(9)
    expected = continuation(tokens, max_tokens or 40 - 9, eos_every)
    run = engine.submit(tokens, SamplingParams(max_tokens=max_tokens)).wait()
    assert run.stop_reason == reason
    assert run.usage == {
        "prompt_tokens": 9,
        "cached_tokens": 0,
        "output_tokens": len(expected),
        "recomputed_tokens": 0,
        "preemptions": 0,
    }


def test_usage_of_a_group_counts_the_prompt_once_and_every_output():
    engine = mock_engine()
    run = engine.submit(prompt(9), greedy(5, n=3)).wait()
    assert (run.usage["prompt_tokens"], run.usage["output_tokens"]) == (9, 15)
