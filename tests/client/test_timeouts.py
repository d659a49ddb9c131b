"""Three clocks and no fourth: total, idle, stall, on a clock the test moves."""

from __future__ import annotations

import math

import pytest

from llmlab.client.stream_errors import IdleTimeout, TotalTimeout
from llmlab.client.timeouts import Notice, Timeouts, Watchdog
from llmlab.errors import InvalidParameter


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def watch(**limits) -> tuple[Watchdog, Clock]:
    clock = Clock()
    return Watchdog(Timeouts(**limits), clock), clock


def test_first_token_is_waited_for_until_the_total_timeout():
    dog, clock = watch(total_s=600, idle_s=1, warn_s=0.5, stall_s=0.5)
    assert dog.remaining() == 600
    clock.now += 599.9
    assert dog.check() == []
    clock.now += 0.1
    with pytest.raises(TotalTimeout, match="600 s"):
        dog.check()


def test_without_limits_nothing_is_due():
    dog, clock = watch(total_s=None, idle_s=None, warn_s=None, stall_s=None)
    dog.on_event()
    clock.now += 1e6
    assert (dog.check(), dog.remaining(), dog.on_event()) == ([], None, [])


def test_silence_is_warned_of_once_then_ends_the_attempt():
    dog, clock = watch(idle_s=90, warn_s=45)
    dog.on_event()
    assert dog.remaining() == 45
    clock.now += 45
    assert (dog.check(), dog.check(), dog.remaining()) == ([Notice("idle", 45)], [], 45)
    clock.now += 45
    with pytest.raises(IdleTimeout, match="90 s"):
        dog.check()


def test_each_silence_is_warned_of():
    dog, clock = watch(warn_s=45, stall_s=None)
    for _ in range(2):
        dog.on_event()
        clock.now += 45
        assert dog.check() == [Notice("idle", 45)]


@pytest.mark.parametrize("reset_by", ["bytes", "events"])
def test_only_the_chosen_arrivals_end_a_silence(reset_by):
    dog, clock = watch(idle_s=10, warn_s=None, reset_by=reset_by)
    dog.on_bytes()
    dog.on_event()
    clock.now += 9
    dog.on_bytes()  # a comment line: bytes, but no event
    clock.now += 9
    if reset_by == "events":
        with pytest.raises(IdleTimeout, match="no events"):
            dog.check()
    else:
        assert dog.check() == []


def test_stall_is_only_reported_when_it_is_over():
    dog, clock = watch(stall_s=30, warn_s=None)
    dog.on_event()
    clock.now += 31
    assert dog.check() == []
    assert dog.on_event() == [Notice("stall", 31)]
    assert dog.on_event() == []


def test_first_arrival_is_no_stall():
    dog, clock = watch(stall_s=30)
    clock.now += 300
    assert dog.on_event() == []


def test_arrivals_count_from_when_they_came_not_from_when_they_were_read():
    dog, clock = watch(stall_s=30, idle_s=60)
    dog.on_event()
    clock.now += 50
    assert dog.on_event(at=clock.now - 40) == []
    assert dog.remaining() == 5  # warn_s is 45


def test_total_holds_while_events_arrive():
    dog, clock = watch(total_s=5)
    for _ in range(4):
        clock.now += 1
        dog.on_event()
        dog.check_total()
    clock.now += 1
    dog.on_event()
    with pytest.raises(TotalTimeout):
        dog.check_total()


@pytest.mark.parametrize("bad", [{"total_s": 0}, {"idle_s": -1}, {"warn_s": math.nan}, {"reset_by": "pings"}])
def test_limits_are_checked(bad):
    with pytest.raises(InvalidParameter, match=next(iter(bad))):
        Timeouts(**bad)
