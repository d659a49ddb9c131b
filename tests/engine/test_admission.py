"""Everything that is refused at the door: the right error, the numbers in it, and the next request runs."""

from __future__ import annotations

import pytest
from mock_serving import assert_all_returned, continuation, greedy, mock_engine, prompt

import llmlab
from llmlab.engine.params import SamplingParams
from llmlab.engine.scheduler import SchedulerConfig
from llmlab.errors import ContextOverflow, EmptyPrompt, InvalidParameter, PoolTooSmall

REFUSALS = {
    "no tokens": ([], {}, EmptyPrompt, "give at least one"),
    "id too large": ([1, 258], {}, InvalidParameter, r"prompt token 1 is 258: ids are integers from 0 to 257"),
    "negative id": ([-1], {}, InvalidParameter, r"prompt token 0 is -1.*0 to 257"),
    "id that is no integer": ([1, 2.0], {}, InvalidParameter, r"prompt token 1 is 2\.0"),
    "id that is a bool": ([True], {}, InvalidParameter, r"prompt token 0 is True"),
    "text instead of ids": ("text", {}, InvalidParameter, r"prompt token 0 is 't'"),
    "prompt as long as the context": (
        prompt(60),
        {},
        ContextOverflow,
        r"60 tokens and the context 60: at most 59 leave room",
    ),
    "output beyond the context": (
        prompt(20),
        {"max_tokens": 41},
        ContextOverflow,
        r"20 prompt \+ max_tokens=41 exceed the context of 60 tokens: use max_tokens of at most 40",
    ),
    "more than the pool": (
        prompt(20),
        {"max_tokens": 30},
        PoolTooSmall,
        r"20 prompt \+ 30 output tokens need 13 blocks of 4, the pool has 10: use max_tokens of at most 21, "
        r"or num_blocks >= 13",
    ),
    "a prompt more than the pool": (
        prompt(50),
        {"max_tokens": 3},
        PoolTooSmall,
        r"need 13 blocks of 4, the pool has 10: use a shorter prompt or num_blocks >= 13",
    ),
    "a prompt more than the pool, output open": (
        prompt(50),
        {"max_tokens": None},
        PoolTooSmall,
        r"50 tokens, the pool holds 40: shorten the prompt or use num_blocks >= 13",
    ),
    "more samples than slots": (
        prompt(3),
        {"max_tokens": 3, "n": 5},
        InvalidParameter,
        r"n=5 samples need as many slots, the batch has max_num_seqs=4",
    ),
    "a stop id outside the vocabulary": (
        prompt(3),
        {"max_tokens": 3, "stop_token_ids": (999,)},
        InvalidParameter,
        r"stop_token_ids names token 999, but this model's ids are 0 to 257",
    ),
    "a bias outside the vocabulary": (
        prompt(3),
        {"max_tokens": 3, "logit_bias": {258: 1}},
        InvalidParameter,
        r"logit_bias names token 258.*0 to 257",
    ),
}


@pytest.mark.parametrize("case", REFUSALS)
def test_refused_with_the_numbers_and_the_next_request_runs(case):
    tokens, params, error, message = REFUSALS[case]
    engine = mock_engine(num_blocks=10, block_size=4, slots=4, max_model_len=60)
    before = engine.submit(prompt(5), greedy(4))
    with pytest.raises(error, match=message):
        engine.submit(tokens, SamplingParams(**params))
    after = engine.submit(prompt(6), greedy(4))
    engine.run_until_idle()
    assert before.token_ids == continuation(prompt(5), 4)
    assert after.token_ids == continuation(prompt(6), 4)
    assert set(engine.trace.requests.request_id) == {before.id, after.id}
    assert_all_returned(engine)


@pytest.mark.parametrize(("length", "max_tokens"), [(20, 21), (39, 2), (40, 1), (1, 40)])
def test_the_largest_request_that_fits_the_pool_runs(length, max_tokens):
    engine = mock_engine(num_blocks=10, block_size=4, max_model_len=60)
    run = engine.submit(prompt(length), greedy(max_tokens)).wait()
    assert run.token_ids == continuation(prompt(length), max_tokens)
    assert_all_returned(engine)


@pytest.mark.parametrize(("length", "expected"), [(1, 40), (30, 11), (40, 1)])
def test_open_output_takes_what_the_pool_leaves(length, expected):
    engine = mock_engine(num_blocks=10, block_size=4, max_model_len=60)
    run = engine.submit(prompt(length), greedy(None)).wait()
    assert (len(run.token_ids), run.stop_reason) == (expected, "context")
    assert_all_returned(engine)


@pytest.mark.parametrize(("length", "expected"), [(1, 59), (30, 30), (59, 1)])
def test_open_output_takes_what_the_context_leaves(length, expected):
    engine = mock_engine(num_blocks=40, block_size=4, max_model_len=60)
    run = engine.submit(prompt(length), greedy(None)).wait()
    assert (len(run.token_ids), run.stop_reason) == (expected, "context")


def test_the_caller_may_change_its_prompt_afterwards():
    engine = mock_engine()
    tokens = prompt(5)
    run = engine.submit(tokens, greedy(3))
    tokens[0] = 99
    assert run.wait().token_ids == continuation(prompt(5), 3)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"prefix_cache": "on"}, "prefix_cache='on' must be 'hash', 'radix' or 'off'"),
        ({"policy": "fair"}, "policy='fair' must be 'continuous' or 'static'"),
        ({"max_num_seqs": 0}, "max_num_seqs=0 must be an integer of at least 1"),
        ({"max_num_batched_tokens": 1.5}, "max_num_batched_tokens=1.5 must be an integer of at least 1"),
        ({"block_size": 0}, "block_size=0 must be an integer of at least 1"),
        ({"block_size": 2.5}, "block_size=2.5 must be an integer of at least 1"),
        ({"num_blocks": 0}, "num_blocks=0 must be an integer of at least 1"),
        ({"num_blocks": -3}, "num_blocks=-3 must be an integer of at least 1"),
    ],
)
def test_a_lab_that_cannot_work_is_not_opened(options, message):
    with pytest.raises(InvalidParameter, match=message):
        llmlab.open("mock", background=False, **options)


@pytest.mark.parametrize(
    ("prompt_", "options", "message"),
    [
        ("hi", {"max_token": 3}, "unknown sampling parameter 'max_token'; did you mean max_tokens"),
        ([1, 2], {"system": "be kind"}, "system= needs a text prompt or messages"),
        ("hi", {"system": "be kind", "raw": True}, "system= needs a chat template"),
        ([{"role": "user"}], {}, "must be a dict with 'role' and 'content'"),
        ("hi", {"temperature": -1}, "temperature"),
    ],
)
def test_a_question_that_cannot_be_asked_is_refused(prompt_, options, message):
    with llmlab.open("mock", background=False) as lab:
        with pytest.raises(InvalidParameter, match=message):
            lab.submit(prompt_, **options)
        assert lab.ask("hi", max_tokens=2).finished


def test_true_is_not_a_number_of_slots():
    with pytest.raises(InvalidParameter, match="max_num_seqs=True"):
        SchedulerConfig(max_num_seqs=True)


def test_a_large_max_tokens_reserves_nothing():
    """Blocks are taken as tokens come, so what could be generated keeps nobody out."""
    engine = mock_engine(num_blocks=64, block_size=4)
    runs = [engine.submit(prompt(8, i), greedy(200)) for i in range(4)]
    engine.step()
    assert len(engine.scheduler.running) == 4
    assert engine.pool.num_used <= 4 * 3
    for run in runs:
        run.abort()
    engine.run_until_idle()
    assert_all_returned(engine)
