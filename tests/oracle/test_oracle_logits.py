"""Logits from scattered blocks against one plain forward pass, and the log-probabilities that a run reports."""

from __future__ import annotations

import pytest
import torch

from llmlab.engine.build import build_runner
from llmlab.engine.params import SamplingParams
from llmlab.engine.plan import ScheduledRow, StepPlan
from llmlab.engine.request import Request
from llmlab.models import DEFAULT_MODEL, load

pytestmark = pytest.mark.model

TOLERANCE = 4e-4
"""Natural-log units, about three times the largest difference seen. Logits of this model reach 40."""
NAMES = ("en-word", "zh-rain", "emoji-diary", "en-lighthouse")
WHOLE = (10**4, 10**4)
CHUNKS = {
    "whole": (WHOLE,) * 4,
    "chunked": (WHOLE, (7, 7), (16, 16), (100, 50)),
    "decoded": (WHOLE, (1, 1), (150, 1), (210, 1)),
}
"""Tokens in the first and in each later piece, for each of the prompts of ``NAMES``."""


@pytest.fixture(scope="module")
def reference(plain, cases) -> dict[str, torch.Tensor]:
    return {name: plain.logits(cases[name].ids) for name in NAMES}


@pytest.fixture(scope="module", params=[True, False], ids=["optimized", "untouched"])
def runner(request, one_thread):
    return build_runner(load(DEFAULT_MODEL, device="cpu"), num_blocks=64, optimize=request.param)


@pytest.mark.parametrize("chunks", CHUNKS.values(), ids=CHUNKS)
def test_batch_in_scattered_blocks_gives_plain_logits(runner, cases, reference, chunks):
    _fill_with_leftovers(runner)
    paged = paged_logits(runner, [cases[name].ids for name in NAMES], chunks)
    for name, logits in zip(NAMES, paged, strict=True):
        torch.testing.assert_close(logits, reference[name], atol=TOLERANCE, rtol=0)


@pytest.mark.parametrize("name", NAMES)
def test_prompt_alone_in_scattered_blocks_gives_plain_logits(runner, cases, reference, name):
    _fill_with_leftovers(runner)
    (logits,) = paged_logits(runner, [cases[name].ids], [WHOLE])
    torch.testing.assert_close(logits, reference[name], atol=TOLERANCE, rtol=0)


def test_bfloat16_errs_no_more_than_transformers_in_bfloat16(cases, reference):
    theirs = load(DEFAULT_MODEL, device="cpu", dtype="bfloat16").model
    runner = build_runner(load(DEFAULT_MODEL, device="cpu", dtype="bfloat16"), num_blocks=64)
    ours = paged_logits(runner, [cases[name].ids for name in NAMES], CHUNKS["decoded"])
    for name, logits in zip(NAMES, ours, strict=True):
        with torch.inference_mode():
            plain = theirs(input_ids=torch.tensor([cases[name].ids]), use_cache=False).logits[0].float()
        allowed = (plain - reference[name]).abs()
        error = (logits - reference[name]).abs()
        assert error.mean() < 1.5 * allowed.mean(), name
        assert error.max() < 3 * allowed.max(), name


@pytest.mark.parametrize("budget", [512, 11])
def test_prompt_logprobs_are_the_log_softmax_of_plain_logits(plain, open_lab, cases, budget):
    case, lab = cases["zh-rain"], open_lab(num_blocks=32, max_num_batched_tokens=budget)
    lab.submit(case.ids, max_tokens=1).wait()
    run = lab.submit(case.ids, max_tokens=2, prompt_logprobs=3).wait()
    assert run.usage["cached_tokens"] == 0, "every position had to be computed"
    logprobs = torch.log_softmax(plain.logits(case.ids), -1)[:-1]
    _assert_reported(run.prompt_logprobs, logprobs, case.ids[1:], k=3)
    again = lab.submit(case.ids, max_tokens=2).wait()
    assert again.usage["cached_tokens"] == 48, "what it computed is there for others"
    assert again.token_ids == run.token_ids == case.answer[:2]


def test_output_logprobs_are_the_log_softmax_of_plain_logits(plain, open_lab, cases):
    case, lab = cases["code-sum"], open_lab(num_blocks=32)
    run = lab.submit(case.ids, max_tokens=12, logprobs=5, temperature=1.5, top_k=50, seed=3).wait()
    logprobs = torch.log_softmax(plain.logits([*case.ids, *run.token_ids]), -1)[len(case.ids) - 1 : -1]
    output = run.outputs[0]
    reported = list(zip(output.logprobs, output.top_logprobs, strict=True))
    _assert_reported(reported, logprobs, run.token_ids, k=5)
    assert run.token_ids != case.answer, "it was sampled, and still reports the model's own distribution"


def paged_logits(runner, prompts: list[list[int]], chunks) -> list[torch.Tensor]:
    """Logits of every position of each prompt, all prompts in one batch, prompt ``i`` in the pieces ``chunks[i]``."""
    requests, first = [], 0
    for i, ids in enumerate(prompts):
        request = Request(str(i), ids, SamplingParams(), seed=0, max_tokens=1)
        last = first + -(-len(ids) // runner.pool.block_size)
        request.block_table, first = list(reversed(range(first, last))), last
        requests.append(request)
    logits: list[list[torch.Tensor]] = [[] for _ in prompts]
    while rows := [row for row in map(_next_row, requests, chunks) if row]:
        packed = runner.forward(runner.build(StepPlan(0, rows)))
        for row, part in zip(rows, packed.split([row.num_logits for row in rows]), strict=True):
            logits[int(row.request.id)].append(part.float())
            row.request.num_computed = row.end
    return [torch.cat(parts) for parts in logits]


def _next_row(request: Request, chunks: tuple[int, int]) -> ScheduledRow | None:
    n = min(chunks[request.num_computed > 0], request.num_remaining)
    return ScheduledRow(request, request.num_computed, n, 0, n > 1, False, num_logits=n) if n else None


def _fill_with_leftovers(runner) -> None:
    """What earlier requests leave in a pool must never be read: large values would show."""
    for tensor in (*runner.pool.keys, *runner.pool.values):
        tensor.fill_(1e4)


def _assert_reported(reported, logprobs: torch.Tensor, token_ids: list[int], k: int) -> None:
    """``reported`` pairs of log-probability and top list against rows of ``logprobs``."""
    assert len(reported) == len(token_ids)
    values = torch.tensor([value for value, _ in reported])
    torch.testing.assert_close(values, logprobs[range(len(token_ids)), token_ids], atol=TOLERANCE, rtol=0)
    for (_, top), row in zip(reported, logprobs, strict=True):
        ids, tops = (list(column) for column in zip(*top, strict=True))
        # by value, not by id: two places may be within rounding of each other
        torch.testing.assert_close(torch.tensor(tops), row.topk(k).values, atol=TOLERANCE, rtol=0)
        torch.testing.assert_close(row[ids], torch.tensor(tops), atol=TOLERANCE, rtol=0)
