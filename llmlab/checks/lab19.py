"""Checks of lab 19, a simulated fleet. Each is given a function."""

from __future__ import annotations

from math import ceil, floor
from typing import Any

from llmlab.checks.judge import judge_function
from llmlab.checks.verdict import Verdict

INSIDE_CASES = ((4, 2000), (20, 2500), (3, 500), (10, 1000), (0.5, 8000))
REPLICA_CASES = (
    (60, 22, 0.8),
    (80, 20, 0.8),
    (100, 25, 0.5),
    (64, 20, 0.8),
    (5, 20, 0.9),
    (33, 10, 1.0),
    (55, 20, 1.0),
)
SHARE_CASES = ((7, 3), (6, 1), (6, 2), (10, 4), (3, 4), (8, 8))


def q1(function: Any) -> Verdict:
    """How many requests are inside on average? Little's law."""
    mistakes = [
        (lambda rate, mean_ms: rate * mean_ms, "nearly: the rate is a second and the stay in milliseconds."),
        (lambda rate, mean_ms: mean_ms / 1000 / rate, "that divides by the rate; twice the rate brings twice as many."),
        (lambda rate, mean_ms: rate / (mean_ms / 1000), "longer stays mean more inside, not fewer."),
        (lambda rate, mean_ms: rate, "that many come in a second; how long does each stay?"),
        (lambda rate, mean_ms: mean_ms / 1000, "that is the stay of one; how many overlap?"),
    ]
    because = "requests inside = requests a second x seconds each stays, whatever happens inside."
    return judge_function(function, inside, INSIDE_CASES, mistakes, because=because)


def inside(rate: float, mean_ms: float) -> float:
    """Requests present on average."""
    return rate * mean_ms / 1000


def q2(function: Any) -> Verdict:
    """How many replicas does a promise take?"""
    mistakes = [
        (
            lambda rate, each, safe: ceil(rate / each),
            "that fills every replica to the brim, where the queue grows without end: leave the margin.",
        ),
        (
            lambda rate, each, safe: floor(rate / (each * safe)),
            "rounded down there is less than the promise takes: round up.",
        ),
        (
            lambda rate, each, safe: floor(rate / (each * safe)) + 1,
            "nearly: where it comes out even, no further replica is needed.",
        ),
        (
            lambda rate, each, safe: ceil(rate * safe / each),
            "the margin makes more replicas necessary, not fewer: it shrinks what each may be given.",
        ),
        (lambda rate, each, safe: round(rate / (each * safe)), "nearly: round up, never to the nearest."),
        (lambda rate, each, safe: rate / (each * safe), "nearly: replicas are whole; round up."),
    ]
    because = "each replica is given at most a share of what it can do, and the rest of the last one stays free."
    return judge_function(function, replicas, REPLICA_CASES, mistakes, because=because)


def replicas(rate: float, each: float, safe: float) -> int:
    """Replicas for ``rate`` requests a second when each may be given ``safe`` of the ``each`` it can serve."""
    return ceil(rate / (each * safe))


def q3(function: Any) -> Verdict:
    """Which share of a lone session's prompt tokens does round robin find in the cache?"""
    mistakes = [
        (lambda turns, replicas: 1 / replicas, "that would be chance; the replica a turn comes back to is known."),
        (
            lambda turns, replicas: max(turns - replicas, 0) / turns,
            "that is the share of turns, or of the last turn, that find something: later turns are longer, weigh them.",
        ),
        (
            lambda turns, replicas: hit_share(turns, 1),
            "that is with one replica, or with a router that keeps the session where it was.",
        ),
        (
            lambda turns, replicas: hit_share(turns, replicas - 1) if replicas > 1 else 1.0,
            "nearly: with one replica a turn finds the prompt of the turn before, not its own.",
        ),
        (
            lambda turns, replicas: sum(range(1, max(turns - replicas, 0) + 1)),
            "those are the pieces found; divide by the pieces sent.",
        ),
    ]
    because = "turn k finds the prompt of turn k - replicas, if there was one; a fleet too wide finds nothing."
    return judge_function(function, hit_share, SHARE_CASES, mistakes, because=because)


def hit_share(turns: int, replicas: int) -> float:
    """Prompt tokens found over prompt tokens sent, when turn ``k`` sends ``k`` pieces and goes to replica ``k`` modulo
    ``replicas``."""
    sent = sum(range(1, turns + 1))
    return sum(max(turn - replicas, 0) for turn in range(1, turns + 1)) / sent
