"""The real model in two processes against the same model in one: equal tokens, bytes by the formula."""

from __future__ import annotations

import sys

import pytest
from handing_over import answers

import llmlab

pytestmark = [
    pytest.mark.model,
    pytest.mark.skipif(sys.platform == "win32", reason="inherits a file descriptor"),
]

TOPICS = ("the tides", "a lighthouse", "rust", "a mill")
PROMPTS = [
    [{"role": "user", "content": f"Explain in simple words what causes {topic}, and why it matters."}]
    for topic in TOPICS
]
LONG = "List three facts about each of these: " + ", ".join(f"item {i} of the shelf" for i in range(40)) + "."
RULES = ({}, {"temperature": 0.8, "top_p": 0.95, "seed": 11})
OPTIONS = {"dtype": "float32", "num_blocks": 96, "max_num_batched_tokens": 96, "threads": 1, "background": False}


@pytest.fixture(scope="module")
def expected():
    """What one process answers, by rule."""
    with llmlab.open(**OPTIONS) as lab:
        return [answers(lab, [*PROMPTS, LONG], max_tokens=10, **rule) for rule in RULES]


@pytest.fixture(scope="module")
def lab(expected):
    """The same model, prompts computed in another process."""
    with llmlab.open(**OPTIONS, disaggregated=True) as lab:
        yield lab


@pytest.mark.parametrize("rule", [0, 1], ids=["greedy", "seeded"])
def test_tokens_equal_one_process(lab, expected, rule):
    assert answers(lab, [*PROMPTS, LONG], max_tokens=10, **RULES[rule]) == expected[rule]


def test_tokens_are_equal_on_prefix_hits_there(lab, expected):
    runs = [lab.submit(prompt, raw=prompt is LONG, max_tokens=10) for prompt in [*PROMPTS, LONG]]
    assert [[run.wait().token_ids] for run in runs] == expected[0]
    assert all(run.usage["cached_tokens"] > 0 for run in runs)
    assert lab.trace.check() == []


def test_bytes_are_two_heads_groups_layers_and_whole_blocks(lab):
    lab.ask(LONG, raw=True, max_tokens=1)
    info, sent = lab.trace.info, lab.trace.transfers.query("action == 'send'").iloc[-1].to_dict()
    assert info.kv_bytes_per_token == 2 * info.num_kv_heads * info.head_dim * info.num_layers * 4
    assert sent["nbytes"] == -(-sent["num_tokens"] // info.block_size) * info.block_size * info.kv_bytes_per_token
    assert info.split == "prefill and decode, K/V by shared memory"
