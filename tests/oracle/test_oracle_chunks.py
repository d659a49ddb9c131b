"""Chunked prefill against the whole prompt at once: the same tokens and the same block hashes for every chunk size."""

from __future__ import annotations

import pytest

from llmlab.engine.engine import Engine
from llmlab.engine.params import SamplingParams
from llmlab.engine.scheduler import SchedulerConfig

pytestmark = pytest.mark.model

MAX_TOKENS = 3


def test_every_chunk_size_gives_the_same_tokens_and_hashes(open_lab, cases):
    case, lab = cases["en-ferry"], open_lab(block_size=4, num_blocks=8)
    whole = _hashes(_generate(lab, case, len(case.ids)).trace)
    assert len(whole) == (len(case.ids) + MAX_TOKENS - 1) // 4
    for chunk in range(1, len(case.ids)):
        run = _generate(lab, case, chunk)
        assert run.token_ids == case.answer[:MAX_TOKENS], f"chunks of {chunk}"
        assert _hashes(run.trace) == whole, f"chunks of {chunk}"
        assert _prefill_lengths(run.trace) == _pieces(len(case.ids), chunk)


def test_long_prompt_in_chunks_that_cut_blocks_equals_generate(open_lab, cases, greedy):
    case, lab = cases["en-museum"], open_lab(num_blocks=64, max_num_batched_tokens=190)
    (run,) = greedy(lab, [case])
    assert run.token_ids == case.answer
    assert _prefill_lengths(run.trace) == [190, 190, 190, 190, 140]


@pytest.mark.parametrize("budget", [9, 31])
def test_chunks_that_share_their_budget_with_decodes_equal_generate(open_lab, short_cases, greedy, budget):
    lab = open_lab(block_size=4, num_blocks=128, max_num_batched_tokens=budget)
    runs = greedy(lab, short_cases)
    assert [run.token_ids for run in runs] == [case.answer for case in short_cases]
    assert lab.trace.steps["num_tokens"].max() == budget
    assert len(_prefill_lengths(runs[4].trace)) > 2, "the longest prompt came in several chunks"


def _generate(lab, case, chunk: int):
    """The answer by a new engine on the lab's runner, whose pool still holds what others left in it."""
    engine = Engine(lab.engine.runner, lab.tokenizer, config=SchedulerConfig(max_num_batched_tokens=chunk))
    run = engine.submit(case.ids, SamplingParams(max_tokens=MAX_TOKENS)).wait()
    engine.check_integrity()
    return run


def _hashes(trace) -> list[tuple[int, str]]:
    cached = trace.blocks.query("action == 'cache'")
    return list(zip(cached["index"], cached["hash"], strict=True))


def _prefill_lengths(trace) -> list[int]:
    """Prompt tokens per step of the one request that the trace is about."""
    rows = trace.schedule.query("action == 'ran' and is_prefill")
    return rows.loc[rows["request_id"] == trace.only[0], "num_tokens"].tolist()


def _pieces(length: int, chunk: int) -> list[int]:
    return [min(chunk, length - start) for start in range(0, length, chunk)]
