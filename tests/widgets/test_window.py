"""The bounded run of events that live panels draw from."""

from __future__ import annotations

import random

import pytest

import llmlab
from llmlab.trace import Trace
from llmlab.trace.events import BlockEvent, EngineInfo, Gap, RequestSubmitted, Step
from llmlab.trace.split_events import BlockTransfer, Collective, RankWork
from llmlab.widgets import window as window_module
from llmlab.widgets.pool_life import PoolLife
from llmlab.widgets.window import Window


@pytest.fixture(scope="module")
def long_trace():
    """Requests that come and go, with hits, forks, copies and preemptions."""
    with llmlab.open("mock", background=False, num_blocks=24, max_num_batched_tokens=48, max_num_seqs=4) as lab:
        chooser = random.Random(3)
        for number in range(30):
            text = f"{'the same beginning of every prompt ' * 2}{number % 5}"
            many = 2 if number % 3 == 0 else 1
            run = lab.submit(
                text[: chooser.randint(5, 70)], max_tokens=chooser.randint(3, 40), n=many, temperature=1.0, seed=number
            )
            if number % 4 == 3:
                run.wait()
        lab.engine.run_until_idle()
        return lab.trace


def replayed(events, last_step):
    frame = Trace(events).block_map(last_step)
    return frame[["block_id", "state", "ref_count", "hash"]].to_dict("records"), [sorted(o) for o in frame["owners"]]


def test_the_fixture_has_what_makes_it_hard(long_trace):
    actions = {event.action for event in long_trace.index.blocks}
    assert {"allocate", "hit", "share", "copy", "cache", "evict", "free"} <= actions
    assert len(long_trace.index.steps) > 100


@pytest.mark.parametrize("share", [0.1, 0.3, 0.5, 0.8, 0.99])
def test_the_pool_replays_the_same_without_the_lives_that_ended(long_trace, share):
    events, last = long_trace.events, long_trace.index.steps[-1].step
    cut = int(len(events) * share)
    life = PoolLife()
    for event in events[:cut]:
        if isinstance(event, BlockEvent):
            life.add(event)
    kept = [long_trace.info, *life.events(), *events[cut:]]
    assert replayed(kept, last) == replayed(events, last)
    assert len(life.events()) <= sum(isinstance(event, BlockEvent) for event in events[:cut])


def test_a_block_used_for_ever_keeps_few_events():
    life = PoolLife()
    for turn in range(1_000):
        life.add(BlockEvent(turn, turn, 0, "allocate", f"r{turn}", 0, 1, ""))
        life.add(BlockEvent(turn, turn, 0, "free", f"r{turn}", 0, 0, ""))
    assert len(life.events()) <= 2


def test_few_events_stay_as_they_are(long_trace):
    window = Window()
    window.extend(long_trace.events[:500])
    assert window.events() == list(long_trace.events[:500])


def test_a_long_recording_is_bounded_and_still_says_who_and_where(long_trace, monkeypatch):
    monkeypatch.setattr(window_module, "MAX_EVENTS", 600)
    monkeypatch.setattr(window_module, "MAX_EARLIER", 100)
    window = Window()
    for start in range(0, len(long_trace.events), 37):
        window.extend(long_trace.events[start : start + 37])
        assert len(window.events()) < 900
    trace = Trace(window.events())
    assert isinstance(window.events()[0], EngineInfo)
    last = long_trace.index.steps[-1].step
    assert trace.index.steps[-1].step == last
    assert replayed(window.events(), last) == replayed(long_trace.events, last)
    running = {row.request_id for step in trace.index.steps for row in step.rows}
    submitted = {event.request_id for event in window.events() if isinstance(event, RequestSubmitted)}
    assert running <= submitted


def test_steps_in_the_window_are_whole(long_trace, monkeypatch):
    monkeypatch.setattr(window_module, "MAX_EVENTS", 600)
    window = Window()
    window.extend(long_trace.events)
    steps = [event.step for event in window.events() if isinstance(event, Step)]
    assert steps == list(range(steps[0], steps[-1] + 1))
    assert len(steps) < len(long_trace.index.steps)


def test_after_a_gap_the_pools_past_is_not_made_up(long_trace, monkeypatch):
    monkeypatch.setattr(window_module, "MAX_EVENTS", 600)
    middle = len(long_trace.events) // 2
    gap = Gap(long_trace.events[middle].t_ns, 10)
    events = [*long_trace.events[:middle], gap, *long_trace.events[middle:]]
    window = Window()
    for start in range(0, len(events), 100):
        window.extend(events[start : start + 100])
    last = long_trace.index.steps[-1].step
    assert replayed(window.events(), last) == replayed(events, last)


def test_work_of_other_processes_and_moved_blocks_pass_through_a_full_window(long_trace, monkeypatch):
    monkeypatch.setattr(window_module, "MAX_EVENTS", 600)
    events = []
    for event in long_trace.events:
        events.append(event)
        if isinstance(event, Step):
            at, end, step, request = event.t_ns, event.end_ns, event.step, event.rows[0].request_id
            events += [
                RankWork(at, end, step, 1, "tensor", "forward"),
                Collective(at, end, step, 1, "tensor", "all_reduce", 0, "mlp", 8, 2),
                BlockTransfer(at, end, step, request, "send", "prefill", "decode", "socket", (0,), 1, 8, "as asked"),
            ]
    window = Window()
    window.extend(events)
    kept = Trace(window.events())
    last = long_trace.index.steps[-1].step
    assert kept.ranks.step.iloc[-1] == kept.collectives.step.iloc[-1] == last
    alive = {row.request_id for step in kept.index.steps for row in step.rows}
    assert set(kept.transfers.request_id) <= alive
