from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from synthetic import SyntheticEngine, clockwork, story, traces

from llmlab import views
from llmlab.errors import InvalidParameter
from llmlab.trace import Trace
from llmlab.trace.events import BlockEvent, EngineInfo, Gap, Step


def states(trace: Trace, step: int) -> list[str]:
    return trace.block_map(step).state.tolist()


def test_blocks_follow_the_steps():
    trace = Trace(clockwork())
    assert states(trace, 0) == ["in use", "free", "free", "free"]
    assert states(trace, 2) == ["in use", "in use", "in use", "free"]
    assert states(trace, 3) == ["free"] * 4
    assert trace.block_map(2).owners.tolist() == [("r0",), ("r0",), ("r1",), ()]


def test_a_prefix_hit_is_a_shared_block_with_a_hash():
    blocks = Trace(story()).block_map(2)
    shared = blocks[blocks.state == "shared"]
    assert shared.owners.tolist() == [("r0", "r1")] * 4
    assert (shared.ref_count == 2).all()
    assert shared.hash.str.len().eq(12).all()


def test_a_copied_block_leaves_its_source_to_the_others():
    events = story()
    copy = next(e for e in events if isinstance(e, BlockEvent) and e.action == "copy")
    blocks = Trace(events).block_map(copy.step).set_index("block_id")
    assert blocks.owners[copy.block_id] == (copy.request_id,)
    assert copy.request_id not in blocks.owners[copy.source_id]
    assert blocks.ref_count[copy.source_id] == len(blocks.owners[copy.source_id])


@settings(deadline=None, max_examples=40, suppress_health_check=[HealthCheck.too_slow])
@given(traces())
def test_the_map_after_the_last_step_agrees_with_the_pool(events):
    trace = Trace(events)
    if not len(trace.steps):
        return
    last = trace.steps.step.iloc[-1]
    blocks = trace.block_map(last)
    held = Counter()
    for event in trace.blocks.itertuples():
        if event.step <= last and event.action in ("allocate", "hit", "share", "copy"):
            held[event.request_id] += 1
        if event.step <= last and event.action == "free":
            held[event.request_id] -= 1
    copies = Counter(e.request_id for e in events if isinstance(e, BlockEvent) and e.action == "copy")
    owned = Counter(owner for owners in blocks.owners for owner in owners)
    assert owned == +(held - copies)
    assert (blocks.owners.map(len) == blocks.ref_count).all()
    assert len(blocks) == trace.info.num_blocks


def test_lost_events_make_untouched_blocks_unknown():
    events = clockwork()
    third = [i for i, e in enumerate(events) if isinstance(e, Step)][2]
    trace = Trace([events[0], Gap(0, third), *events[third:]])
    assert states(trace, 2) == ["unknown"] * 4
    assert states(trace, 3) == ["free", "free", "free", "unknown"]
    assert trace.block_map(3).ref_count.isna().tolist() == [False, False, False, True]


def test_a_part_does_not_claim_to_know_other_requests_blocks():
    part = Trace(clockwork()).for_request("r1")
    assert states(part, 2) == ["unknown", "unknown", "in use", "unknown"]


@pytest.mark.parametrize("step", [-1, 5])
def test_a_step_outside_the_trace_is_refused_with_the_range(step):
    with pytest.raises(InvalidParameter, match="its steps are 0 to 4"):
        Trace(clockwork()).block_map(step)


def test_a_pool_too_large_to_list_is_refused_before_memory_is_taken():
    engine = SyntheticEngine()
    engine.submit([1, 2, 3])
    engine.step()
    events, _ = engine.recorder.read_since(0)
    events = [replace(e, num_blocks=2**31 - 1) if isinstance(e, EngineInfo) else e for e in events]
    for draw in (lambda trace: trace.block_map(0), views.block_map):
        with pytest.raises(InvalidParameter, match="2,147,483,647 blocks"):
            draw(Trace(events))
