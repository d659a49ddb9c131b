"""Lab 08: the right answers pass, the stubs and the usual wrong answers get the message meant for them."""

from __future__ import annotations

from math import ceil

import pytest

import llmlab
from llmlab.checks import check
from llmlab.checks.lab08 import FIT_CASES, kv_bytes, passes_without_cache, requests_that_fit


def test_the_right_answers_pass():
    assert check.lab08.q1(kv_bytes)
    assert check.lab08.q2(passes_without_cache)
    assert check.lab08.q3(requests_that_fit)


def test_the_stubs_do_not_pass():
    stub = lambda *sizes: ...  # noqa: E731
    for question in (check.lab08.q1, check.lab08.q2, check.lab08.q3):
        assert "replace the ..." in repr(question(stub))
        assert "give the function itself" in repr(question(...))


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (lambda n, q, kv, dim, tokens, size: 2 * n * q * dim * tokens * size, "those are the query heads"),
        (lambda n, q, kv, dim, tokens, size: n * kv * dim * tokens * size, "a key and a value"),
        (lambda n, q, kv, dim, tokens, size: 2 * kv * dim * tokens * size, "that is one layer"),
        (lambda n, q, kv, dim, tokens, size: 2 * n * kv * dim * tokens, "multiply by the bytes"),
        (lambda n, q, kv, dim, tokens, size: 2 * n * kv * dim * size, "that is one token"),
    ],
)
def test_bytes_wrongly_computed(wrong, said):
    assert said in repr(check.lab08.q1(wrong))


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (lambda p, n: p + n - 1, "with a cache"),
        (lambda p, n: n * (p + n), "it grows by one a step"),
        (lambda p, n: n * (p + n - 1), "every step as long as the last one"),
        (lambda p, n: n * p, "the answer's own tokens"),
        (lambda p, n: n * p + n * (n + 1) // 2, "one too many a step"),
    ],
)
def test_passes_wrongly_counted(wrong, said):
    assert said in repr(check.lab08.q2(wrong))


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (lambda blocks, size, p, n: blocks * size // (p + n - 1), "blocks are not divided"),
        (lambda blocks, size, p, n: blocks // ceil((p + n) / size), "has no keys and values"),
        (lambda blocks, size, p, n: blocks // ceil(p / size), "the answer needs blocks too"),
        (lambda blocks, size, p, n: blocks // (p + n - 1), "a block per token"),
    ],
)
def test_requests_wrongly_fitted(wrong, said):
    assert said in repr(check.lab08.q3(wrong))


@pytest.mark.parametrize(("blocks", "size", "prompt", "output"), FIT_CASES)
def test_the_engine_runs_as_many_to_their_end_as_the_check_says(blocks, size, prompt, output):
    fit = requests_that_fit(blocks, size, prompt, output)
    if not fit:
        return
    options = {"num_blocks": blocks, "block_size": size, "max_num_seqs": 64, "max_num_batched_tokens": 4096}
    with llmlab.open("mock", background=False, prefix_cache="off", **options) as lab:
        runs = [lab.submit([40 + i] * prompt, max_tokens=output, ignore_eos=True) for i in range(fit)]
        for run in runs:
            run.wait()
        assert lab.trace.requests.num_preemptions.sum() == 0
        assert lab.trace.steps.running.max() == fit


@pytest.mark.parametrize(("prompt", "output"), [(5, 4), (12, 9)])
def test_starting_over_computes_what_the_check_says(prompt, output):
    with llmlab.open("mock", background=False, prefix_cache="off") as lab:
        tokens = [*range(40, 40 + prompt)]
        for _ in range(output):
            tokens += lab.ask(tokens, max_tokens=1, ignore_eos=True).token_ids
        assert lab.trace.steps.num_tokens.sum() == passes_without_cache(prompt, output)
