from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from synthetic import story, traces

from llmlab.trace import Trace
from llmlab.trace.events import (
    BlockEvent,
    Decision,
    Event,
    Gap,
    RequestFinished,
    RequestSubmitted,
    Step,
    StepRow,
    TextEmitted,
    Token,
)


@settings(deadline=None, max_examples=100, suppress_health_check=[HealthCheck.too_slow])
@given(traces())
def test_what_the_scheduler_and_the_pool_record_is_consistent(events):
    assert Trace(events).check() == []


@settings(deadline=None, max_examples=40, suppress_health_check=[HealthCheck.too_slow])
@given(traces())
def test_lost_events_are_no_contradiction(events):
    for start in range(1, len(events), 7):
        assert Trace([events[0], Gap(events[start].t_ns, start - 1), *events[start:]]).check() == []


def changed(kind: type, which: int, change: Callable[[Event], Event | None]) -> list[Event]:
    """The story with the ``which``-th event of a kind changed, or left out."""
    events = story()
    place = [i for i, e in enumerate(events) if isinstance(e, kind)][which]
    new = change(events[place])
    return [*events[:place], *([] if new is None else [new]), *events[place + 1 :]]


def row_changed(step: Step, **changes: object) -> Step:
    return replace(step, rows=(replace(step.rows[0], **changes), *step.rows[1:]))


@pytest.mark.parametrize(
    ("kind", "which", "change", "message"),
    [
        (Step, 2, lambda s: replace(s, forward_ns=s.sample_ns + 1), "phases are not in order"),
        (Step, 2, lambda s: replace(s, step=1), "recorded twice"),
        (Step, 2, lambda s: replace(s, t_ns=s.t_ns - 10**9), "began before step 1 ended"),
        (Step, 2, lambda s: replace(s, free=s.free + 1), "are not the pool's 13"),
        (Step, 2, lambda s: replace(s, free=s.free + 1, used=s.used - 1), "the block events say"),
        (Step, 2, lambda s: replace(s, rows=(*s.rows, s.rows[0])), "two rows"),
        (Step, 2, lambda s: row_changed(s, num_tokens=13), "tokens, the budget is 12"),
        (Step, 1, lambda s: row_changed(s, num_tokens=5), "was to compute 6 tokens, its row has 5"),
        (Step, 1, lambda s: row_changed(s, start=11), "it should go on from 12"),
        (Step, 1, lambda s: row_changed(s, num_cached=4), "with 4 cached; it should go on from 12"),
        (Step, 3, lambda s: replace(s, rows=()), "its row has 0"),
        (Step, 3, lambda s: None, "it should go on from"),
        (Token, 3, lambda t: None, "not once each"),
        (Token, 3, lambda t: replace(t, position=t.position + 1), "not once each"),
        (Token, 3, lambda t: replace(t, t_ns=0), "not chosen within its step"),
        (Token, 3, lambda t: replace(t, logprob=0.1), "log-probability that is not one"),
        (Token, 3, lambda t: replace(t, logprob=math.nan), "log-probability that is not one"),
        (Token, 3, lambda t: replace(t, top=((1, -0.5), (2, -0.5))), "total probability above 1"),
        (TextEmitted, 0, lambda t: replace(t, num_tokens=9), "follows text after 9"),
        (TextEmitted, -1, lambda t: replace(t, num_tokens=99), "text after 99 tokens"),
        (
            RequestFinished,
            0,
            lambda f: replace(f, usage={"output_tokens": 99}),
            "99 output_tokens, the events",
        ),
        (RequestFinished, 0, lambda f: replace(f, usage={"recomputed_tokens": 9}), "9 recomputed_tokens"),
        (RequestFinished, 1, lambda f: replace(f, usage={"cached_tokens": 99}), "99 cached_tokens"),
        (BlockEvent, 0, lambda b: None, "the block events say"),
        (BlockEvent, 0, lambda b: replace(b, ref_count=2), "has ref_count 2 after allocate"),
        (BlockEvent, 0, lambda b: replace(b, request_id="r9"), "has blocks for 8 tokens, too few"),
        (BlockEvent, -1, lambda b: None, "still holds 1 blocks"),
    ],
)
def test_a_contradiction_is_found(kind, which, change, message):
    found = Trace(changed(kind, which, change)).check()
    assert any(message in violation for violation in found), found


def test_the_total_of_scheduled_tokens_is_checked():
    events = story()
    last = max(i for i, e in enumerate(events) if isinstance(e, Step))
    events[last] = replace(events[last], rows=())
    assert any("tokens were scheduled" in violation for violation in Trace(events).check())


def test_a_resumption_may_hit_more_than_the_request_had_computed():
    usage = {"prompt_tokens": 9, "cached_tokens": 0, "output_tokens": 1, "recomputed_tokens": 0}

    def step(number: int, *rows: StepRow) -> Step:
        return Step(*range(number * 10, number * 10 + 7), number, rows, 0, 1, 0, 0, 3)

    events = [
        RequestSubmitted(0, "r0", None, 0, None, tuple(range(9)), {}),
        step(0, StepRow("r0", 0, 2, 0, True, False)),
        Decision(10, 1, "r0", "preempted", "blocks", 0, "r1"),
        step(1),
        Token(24, 2, "r0", 9, 5, -1.0, "target"),
        RequestFinished(25, 2, "r0", "length", None, usage),
        step(2, StepRow("r0", 4, 5, 4, True, True)),
    ]
    assert Trace(events).check() == []
    wrong = step(2, StepRow("r0", 2, 7, 4, True, True))
    assert "it should go on from 4" in Trace([*events[:-1], wrong]).check()[0]
