"""The oracles on a CUDA device: gathered blocks in float32, the variable-length kernel in bfloat16."""

from __future__ import annotations

import pytest
import torch

from llmlab.engine.model_runner import ModelRunner

pytestmark = [
    pytest.mark.model,
    pytest.mark.cuda,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


@pytest.mark.parametrize(("block_size", "prefix_cache"), [(1, "hash"), (16, "hash"), (32, "off")])
def test_cuda_eight_at_once_equal_generate(open_lab, cases, greedy, block_size, prefix_cache):
    lab = open_lab(device="cuda", block_size=block_size, num_blocks=4096 // block_size, prefix_cache=prefix_cache)
    runs = greedy(lab, cases.values())
    assert [run.token_ids for run in runs] == [case.answer for case in cases.values()]
    assert lab.trace.check() == []


def test_cuda_preempted_equal_generate(open_lab, short_cases, greedy):
    lab = open_lab(device="cuda", block_size=4, num_blocks=24)
    runs = greedy(lab, short_cases)
    assert [run.token_ids for run in runs] == [case.answer for case in short_cases]
    assert sum(run.usage["preemptions"] for run in runs) > 0


def test_cuda_seeded_tokens_do_not_depend_on_neighbours(open_lab, short_cases):
    lab = open_lab(device="cuda", prefix_cache="off")
    alone = [lab.ask(case.ids, max_tokens=12, temperature=0.8, seed=7).token_ids for case in short_cases]
    runs = [lab.submit(case.ids, max_tokens=12, temperature=0.8, seed=7) for case in short_cases]
    assert [run.wait().token_ids for run in runs] == alone


def test_cuda_bfloat16_kernel_agrees_with_gathered_blocks(open_lab, short_cases):
    lab = open_lab(device="cuda", dtype="bfloat16")
    runner = lab.engine.runner
    assert isinstance(runner, ModelRunner)
    first = [lab.ask(case.ids, max_tokens=1, prompt_logprobs=0, logprobs=0) for case in short_cases[1:]]
    runner.use_varlen = False
    second = [lab.ask(case.ids, max_tokens=1, prompt_logprobs=0, logprobs=0) for case in short_cases[1:]]
    for one, other in zip(first, second, strict=True):
        values = [torch.tensor([logprob for logprob, _ in run.prompt_logprobs]) for run in (one, other)]
        assert torch.allclose(*values, atol=0.25), "log-probabilities of the prompt differ by more than rounding"
