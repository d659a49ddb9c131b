"""Seeded samples: drawn from the plain model's distribution, and the same alone, batched, reordered or preempted.

A draw falls on another token when rounding moves the edge of its interval across the random number. For the seeds
here every draw is shown to survive noise on the logits larger than what batching does to them, so equality is exact;
a processor whose rounding is much coarser would need other seeds.
"""

from __future__ import annotations

import pytest
import torch

from llmlab.engine.distribution import draw, probabilities
from llmlab.engine.params import SamplingParams
from llmlab.engine.uniform import uniform

pytestmark = pytest.mark.model

MAX_TOKENS = 10
NOISE, NOISY_DRAWS = 2e-4, 6
RULES = (
    {"temperature": 0.7},
    {"temperature": 1.0, "top_p": 0.9},
    {"temperature": 1.0, "top_k": 20},
    {"temperature": 1.3, "min_p": 0.05},
    {"temperature": 0.9, "top_k": 100, "top_p": 0.95},
    {"temperature": 1.0},
    {"temperature": 0.5, "top_p": 0.8},
    {"temperature": 1.1, "top_k": 5},
)
SEEDS = (1, 2, 1, 2, 1, 4, 1, 2)


@pytest.fixture(scope="module")
def jobs(short_cases) -> list[tuple[list[int], dict]]:
    """Eight prompts, each with its own rules and seed."""
    return [
        (case.ids, {**rules, "seed": seed, "max_tokens": MAX_TOKENS, "ignore_eos": True})
        for case, rules, seed in zip(short_cases, RULES, SEEDS, strict=True)
    ]


def test_samples_are_those_of_the_plain_distribution_alone_batched_and_reordered(plain, open_lab, jobs):
    lab = open_lab(num_blocks=64)
    alone = [lab.submit(ids, **params).wait().token_ids for ids, params in jobs]
    for (ids, params), tokens in zip(jobs, alone, strict=True):
        assert_drawn_from_plain(plain, ids, tokens, sample=0, **params)
    assert _all_at_once(lab, jobs) == alone
    assert _all_at_once(lab, jobs[::-1]) == alone[::-1]
    assert lab.trace.steps["num_rows"].max() == 8
    small = open_lab(block_size=4, num_blocks=22)
    assert _all_at_once(small, jobs) == alone
    assert (small.trace.schedule["action"] == "preempted").any()


def test_unseeded_neighbours_do_not_disturb_a_seed(open_lab, jobs):
    lab = open_lab(num_blocks=64)
    ids, params = jobs[0]
    alone = lab.submit(ids, **params).wait().token_ids
    neighbours = [lab.submit(other, temperature=1.0, max_tokens=MAX_TOKENS) for other, _ in jobs[1:4]]
    assert lab.submit(ids, **params).wait().token_ids == alone
    assert len({run.wait().id for run in neighbours}) == 3


def test_samples_of_a_group_share_the_prompt_until_they_write(open_lab, cases):
    ids, lab = cases["en-kitchen"].ids, open_lab(num_blocks=64)
    assert len(ids) == 45, "two full blocks and one with room for what is written here"
    lab.submit(ids, n=4, seed=1, temperature=1.0, max_tokens=3).wait()
    actions = lab.trace.blocks["action"].value_counts()
    assert (actions["allocate"], actions["share"], actions["copy"]) == (3, 3 * 3, 3)
    assert lab.trace.steps["used"].max() == 2 + 4, "two blocks in common, one each of their own"


def test_samples_of_a_group_equal_separate_draws(plain, open_lab, cases):
    case, lab = cases["en-kitchen"], open_lab(num_blocks=64)
    params = {"seed": 2, "temperature": 1.0, "top_k": 40, "max_tokens": MAX_TOKENS, "ignore_eos": True}
    group = lab.submit(case.ids, n=4, **params).wait()
    for sample, output in enumerate(group.outputs):
        assert_drawn_from_plain(plain, case.ids, output.token_ids, sample=sample, **params)
    samples = [output.token_ids for output in group.outputs]
    assert len(set(map(tuple, samples))) == 4
    assert lab.submit(case.ids, **params).wait().token_ids == samples[0]
    small = open_lab(num_blocks=7).submit(case.ids, n=4, **params).wait()
    assert [output.token_ids for output in small.outputs] == samples
    assert small.usage["preemptions"] > 0


def test_greedy_group_repeats_one_answer(open_lab, cases, greedy):
    case = cases["en-ferry"]
    (run,) = greedy(open_lab(block_size=4, num_blocks=64), [case], n=4)
    assert [output.token_ids for output in run.outputs] == [case.answer] * 4


def assert_drawn_from_plain(plain, ids, tokens, sample: int, seed: int, max_tokens: int, **rules) -> None:
    """Each token is what the seed draws from the plain model's distribution there, with room for rounding."""
    params = SamplingParams(**rules)
    noise = torch.Generator().manual_seed(0)
    assert len(tokens) == max_tokens
    rows = plain.logits([*ids, *tokens])[len(ids) - 1 : -1]
    for position, (token, row) in enumerate(zip(tokens, rows, strict=True), start=len(ids)):
        u = uniform(seed, sample, position)
        assert draw(probabilities(row, params), u) == token, f"position {position}"
        for _ in range(NOISY_DRAWS):
            noisy = row + NOISE * (2 * torch.rand(row.shape, generator=noise) - 1)
            assert draw(probabilities(noisy, params), u) == token, f"position {position}: choose another seed"


def _all_at_once(lab, jobs) -> list[list[int]]:
    runs = [lab.submit(ids, **params) for ids, params in jobs]
    return [run.wait().token_ids for run in runs]
