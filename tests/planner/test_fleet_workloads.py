"""Arrivals and lengths: seeded, repeatable, and what they say they are."""

from __future__ import annotations

from random import Random

import numpy as np
import pytest
from paced import TIMES

from llmlab.errors import InvalidParameter
from llmlab.planner.fleet import (
    Fleet,
    Prefixes,
    agents,
    at_once,
    bursty,
    fixed,
    lognormal,
    observed,
    poisson,
    replay,
    simulate,
    uniform,
)
from llmlab.trace import Trace

SHORT = (uniform(5, 20), uniform(2, 9))


def draws(lengths, number=2_000):
    generator = Random(1)
    return [lengths.draw(generator) for _ in range(number)]


def test_lengths_keep_to_their_distribution():
    assert set(draws(fixed(7))) == {7}
    assert set(draws(uniform(3, 6))) == {3, 4, 5, 6}
    assert set(draws(observed([2, 9]))) == {2, 9}
    found = draws(lognormal(100, 1_000), 20_000)
    assert np.median(found) == pytest.approx(100, rel=0.05)
    assert np.percentile(found, 99) == pytest.approx(1_000, rel=0.15)
    assert max(draws(lognormal(100, 1_000, most=150))) == 150


@pytest.mark.parametrize(
    "make",
    [
        lambda: fixed(0),
        lambda: uniform(5, 3),
        lambda: lognormal(10, 10),
        lambda: observed([]),
        lambda: poisson(0, 5, *SHORT),
        lambda: poisson(1, 1e3, *SHORT),
        lambda: poisson(1, 5, *SHORT, max_tokens=0),
        lambda: agents(1, 5, 2, *SHORT, think_s=-1),
        lambda: bursty(1, 5, *SHORT, on_s=0),
        lambda: agents(1, 5, 0, *SHORT),
        lambda: replay(Trace([])),
    ],
)
def test_what_cannot_be_drawn_is_refused(make):
    with pytest.raises(InvalidParameter):
        make()


@pytest.mark.parametrize("workload", [poisson(2, 50, *SHORT), bursty(2, 50, *SHORT)], ids=str)
def test_a_workload_repeats_itself(workload):
    assert [(a.t_ns, a.prompt, list(a.output)) for a in workload] == [
        (a.t_ns, a.prompt, list(a.output)) for a in workload
    ]


def test_another_seed_gives_other_arrivals():
    assert [a.t_ns for a in poisson(2, 9, *SHORT)] != [a.t_ns for a in poisson(2, 9, *SHORT, seed=1)]


def test_poisson_arrivals_come_at_their_rate_without_memory():
    gaps = np.diff([arrival.t_ns / 1e9 for arrival in poisson(4, 20_000, *SHORT)])
    assert gaps.mean() == pytest.approx(0.25, rel=0.03)
    assert gaps.std() == pytest.approx(gaps.mean(), rel=0.03)


def test_bursts_are_as_many_a_second_and_silent_between():
    times = np.array([arrival.t_ns / 1e9 for arrival in bursty(4, 20_000, *SHORT, on_s=2, off_s=8)])
    assert len(times) / times[-1] == pytest.approx(4, rel=0.05)
    assert (times % 10 <= 2 + 1e-6).all()


def test_only_shared_beginnings_are_shared():
    prompts = [arrival.prompt for arrival in poisson(2, 60, *SHORT, prefixes=Prefixes(2, 32))]
    assert len({tuple(prompt[:32]) for prompt in prompts}) == 2
    rest = [token for prompt in prompts for token in prompt[32:]]
    assert len(set(rest)) == len(rest)


def test_a_key_is_shared_with_the_beginning():
    by_key = {}
    for arrival in poisson(2, 60, *SHORT, prefixes=Prefixes(3, 32)):
        by_key.setdefault(arrival.key, set()).add(tuple(arrival.prompt[:32]))
    assert [len(beginnings) for beginnings in by_key.values()] == [1, 1, 1]


def test_max_tokens_bounds_the_answer_and_is_what_the_caller_allows():
    found = list(poisson(2, 60, fixed(5), uniform(1, 90), max_tokens=40))
    assert max(len(arrival.output) for arrival in found) == 40
    assert {arrival.max_tokens for arrival in found} == {40}


def test_an_agent_s_next_turn_repeats_everything_and_waits_for_the_answer():
    (first,) = agents(1.0, 1, 3, uniform(5, 9), uniform(3, 6), think_s=0.5, system=20)
    second = first.follow_up(10**9)
    assert second.t_ns > 10**9
    assert second.prompt[: len(first.prompt) + len(first.output)] == [*first.prompt, *first.output]
    assert len(second.prompt) > len(first.prompt) + len(first.output)
    third = second.follow_up(second.t_ns + 1)
    assert third.follow_up(third.t_ns) is None


def test_sessions_share_their_system_prompt_alone():
    one, two = agents(1.0, 2, 1, uniform(5, 9), uniform(3, 6), system=20)
    assert one.prompt[:20] == two.prompt[:20]
    assert not set(one.prompt[20:]) & set(two.prompt[20:])


def test_a_recorded_run_is_sent_again():
    workload = poisson(3, 30, *SHORT)
    again = list(replay(simulate(Fleet(TIMES), workload, record=True).trace))
    start = again[0].t_ns
    assert [(a.t_ns - start, list(a.prompt), list(a.output)) for a in again] == [
        (a.t_ns - next(iter(workload)).t_ns, a.prompt, list(a.output)) for a in workload
    ]


def test_a_crowd_arrives_together():
    assert {arrival.t_ns for arrival in at_once(5, 10, 2)} == {0}
