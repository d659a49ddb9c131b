"""Lab 09: the right answers pass, the stubs and the usual wrong answers get the message meant for them."""

from __future__ import annotations

from math import ceil

import pytest

import llmlab
from llmlab.checks import check
from llmlab.checks.lab09 import HIT_CASES, SAMPLES_CASES, hit_tokens, sampled_blocks, slots_left


def test_the_right_answers_pass():
    assert check.lab09.q1(hit_tokens)
    assert check.lab09.q2(sampled_blocks)
    assert check.lab09.q3(slots_left)


def test_the_stubs_do_not_pass():
    stub = lambda *sizes: ...  # noqa: E731
    for question in (check.lab09.q1, check.lab09.q2, check.lab09.q3):
        assert "replace the ..." in repr(question(stub))
        assert "give the function itself" in repr(question(...))


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (lambda common, prompt, size: common // size * size, "its last token is computed all the same"),
        (lambda common, prompt, size: common, "only full blocks are shared, and never the last token"),
        (lambda common, prompt, size: min(common, prompt - 1), "leaving out the last token is right"),
        (lambda common, prompt, size: min(common, prompt - 1) // size, "multiply by the tokens of one"),
        (lambda common, prompt, size: (prompt - 1) // size * size, "what both have in common"),
        (lambda common, prompt, size: ceil(common / size) * size, "is another one"),
    ],
)
def test_hits_wrongly_predicted(wrong, said):
    assert said in repr(check.lab09.q1(wrong))


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (lambda p, n, samples, size: samples * ceil((p + n - 1) / size), "that is without sharing"),
        (lambda p, n, samples, size: ceil((p + n - 1) / size), "that is one sample"),
        (lambda p, n, samples, size: ceil(p / size) + samples * ceil((n - 1) / size), "does not begin in a new block"),
        (
            lambda p, n, samples, size: ceil(p / size) + samples * (ceil((p + n - 1) / size) - ceil(p / size)),
            "each sample writes into it",
        ),
    ],
)
def test_blocks_of_samples_wrongly_counted(wrong, said):
    assert said in repr(check.lab09.q2(wrong))


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (lambda n, longest, size: longest - n, "not free for others either"),
        (lambda n, longest, size: longest - n // size * size, "its last block is held"),
        (lambda n, longest, size: -n % size, "what paging wastes"),
        (lambda n, longest, size: longest, "hold the blocks of its own tokens"),
    ],
)
def test_slots_wrongly_counted(wrong, said):
    assert said in repr(check.lab09.q3(wrong))


@pytest.mark.parametrize(("common", "length", "size"), HIT_CASES)
def test_the_engine_hits_what_the_check_says(common, length, size):
    with llmlab.open("mock", background=False, block_size=size, num_blocks=256) as lab:
        known = [40 + i % 90 for i in range(common)]
        lab.ask(known, max_tokens=1)
        again = lab.ask(known + [200] * (length - common), max_tokens=1)
        assert again.usage["cached_tokens"] == hit_tokens(common, length, size)


@pytest.mark.parametrize(("prompt", "output", "samples", "size"), SAMPLES_CASES)
def test_samples_hold_what_the_check_says(prompt, output, samples, size):
    options = {"temperature": 1.0, "seed": 3, "ignore_eos": True}
    with llmlab.open("mock", background=False, block_size=size, num_blocks=256) as lab:
        lab.ask([40 + i % 90 for i in range(prompt)], max_tokens=output, n=samples, **options)
        assert lab.trace.steps.used.max() == sampled_blocks(prompt, output, samples, size)
