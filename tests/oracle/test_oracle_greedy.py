"""Greedy tokens of the engine against transformers ``generate``, alone and in company."""

from __future__ import annotations

import pytest

pytestmark = pytest.mark.model


def test_prompts_cover_lengths_and_categories(cases):
    assert len(cases) == 20
    assert {case.category for case in cases.values()} == {"en", "zh", "code", "emoji"}
    lengths = [len(case.ids) for case in cases.values()]
    assert (min(lengths), max(lengths)) == (1, 900)
    assert {16, 48, 512} <= set(lengths), "some prompts fill their last block exactly"


def test_each_prompt_alone_equals_generate(open_lab, cases, greedy):
    lab = open_lab(num_blocks=128)
    for case in cases.values():
        (run,) = greedy(lab, [case])
        assert run.token_ids == case.answer, case.name
    assert lab.trace.steps["num_rows"].max() == 1
    assert lab.trace.check() == []


@pytest.mark.parametrize(("block_size", "prefix_cache"), [(1, "hash"), (4, "off"), (16, "hash"), (32, "off")])
def test_eight_at_once_equal_generate(open_lab, cases, greedy, block_size, prefix_cache):
    lab = open_lab(block_size=block_size, num_blocks=4096 // block_size, prefix_cache=prefix_cache)
    runs = greedy(lab, cases.values())
    assert {case: run.token_ids for case, run in zip(cases, runs, strict=True)} == {
        name: case.answer for name, case in cases.items()
    }
    full = lab.trace.steps.query("num_rows == 8")
    assert len(full.query("num_prefill_tokens > 0 and num_decode_tokens > 0")), "prefill and decode were mixed"
    assert any(run.usage["cached_tokens"] for run in runs) == (prefix_cache == "hash")
    assert lab.trace.check() == []


def test_only_eos_ends_an_answer_early(open_lab, cases, greedy):
    ends, goes_on = cases["en-capital"], cases["en-ferry"]
    lab = open_lab(num_blocks=16)
    first, second = greedy(lab, [ends, goes_on])
    assert (first.stop_reason, second.stop_reason) == ("eos", "length")
    assert first.token_ids[-1] == lab.tokenizer.eos_token_id == ends.answer[-1]
    assert len(ends.answer) < len(goes_on.answer)


def test_untouched_modules_equal_generate(open_lab, short_cases, greedy):
    lab = open_lab(num_blocks=64, optimize=False)
    runs = greedy(lab, short_cases)
    assert [run.token_ids for run in runs] == [case.answer for case in short_cases]
    assert lab.trace.steps["num_rows"].max() == 8


def test_requests_that_join_a_running_batch_equal_generate(open_lab, short_cases):
    lab, runs = open_lab(num_blocks=64), []
    for case in short_cases:
        runs.append(lab.submit(case.ids, max_tokens=len(case.answer)))
        lab.engine.step()
    lab.engine.run_until_idle()
    assert [run.token_ids for run in runs] == [case.answer for case in short_cases]
    assert lab.trace.steps["num_rows"].head(8).tolist() == list(range(1, 9))
