"""What the trace says about ranks: they agree, sends are received, and a pipeline's slots are counted."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from llmlab.errors import InvalidParameter
from llmlab.trace.bubble import bubble, bubbles
from llmlab.trace.events import Gap
from llmlab.trace.split_events import Collective, RankWork
from llmlab.trace.trace import Trace


def reduces(layers: int = 2, ranks: int = 3) -> list[Collective]:
    return [
        Collective(100 * layer + i, 100 * layer + 50, 4, rank, "tensor", "all_reduce", layer, place, 96, ranks)
        for layer in range(layers)
        for i, place in enumerate(("attention", "mlp"))
        for rank in range(ranks)
    ]


def test_ranks_that_took_part_in_the_same_collectives_are_consistent():
    assert Trace(reduces()).check() == []


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda events: events[:-1], "ranks 2 and 0 differ.*3 and 4"),
        (lambda events: [*events[:-1], replace(events[-1], layer=7)], "ranks 2 and 0 differ"),
        (lambda events: [*events[:-1], replace(events[-1], place="head")], "ranks 2 and 0 differ"),
        (lambda events: [*events[:-1], replace(events[-1], nbytes=95)], "ranks 2 and 0 differ"),
        (lambda events: [e for e in events if e.rank != 1], "ranks 1 and 0 differ"),
        (lambda events: [replace(events[0], end_ns=0, t_ns=1), *events[1:]], "cannot have been"),
    ],
)
def test_a_rank_that_did_something_else_is_found(change, words):
    problems = Trace(change(reduces())).check()
    assert problems
    assert any(re.search(words, problem) for problem in problems)


def test_lost_events_excuse_a_missing_rank():
    assert Trace([Gap(0, 3), *reduces()[:-1]]).check() == []


def test_what_is_sent_is_received():
    send = Collective(0, 1, 0, 0, "pipeline", "send", 14, "stage", 64, 2)
    receive = Collective(0, 2, 0, 1, "pipeline", "receive", 14, "stage", 64, 2)
    assert Trace([send, receive]).check() == []
    (problem,) = Trace([send, send, receive]).check()
    assert "sent and not received" in problem
    (one, other) = Trace([send, replace(receive, nbytes=32)]).check()
    assert "64 bytes" in one
    assert "received and not sent" in other


def pipelined(stages: int, parts: int, step: int = 0) -> list[RankWork]:
    return [
        RankWork(10 * (rank + part), 10 * (rank + part) + 9, step, rank, "pipeline", "forward", part, rank, rank, 4)
        for rank in range(stages)
        for part in range(parts)
    ]


@pytest.mark.parametrize(("stages", "parts"), [(2, 1), (2, 2), (3, 4), (4, 1), (4, 16)])
def test_the_idle_share_of_slots_is_that_of_the_formula(stages, parts):
    found = bubble(Trace(pipelined(stages, parts)))
    assert (found.stages, found.micro_batches, found.slots) == (stages, parts, stages + parts - 1)
    assert found.idle == stages * (stages - 1)
    assert found.idle_share == pytest.approx(found.expected_share) == pytest.approx((stages - 1) / (parts + stages - 1))


def test_stages_that_take_another_order_have_another_bubble():
    """The second stage takes the last micro-batch first, so it waits for it."""
    events = pipelined(2, 3)
    turned = [replace(e, t_ns=1000 - e.t_ns) if e.rank == 1 else e for e in events]
    found = bubble(Trace(turned))
    assert (found.slots, found.idle) == (6, 6)
    assert found.idle_share > found.expected_share


def test_every_step_of_a_pipeline_is_counted_and_no_other():
    trace = Trace([*pipelined(2, 1), *pipelined(2, 3, step=5), replace(pipelined(1, 1)[0], role="tensor", step=7)])
    assert bubbles(trace).step.tolist() == [0, 5]
    assert bubbles(trace).idle_share.tolist() == [0.5, 0.25]
    assert bubble(trace).step == 5
    with pytest.raises(InvalidParameter, match="step=7"):
        bubble(trace, 7)
    with pytest.raises(InvalidParameter, match="pipeline_parallel"):
        bubble(Trace(reduces()))
