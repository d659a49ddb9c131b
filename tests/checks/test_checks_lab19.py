"""Lab 19: the right answers pass, the stubs and the usual wrong answers get the message meant for them."""

from __future__ import annotations

from math import ceil, floor

import pytest

from llmlab.checks import check
from llmlab.checks.lab19 import SHARE_CASES, hit_share, inside, replicas
from llmlab.planner.fleet import Fleet, agents, fixed, poisson, simulate, uniform
from llmlab.planner.step_time import StepTimes

TIMES = StepTimes("made up", step=1e6, row=1e4, token=1e4, late_token=0.0, padded=0.0, pair=0.0, knee=1)


def test_the_right_answers_pass():
    assert check.lab19.q1(inside)
    assert check.lab19.q2(replicas)
    assert check.lab19.q3(hit_share)


def test_the_stubs_do_not_pass():
    assert "replace the ..." in repr(check.lab19.q1(lambda rate, mean_ms: ...))
    assert "replace the ..." in repr(check.lab19.q2(lambda rate, each, safe: ...))
    assert "replace the ..." in repr(check.lab19.q3(lambda turns, replicas: ...))


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (lambda rate, mean_ms: rate * mean_ms, "the stay in milliseconds"),
        (lambda rate, mean_ms: mean_ms / 1000 / rate, "that divides by the rate"),
        (lambda rate, mean_ms: rate / (mean_ms / 1000), "longer stays mean more inside"),
        (lambda rate, mean_ms: rate, "how long does each stay"),
        (lambda rate, mean_ms: mean_ms / 1000, "how many overlap"),
    ],
)
def test_requests_inside_wrongly_counted(wrong, said):
    assert said in repr(check.lab19.q1(wrong))


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (lambda rate, each, safe: ceil(rate / each), "leave the margin"),
        (lambda rate, each, safe: floor(rate / (each * safe)), "round up"),
        (lambda rate, each, safe: floor(rate / (each * safe)) + 1, "where it comes out even"),
        (lambda rate, each, safe: ceil(rate * safe / each), "more replicas necessary, not fewer"),
        (lambda rate, each, safe: round(rate / (each * safe)), "never to the nearest"),
        (lambda rate, each, safe: rate / (each * safe), "replicas are whole"),
    ],
)
def test_replicas_wrongly_counted(wrong, said):
    assert said in repr(check.lab19.q2(wrong))


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (lambda turns, replicas: 1 / replicas, "that would be chance"),
        (lambda turns, replicas: max(turns - replicas, 0) / turns, "weigh them"),
        (lambda turns, replicas: hit_share(turns, 1), "keeps the session where it was"),
        (lambda turns, replicas: hit_share(turns, replicas - 1) if replicas > 1 else 1.0, "not its own"),
        (lambda turns, replicas: sum(range(1, max(turns - replicas, 0) + 1)), "divide by the pieces sent"),
    ],
)
def test_hits_in_turn_wrongly_counted(wrong, said):
    assert said in repr(check.lab19.q3(wrong))


@pytest.mark.parametrize(("turns", "number"), SHARE_CASES)
def test_the_simulator_hits_what_the_check_says(turns, number):
    """Blocks of one token and answers of one: what a turn leaves out of a whole piece is a two-hundredth."""
    fleet = Fleet(TIMES, replicas=number, routing="round_robin", block_size=1, num_blocks=5_000)
    session = agents(1.0, 1, turns, fixed(199), fixed(1), think_s=0.01, system=0)
    assert simulate(fleet, session).summary.hit_rate == pytest.approx(hit_share(turns, number), abs=0.01)


def test_requests_inside_are_what_the_check_says():
    summary = (run := simulate(Fleet(TIMES), poisson(20, 200, uniform(10, 90), uniform(5, 50)))).summary
    assert inside(summary.requests_per_s, run.requests.e2e_ms.mean()) == pytest.approx(summary.in_system)
