"""The figures of K/V tiers and prefix indexes on the model without weights: everything but its times is a fact."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from llmlab.bench.tiers import BLOCK, YOUNG_PROMPT, TierFigures, measure_tiers, tier_object, tier_tables


@pytest.fixture(scope="module")
def figures() -> TierFigures:
    return measure_tiers(1, model="mock")


def test_both_ways_bring_back_the_same_tokens(figures):
    resumed = figures.resumed
    assert resumed.num_tokens > YOUNG_PROMPT
    assert resumed.nbytes == -(-(resumed.num_tokens - 1) // BLOCK) * BLOCK * 8  # 8 bytes a token of the mock model
    assert len(resumed.recompute_ms) == len(resumed.swap_ms) == len(resumed.copy_ms) == 1
    assert all(0 < copied < whole for copied, whole in zip(resumed.copy_ms, resumed.swap_ms, strict=True))


def test_agents_that_part_inside_blocks_compute_less_with_a_tree(figures):
    hashed, tree = figures.hits["hash"], figures.hits["radix"]
    assert hashed.num_prompt == tree.num_prompt
    assert (hashed.num_copies, tree.num_copies > 10) == (0, True)
    assert tree.num_cached > hashed.num_cached


def test_the_report_has_both_tables(figures):
    console = Console(file=io.StringIO(), width=120)
    for table in tier_tables(figures):
        console.print(table)
    text = console.file.getvalue()
    assert f"{figures.hits['radix'].num_cached:,}" in text
    assert f"{figures.resumed.num_tokens} tokens" in text
    assert set(tier_object(figures)["hits"]) == {"hash", "radix"}
