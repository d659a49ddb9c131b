"""Log-probabilities of the prompt: complete, once each, and the same with a warm cache."""

from __future__ import annotations

import math

import pytest
import torch
from mock_serving import VOCABULARY, assert_all_returned, continuation, greedy, mock_engine, prompt, step_until

from llmlab.engine.mock_runner import mock_next_token
from llmlab.engine.request import Status


def expected(tokens: list[int]) -> list[float]:
    """What the mock model thinks of each prompt token but the first."""
    values = []
    for i in range(1, len(tokens)):
        logits = torch.zeros(VOCABULARY)
        logits[mock_next_token(tokens[:i])] = 4.0
        values.append(logits.log_softmax(-1)[tokens[i]].item())
    return values


def predictable(length: int) -> list[int]:
    """A prompt of which the model likes every other token, so that a shifted row would show."""
    tokens = [7]
    while len(tokens) < length:
        tokens.append(mock_next_token(tokens) if len(tokens) % 2 else 9)
    return tokens


def values(run) -> list[float]:
    return [value for value, _ in run.prompt_logprobs]


@pytest.mark.parametrize("length", [1, 2, 4, 5, 17])
@pytest.mark.parametrize("budget", [1, 3, 64])
def test_each_position_has_its_logprob_however_the_prompt_is_chunked(length, budget):
    tokens = predictable(length)
    engine = mock_engine(budget=budget)
    run = engine.submit(tokens, greedy(3, prompt_logprobs=0)).wait()
    assert values(run) == pytest.approx(expected(tokens))
    assert run.token_ids == continuation(tokens, 3)
    assert_all_returned(engine)


def test_a_warm_cache_gives_the_same_logprobs():
    tokens, engine = predictable(17), mock_engine()
    first = engine.submit(tokens, greedy(4, prompt_logprobs=2)).wait()
    second = engine.submit(tokens, greedy(4, prompt_logprobs=2)).wait()
    assert first.prompt_logprobs == second.prompt_logprobs
    assert len(second.prompt_logprobs) == 16
    assert second.usage["cached_tokens"] == 0  # served from the cache, they could not be scored
    plain = engine.submit(tokens, greedy(4)).wait()
    assert plain.usage["cached_tokens"] == 16
    assert plain.token_ids == second.token_ids
    assert_all_returned(engine)


def test_preempted_in_mid_prompt_each_position_is_scored_once():
    tokens = predictable(12)
    engine = mock_engine(num_blocks=7, budget=3)
    growing = [engine.submit(prompt(3, start), greedy(16)) for start in (1, 2)]
    step_until(engine, lambda: all(run.token_ids for run in growing))
    run = engine.submit(tokens, greedy(3, prompt_logprobs=1))
    engine.step()
    request = engine._sequences[run.id].request
    step_until(engine, lambda: request.status is Status.PREEMPTED)
    assert 0 < len(request.prompt_logprobs) < 11
    engine.run_until_idle()
    assert values(run) == pytest.approx(expected(tokens))
    positions = [event.start + i for event in engine.trace._index.prompt_logprobs for i in range(len(event.logprobs))]
    assert positions == list(range(1, 12))
    assert_all_returned(engine)


def test_preempted_after_the_prompt_the_cache_may_serve_it():
    tokens = predictable(9)
    engine = mock_engine(num_blocks=7)
    engine.submit(prompt(5, 1), greedy(20))
    run = engine.submit(tokens, greedy(10, prompt_logprobs=0))
    engine.run_until_idle()
    assert run.usage["preemptions"] > 0
    assert values(run) == pytest.approx(expected(tokens))
    assert run.token_ids == continuation(tokens, 10)
    assert_all_returned(engine)


def test_a_group_scores_its_prompt_once():
    tokens, engine = predictable(9), mock_engine()
    run = engine.submit(tokens, greedy(3, n=3, prompt_logprobs=1)).wait()
    assert values(run) == pytest.approx(expected(tokens))
    assert run.params.prompt_logprobs == 1
    assert_all_returned(engine)


def test_alternatives_come_likeliest_first():
    tokens, engine = predictable(6), mock_engine()
    run = engine.submit(tokens, greedy(1, prompt_logprobs=3)).wait()
    for i, (_, top) in enumerate(run.prompt_logprobs, start=1):
        assert len(top) == 3
        assert top[0][0] == mock_next_token(tokens[:i])
        assert top[0][1] > top[1][1] == top[2][1]
        assert sum(math.exp(value) for _, value in top) < 1


def test_neighbours_do_not_disturb_each_others_scores():
    engine = mock_engine(budget=7)
    prompts = [predictable(11), prompt(6, 1), predictable(4), prompt(9, 2)]
    runs = [
        engine.submit(tokens, greedy(4, prompt_logprobs=0 if i % 2 == 0 else None)) for i, tokens in enumerate(prompts)
    ]
    engine.run_until_idle()
    for i, run in enumerate(runs):
        assert values(run) == (pytest.approx(expected(prompts[i])) if i % 2 == 0 else [])
        assert run.token_ids == continuation(prompts[i], 4)


def test_the_trace_table_shows_them():
    tokens, engine = predictable(6), mock_engine()
    engine.submit(tokens, greedy(1, prompt_logprobs=0)).wait()
    table = engine.trace.tokens.query("source == 'prompt'")
    assert math.isnan(table.logprob.iloc[0])
    assert table.logprob.tolist()[1:] == pytest.approx(expected(tokens))
