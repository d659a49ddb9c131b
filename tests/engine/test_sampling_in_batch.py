"""A seeded request draws the same tokens whatever happens around it."""

from __future__ import annotations

import pytest
from mock_serving import assert_all_returned, greedy, mock_engine, prompt, sampled_continuation

from llmlab.engine.params import SamplingParams

SEEDED = SamplingParams(max_tokens=12, temperature=1.1, seed=42)
EXPECTED = sampled_continuation(prompt(6), SEEDED)


def test_the_draws_are_a_mixture():
    """The tests below would show nothing if the seeded tokens were the greedy ones, or all the same."""
    engine = mock_engine()
    assert engine.submit(prompt(6), greedy(12)).wait().token_ids != EXPECTED
    assert len(set(EXPECTED)) > 4


def test_alone():
    assert mock_engine().submit(prompt(6), SEEDED).wait().token_ids == EXPECTED


@pytest.mark.parametrize("place", [0, 2, 4])
def test_batched_in_any_place(place):
    engine = mock_engine()
    others = [SamplingParams(max_tokens=12, temperature=0.9, seed=seed) for seed in (1, None, 2, None)]
    params = [*others[:place], SEEDED, *others[place:]]
    runs = [engine.submit(prompt(6), each) for each in params]
    engine.run_until_idle()
    assert runs[place].token_ids == EXPECTED
    assert_all_returned(engine)


def test_joining_late_and_in_chunks():
    engine = mock_engine(budget=5)
    engine.submit(prompt(30, 1), greedy(20))
    for _ in range(3):
        engine.step()
    run = engine.submit(prompt(6), SEEDED)
    engine.run_until_idle()
    assert run.token_ids == EXPECTED


def test_after_a_prefix_hit():
    engine = mock_engine()
    engine.submit(prompt(6), greedy(1)).wait()
    run = engine.submit(prompt(6), SEEDED).wait()
    assert run.usage["cached_tokens"] == 4
    assert run.token_ids == EXPECTED


def test_preempted():
    engine = mock_engine(num_blocks=6)
    engine.submit(prompt(6, 1), greedy(16))
    run = engine.submit(prompt(6), SEEDED)
    engine.run_until_idle()
    assert run.usage["preemptions"] > 0
    assert run.token_ids == EXPECTED
    assert_all_returned(engine)


def test_with_a_static_batch():
    engine = mock_engine(policy="static", slots=2)
    runs = [engine.submit(prompt(6), SEEDED) for _ in range(3)]
    engine.run_until_idle()
    assert [run.token_ids for run in runs] == [EXPECTED] * 3


def test_another_seed_draws_other_tokens_and_the_same_seed_other_places():
    engine = mock_engine()
    other = SamplingParams(max_tokens=12, temperature=1.1, seed=43)
    assert engine.submit(prompt(6), other).wait().token_ids != EXPECTED
    assert engine.submit(prompt(7), SEEDED).wait().token_ids != EXPECTED


def test_without_a_seed_two_runs_differ():
    engine = mock_engine()
    params = SamplingParams(max_tokens=40, temperature=2.0)
    runs = [engine.submit(prompt(6), params).wait().token_ids for _ in range(2)]
    assert runs[0] != runs[1]


def test_samples_of_a_group_differ_from_each_other_and_repeat():
    params = SamplingParams(max_tokens=12, temperature=1.1, seed=42, n=4)
    first, second = mock_engine(), mock_engine(num_blocks=14)
    runs = [first.submit(prompt(6), params).wait(), second.submit(prompt(6), params)]
    second.submit(prompt(9, 1), greedy(20))
    second.run_until_idle()
    samples = [[output.token_ids for output in run.outputs] for run in runs]
    assert samples[0] == samples[1]
    assert samples[0] == [sampled_continuation(prompt(6), params, which) for which in range(4)]
    assert len(set(map(tuple, samples[0]))) == 4
    assert samples[0][0] == EXPECTED
    assert_all_returned(second)


def test_preempted_samples_of_a_group_draw_the_same():
    params = SamplingParams(max_tokens=14, temperature=1.1, seed=42, n=3)
    engine = mock_engine(num_blocks=8)
    run = engine.submit(prompt(6), params).wait()
    assert run.usage["preemptions"] > 0
    expected = [sampled_continuation(prompt(6), params, which) for which in range(3)]
    assert [output.token_ids for output in run.outputs] == expected
    assert_all_returned(engine)


def test_penalties_look_at_the_whole_output_of_a_preempted_request():
    params = SamplingParams(max_tokens=14, temperature=1.1, seed=7, frequency_penalty=2.0, presence_penalty=1.0)
    expected = sampled_continuation(prompt(6), params)
    engine = mock_engine(num_blocks=6)
    engine.submit(prompt(6, 1), greedy(18))
    run = engine.submit(prompt(6), params)
    engine.run_until_idle()
    assert run.usage["preemptions"] > 0
    assert run.token_ids == expected


def test_logprobs_have_one_entry_per_token_also_after_a_preemption():
    engine = mock_engine(num_blocks=6)
    engine.submit(prompt(6, 1), greedy(16))
    run = engine.submit(prompt(6), greedy(12, logprobs=2))
    engine.run_until_idle()
    output = run.outputs[0]
    assert run.usage["preemptions"] > 0
    assert len(output.logprobs) == len(output.top_logprobs) == len(output.token_ids) == 12
    assert all(
        top[0] == (token, value)
        for token, value, top in zip(output.token_ids, output.logprobs, output.top_logprobs, strict=True)
    )


def test_no_logprobs_unless_asked_for():
    output = mock_engine().submit(prompt(6), greedy(3)).wait().outputs[0]
    assert (output.logprobs, output.top_logprobs) == ([], [])
