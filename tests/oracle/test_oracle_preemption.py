"""Preempted requests against undisturbed ones, on pools too small for everybody."""

from __future__ import annotations

import pytest
import torch

pytestmark = pytest.mark.model


@pytest.mark.parametrize(
    ("block_size", "num_blocks", "prefix_cache"), [(16, 7, "hash"), (4, 22, "off"), (1, 84, "hash")]
)
def test_tiny_pool_changes_no_token(open_lab, short_cases, block_size, num_blocks, prefix_cache):
    lab = open_lab(block_size=block_size, num_blocks=num_blocks, prefix_cache=prefix_cache)
    runs = [lab.submit(case.ids, max_tokens=len(case.answer)) for case in short_cases]
    streamed = [[token for delta in run.deltas() for token in delta.token_ids] for run in runs]
    assert streamed == [case.answer for case in short_cases]
    assert sum(run.usage["preemptions"] for run in runs) > 1
    assert sum(run.usage["recomputed_tokens"] for run in runs) > 0
    assert _positions(lab.trace) == {
        run.id: list(range(len(case.ids), len(case.ids) + len(case.answer)))
        for run, case in zip(runs, short_cases, strict=True)
    }
    assert lab.trace.check() == []


@pytest.mark.parametrize("prefix_cache", ["off", "radix"])
def test_blocks_swapped_out_and_in_again_change_no_token(open_lab, short_cases, prefix_cache):
    lab = open_lab(num_blocks=7, prefix_cache=prefix_cache, host_blocks=32, swap="always")
    runs = [lab.submit(case.ids, max_tokens=len(case.answer)) for case in short_cases]
    lab.engine.run_until_idle()
    assert [run.token_ids for run in runs] == [case.answer for case in short_cases]
    assert sum(run.usage["preemptions"] for run in runs) > 1
    assert sum(run.usage["recomputed_tokens"] for run in runs) == 0
    transfers = lab.trace.transfers
    assert set(transfers["action"]) == {"swap_out", "swap_in"}
    block_bytes = 16 * lab.trace.info.kv_bytes_per_token
    assert (transfers["nbytes"] == transfers["blocks"].map(len) * block_bytes).all()
    assert lab.trace.check() == []


def test_preempted_during_chunked_prefill_with_prompt_logprobs(plain, open_lab, cases):
    old, young = cases["en-ferry"], cases["en-kitchen"]
    lab = open_lab(block_size=4, num_blocks=17, max_num_batched_tokens=6)
    first = lab.submit(old.ids, max_tokens=len(old.answer))
    while not first.token_ids:
        lab.engine.step()
    second = lab.submit(young.ids, max_tokens=len(young.answer), prompt_logprobs=0)
    lab.engine.run_until_idle()
    assert first.token_ids == old.answer
    assert second.token_ids == young.answer
    assert second.usage["preemptions"] > 0
    assert _first_token_step(second) > _first_preemption_step(second), "it was preempted in its prefill"
    logprobs = torch.log_softmax(plain.logits(young.ids), -1)
    expected = logprobs[range(len(young.ids) - 1), young.ids[1:]]
    torch.testing.assert_close(
        torch.tensor([logprob for logprob, _ in second.prompt_logprobs]), expected, atol=4e-4, rtol=0
    )


def _positions(trace) -> dict[str, list[int]]:
    """Places of the tokens each request chose, in the order in which it chose them."""
    chosen = trace.tokens.query("source == 'target'")
    return {request_id: list(rows["position"]) for request_id, rows in chosen.groupby("request_id")}


def _first_preemption_step(run) -> int:
    return run.trace.schedule.query("action == 'preempted' and request_id == @run.id")["step"].min()


def _first_token_step(run) -> int:
    return run.trace.tokens.query("source == 'target' and request_id == @run.id")["step"].min()
