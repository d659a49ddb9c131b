"""Lab 15: the right answers pass, the stubs and the usual wrong answers get the message meant for them."""

from __future__ import annotations

from math import ceil

import pandas as pd
import pytest

import llmlab
from llmlab.checks import check
from llmlab.checks.lab15 import HIT_CASES, cost, hit_tokens


@pytest.fixture
def hits():
    """As in the lab: 513 tokens, 256 of them in blocks before the change."""
    rows = {"num_prompt_tokens": {"same": 511, "middle": 513}, "num_cached_tokens": {"same": 496, "middle": 256}}
    return pd.DataFrame(rows)


def test_the_right_answers_pass(hits):
    assert check.lab15.q1(257, hits)
    assert check.lab15.q2(hit_tokens)
    assert check.lab15.q3(cost)


def test_the_stubs_do_not_pass(hits):
    assert "replace the ..." in repr(check.lab15.q1(..., hits))
    assert "replace the ..." in repr(check.lab15.q2(lambda changed, num_tokens, block_size: ...))
    assert "replace the ..." in repr(check.lab15.q3(lambda prompt_tokens, cached_tokens, completion_tokens: ...))


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (256, "came from the cache"),
        (513, "the whole prompt"),
        (1, "behind another text"),
        (16, "a number of blocks"),
        (300, "too large"),
    ],
)
def test_computed_tokens_wrongly_counted(hits, wrong, said):
    assert said in repr(check.lab15.q1(wrong, hits))


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (lambda changed, num, size: changed, "only whole blocks"),
        (lambda changed, num, size: changed // size, "multiply by the tokens"),
        (lambda changed, num, size: ceil(changed / size) * size, "with the change in it"),
        (lambda changed, num, size: (num - changed) // size * size, "behind the change"),
        (lambda changed, num, size: 0, "still hit"),
        (lambda changed, num, size: changed // size * size, "the last token is always computed"),
    ],
)
def test_hits_wrongly_computed(wrong, said):
    assert said in repr(check.lab15.q2(wrong))


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (lambda prompt, cached, output: 100 * prompt + 10 * cached + 500 * output, "billed twice"),
        (lambda prompt, cached, output: 100 * prompt + 500 * output, "cost less"),
        (lambda prompt, cached, output: 100 * (prompt - cached) + 500 * output, "not free"),
        (lambda prompt, cached, output: 100 * (prompt - cached + output) + 10 * cached, "500 each"),
    ],
)
def test_bills_wrongly_written(wrong, said):
    assert said in repr(check.lab15.q3(wrong))


@pytest.mark.parametrize(("changed", "tokens", "size"), HIT_CASES)
def test_the_engine_hits_what_the_check_calls_right(changed, tokens, size):
    with llmlab.open("mock", background=False, block_size=size, num_blocks=128) as lab:
        prompt = [i % 200 for i in range(tokens)]
        lab.ask(prompt, max_tokens=1)
        other = [*prompt[:changed], *[250] * (changed < tokens), *prompt[changed + 1 :]]
        assert lab.ask(other, max_tokens=1).usage["cached_tokens"] == hit_tokens(changed, tokens, size)
