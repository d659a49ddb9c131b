"""Lab 00: the right answers pass, the stubs and the usual wrong answers get the message meant for them."""

from __future__ import annotations

from math import ceil

import pytest

import llmlab
from llmlab.checks import check
from llmlab.checks.lab00 import HIT_CASES, cached_tokens


@pytest.fixture(scope="module")
def trace():
    """A request of 40 prompt tokens that ends before its limit of 30 output tokens on the model without weights."""
    with llmlab.open("mock", background=False, num_blocks=20) as lab:
        return lab.ask([*range(40, 80)], max_tokens=30, min_tokens=12, stop_token_ids=[*range(256)]).trace


@pytest.fixture(scope="module")
def sizes(trace):
    """Prompt tokens, output tokens."""
    request = trace.requests.iloc[-1]
    return int(request.num_prompt_tokens), int(request.num_output_tokens)


def test_the_right_answers_pass(trace, sizes):
    prompt, output = sizes
    assert check.lab00.q1(output, trace)
    assert check.lab00.q2(ceil((prompt + output - 1) / 16), trace)
    assert check.lab00.q3(cached_tokens)


def test_the_stubs_do_not_pass(trace):
    stub = lambda num_prompt_tokens, block_size: ...  # noqa: E731
    assert "replace the ..." in repr(check.lab00.q1(..., trace))
    assert "replace the ..." in repr(check.lab00.q2(..., trace))
    assert "replace the ..." in repr(check.lab00.q3(stub))


def test_steps_wrongly_counted(trace, sizes):
    prompt, output = sizes
    assert "the prefill is not a step more" in repr(check.lab00.q1(output + 1, trace))
    assert "the prefill is a step too" in repr(check.lab00.q1(output - 1, trace))
    assert "a step per position" in repr(check.lab00.q1(prompt + output, trace))
    assert "all of them at once" in repr(check.lab00.q1(prompt, trace))
    assert "a limit" in repr(check.lab00.q1(30, trace))


def test_blocks_wrongly_counted(trace, sizes):
    prompt, output = sizes
    assert "only partly filled" in repr(check.lab00.q2((prompt + output - 1) // 16, trace))
    assert "a block per token" in repr(check.lab00.q2(prompt + output, trace))
    assert "the whole pool" in repr(check.lab00.q2(20, trace))


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (lambda n, size: n // size * size, "still computes its last token"),
        (lambda n, size: n, "only full blocks are shared, and never the last token"),
        (lambda n, size: (n - 1) // size, "multiply by the tokens of one"),
        (lambda n, size: ceil(n / size) * size, "only partly filled is not shared"),
    ],
)
def test_hits_wrongly_computed(wrong, said):
    assert said in repr(check.lab00.q3(wrong))


@pytest.mark.parametrize(("tokens", "size"), HIT_CASES)
def test_the_engine_hits_what_the_check_calls_right(tokens, size):
    with llmlab.open("mock", background=False, block_size=size, num_blocks=64) as lab:
        prompt = [*range(40, 40 + tokens)]
        first, second = (lab.ask(prompt, max_tokens=1) for _ in range(2))
        assert first.usage["cached_tokens"] == 0
        assert second.usage["cached_tokens"] == cached_tokens(tokens, size)
