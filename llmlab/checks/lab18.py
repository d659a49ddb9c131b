"""Checks of lab 18, splitting the phases. Each is given a function."""

from __future__ import annotations

from typing import Any

from llmlab.checks.judge import judge_function
from llmlab.checks.verdict import Verdict

LINK_CASES = ((1_000_000, 8), (1_310_720_000, 10), (5_000_000_000, 400), (69_000_000, 100), (45_000, 10))
HIT_CASES = ((600, 60, 6, 1), (600, 60, 6, 2), (600, 60, 6, 3), (1000, 0, 5, 2), (640, 80, 3, 4), (100, 10, 12, 5))
PAYS_CASES = ((26, 531), (1050, 515), (1050, 100), (300, 100), (40, 41), (0, 500))


def q1(function: Any) -> Verdict:
    """How many microseconds do these bytes take on a link of so many gigabits per second?"""
    mistakes = [
        (lambda nbytes, gbits: nbytes / (gbits * 1000), "nearly: a link is sold in bits; a byte has 8 of them."),
        (lambda nbytes, gbits: nbytes * 8 / (gbits * 1e9), "those are seconds; a microsecond is a millionth of one."),
        (lambda nbytes, gbits: nbytes * 8 / (gbits * 1e6), "those are milliseconds; give microseconds."),
        (lambda nbytes, gbits: nbytes / (8 * gbits * 1000), "the 8 belongs above the line: bytes have more bits."),
        (lambda nbytes, gbits: nbytes * gbits, "a faster link takes less time: divide by its rate."),
    ]
    because = "8 bits to a byte, a thousand bits per microsecond for each gigabit per second."
    return judge_function(function, transfer_us, LINK_CASES, mistakes, because=because)


def transfer_us(nbytes: int, gbits: int) -> float:
    """Microseconds of ``nbytes`` on a link of ``gbits`` gigabits per second, latency left out."""
    return nbytes * 8 / (gbits * 1000)


def q2(function: Any) -> Verdict:
    """How many prompt tokens of a growing conversation does a prefix cache serve under round robin?"""
    mistakes = [
        (
            lambda base, growth, turns, replicas: prefix_hits(base, growth, turns, 1),
            "that is one replica, or a router that always finds the right one; under round robin the replica has last "
            "seen this conversation so many turns ago as there are replicas.",
        ),
        (
            lambda base, growth, turns, replicas: sum(base + t * growth for t in range(turns)),
            "those are all prompt tokens; a first visit finds nothing, and a later one only what was there before.",
        ),
        (
            lambda base, growth, turns, replicas: sum(base + t * growth for t in range(turns)) // replicas,
            "the hits are not a fixed share: the first turn on every replica misses all, later ones only what is new.",
        ),
        (
            lambda base, growth, turns, replicas: prefix_hits(base, growth, turns, 1) // replicas,
            "the hits are not a fixed share of the best case: write down which replica saw which turn.",
        ),
        (
            lambda base, growth, turns, replicas: sum(base + t * growth for t in range(replicas, turns)),
            "nearly: a replica holds the prompt of its last visit, which was shorter than this one.",
        ),
        (
            lambda base, growth, turns, replicas: sum(base + t * growth for t in range(turns - replicas + 1)),
            "nearly: count again how many turns are a second visit to their replica.",
        ),
    ]
    because = "turn t finds the prompt of turn t - replicas, which is the last this replica has seen."
    return judge_function(function, prefix_hits, HIT_CASES, mistakes, because=because)


def prefix_hits(base: int, growth: int, turns: int, replicas: int) -> int:
    """Prompt tokens served from a cache: turn ``t`` has ``base + t * growth``, replicas take turns."""
    return sum(base + (t - replicas) * growth for t in range(replicas, turns))


def q3(function: Any) -> Verdict:
    """From how many decoding streams on does a split save more waiting than the transfer adds?"""
    mistakes = [
        (
            lambda transfer, prefill: -(-transfer // prefill),
            "nearly: with a saving that equals the cost nothing is won yet.",
        ),
        (
            lambda transfer, prefill: transfer // prefill,
            "that many streams do not save more than the transfer costs yet; one more does.",
        ),
        (
            lambda transfer, prefill: prefill // transfer + 1 if transfer else 1,
            "the other way round: what is saved grows with the streams, each of which is spared one prefill.",
        ),
        (lambda transfer, prefill: transfer / prefill, "a number of streams is whole: from which one on is it more?"),
        (lambda transfer, prefill: int(transfer < prefill), "that answers for one stream; count the streams."),
    ]
    because = "every stream is spared the prefill once; the new request alone pays for the transfer."
    return judge_function(function, streams_needed, PAYS_CASES, mistakes, because=because)


def streams_needed(transfer_ms: int, prefill_ms: int) -> int:
    """Smallest number of streams whose saved waiting is more than the transfer."""
    return transfer_ms // prefill_ms + 1
