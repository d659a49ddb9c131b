"""What the views show of requests whose K/V waits in the host pool, and of parts of blocks that were copied."""

from __future__ import annotations

import pytest
from captured_runs import check_picture
from mock_serving import greedy, mock_engine, prompt

from llmlab import views
from llmlab.engine.plan import Reason
from llmlab.trace.trace import Trace
from llmlab.views.host_pool import SWAPPED, host_after, swapped_steps
from llmlab.views.pool import pool_per_step


@pytest.fixture(scope="module")
def swapped() -> Trace:
    """Five requests in a pool too small for them, with a host pool that has room."""
    engine = mock_engine(num_blocks=14, block_size=4, slots=5, host_blocks=40, prefix_cache="radix")
    for start in range(5):
        engine.submit(prompt(5 + 3 * start, start), greedy(16))
    engine.run_until_idle()
    return engine.trace


def test_lanes_say_whose_keys_and_values_wait_in_the_host_pool(swapped):
    view = views.batch_lanes(swapped)
    assert "K/V in the host pool: r2 in steps 10 to 15, r3 in steps 4 to 15" in view.text
    assert "preempted by r0 (its blocks were needed by an earlier request; swapped out to the host pool)" in view.text
    assert "its K/V waits in the host pool" in view.svg
    assert set(swapped_steps(swapped.index)) == {"r2", "r3"}


@pytest.mark.parametrize("step", [4, 10, 20])
def test_the_pictures_keep_to_what_every_picture_keeps_to(swapped, step):
    check_picture(views.block_map(swapped, step))
    check_picture(views.batch_lanes(swapped))


def test_views_know_a_swapped_request_by_the_schedulers_own_words():
    assert SWAPPED == Reason.SWAPPED


def test_lanes_without_a_host_pool_say_nothing_of_it():
    engine = mock_engine(num_blocks=8, block_size=4)
    for start in range(3):
        engine.submit(prompt(5, start), greedy(16))
    engine.run_until_idle()
    assert "host" not in views.batch_lanes(engine.trace).text
    assert "host" not in views.block_map(engine.trace).text.lower()
    assert host_after(engine.trace.index, 3) is None


def test_the_block_map_counts_and_draws_the_host_pool(swapped):
    view = views.block_map(swapped, 10)
    assert "host pool of 40 blocks: 10 copied for requests that are swapped out" in view.text
    assert "swapped out: r2, r3" in view.text
    assert view.svg.count("host block") == 40
    held = host_after(swapped.index, 10)
    outs = swapped.transfers.query("action == 'swap_out' and step <= 10")
    assert held.num_held == outs["blocks"].map(len).sum()
    assert host_after(swapped.index, 3).blocks == {}
    assert host_after(swapped.index, 30).waiting == ()


def test_timeline_and_growth_mention_the_copies(swapped):
    actions = swapped.transfers["action"]
    outs, ins = (int((actions == action).sum()) for action in ("swap_out", "swap_in"))
    assert ins >= 2
    said = f"copied to the host pool {outs} times and back {ins} times"
    assert any(said in note for note in views.step_timeline(swapped).notes)
    assert any("host pool, 40 blocks" in note for note in views.kv_growth(swapped).notes)


def test_tokens_of_blocks_are_counted_right_when_a_part_was_copied():
    engine = mock_engine(num_blocks=32, block_size=8, prefix_cache="radix")
    engine.submit(prompt(24), greedy(9))
    engine.step()
    for start in range(1, 4):
        engine.submit([*prompt(13), *prompt(9, start)], greedy(9))
    engine.run_until_idle()
    trace = engine.trace
    assert (trace.blocks["action"] == "copy").sum() == 3
    for step, pool in pool_per_step(trace.index):
        ends = {row.request_id: row.start + row.num_tokens for row in step.rows}
        shared = 8 * (len(ends) - 1)  # all of them hold the first block
        assert pool.num_tokens == sum(ends.values()) - shared
        assert pool.num_used == step.used


def test_host_blocks_that_are_not_drawn_are_counted_and_told():
    engine = mock_engine(num_blocks=8, block_size=4, host_blocks=600)
    engine.submit(prompt(5), greedy(2)).wait()
    view = views.block_map(engine.trace)
    assert view.svg.count("host block") - view.svg.count("host blocks") == 512
    assert "The first 512 of 600 host blocks are drawn; the counts are of all." in view.notes
