"""A second oracle: transformers' own continuous batching, with pages, chunks and a prefix cache of its own."""

from __future__ import annotations

import pytest
from transformers import ContinuousBatchingConfig, GenerationConfig

pytestmark = pytest.mark.model

NAMES = ("en-ferry", "en-kitchen", "zh-tea", "code-review", "emoji-diary")


def test_greedy_equals_continuous_batching_of_transformers(plain, open_lab, cases, greedy):
    chosen = [cases[name] for name in NAMES]
    runs = greedy(open_lab(num_blocks=64), chosen)
    theirs = _generate_batch(plain, [case.ids for case in chosen], max_tokens=len(chosen[0].answer))
    assert [run.token_ids for run in runs] == theirs


def _generate_batch(plain, prompts: list[list[int]], max_tokens: int) -> list[list[int]]:
    eos = plain.tokenizer.eos_token_id
    outputs = plain.model.generate_batch(
        prompts,
        generation_config=GenerationConfig(
            do_sample=False, max_new_tokens=max_tokens, eos_token_id=eos, pad_token_id=eos
        ),
        # without num_blocks the cache would take most of the machine's memory
        continuous_batching_config=ContinuousBatchingConfig(page_size=16, num_blocks=64, max_batch_tokens=128),
    )
    by_prompt = {tuple(output.prompt_ids): output.generated_tokens for output in outputs.values()}
    return [by_prompt[tuple(prompt)] for prompt in prompts]
