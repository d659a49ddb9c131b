"""Checks of lab 20, a server of one's own."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from math import gcd
from typing import Any

from llmlab.checks.judge import judge_function
from llmlab.checks.verdict import Verdict

CACHED_CASES = (([64, 80, 112],), ([32, 96, 160],), ([48],), ([128, 64, 256],), ([0, 96, 64],))
READING_CASES = (([100, 130, 180],), ([50, 50],), ([10, 40, 5, 25],), ([7],), ([0, 90, 20],), ([30, 0, 12, 0],))
BILL_CASES = ((1_000, 0, 100), (1_000, 800, 100), (64, 48, 0), (0, 0, 10), (500, 500, 500))
INPUT_PRICE, READ_PRICE, OUTPUT_PRICE = 30, 3, 150
"""Of a token, in the smallest unit of an invented currency."""


def q1(function: Any) -> Verdict:
    """The block size of a server, from cached counts."""
    mistakes = [
        (min, "the smallest count may be several blocks."),
        (max, "the largest count is many blocks."),
        (lambda counts: min(each for each in counts if each), "the smallest count may be several blocks."),
        (_least_gap, "a difference between two counts may be several blocks as well."),
        (lambda counts: counts[0], "one count alone may be several blocks: use all of them."),
        (len, "that is the number of counts."),
        (lambda counts: sum(counts) // len(counts), "that is their mean; every count is a multiple of a block."),
    ]
    because = "each count is a whole number of blocks, so the block divides all of them; this is the most it can be."
    return judge_function(function, block_size, CACHED_CASES, mistakes, because=because)


def q2(function: Any) -> Verdict:
    """What a counter counted over its readings."""
    mistakes = [
        (lambda readings: readings[-1] - readings[0], "nearly: a counter that went down began again at 0."),
        (lambda readings: readings[-1], "that counts what was before the first reading too."),
        (sum, "each reading is a total so far: add what was added, not the totals."),
        (
            lambda readings: sum(abs(later - earlier) for earlier, later in pairwise(readings)),
            "a counter never counts down: it began again at 0, and counted what it shows now.",
        ),
        (
            lambda readings: sum(max(later - earlier, 0) for earlier, later in pairwise(readings)),
            "nearly: after a new start the whole reading was counted since.",
        ),
        (lambda readings: max(readings) - min(readings), "highest less lowest says nothing when it began again."),
    ]
    because = "what was added each time; after a new start, all that the counter shows. What it lost is not known."
    return judge_function(function, counted, READING_CASES, mistakes, because=because)


def q3(function: Any) -> Verdict:
    """The bill of one request in the counts of Chat Completions."""
    mistakes = [
        (
            lambda prompt, cached, output: prompt * INPUT_PRICE + cached * READ_PRICE + output * OUTPUT_PRICE,
            "the cached tokens are paid twice: prompt_tokens has them inside.",
        ),
        (
            lambda prompt, cached, output: prompt * INPUT_PRICE + output * OUTPUT_PRICE,
            "the discount is missing: cached tokens cost the price of a read.",
        ),
        (
            lambda prompt, cached, output: (prompt - cached) * INPUT_PRICE + output * OUTPUT_PRICE,
            "reads are cheap, not free.",
        ),
        (
            lambda prompt, cached, output: prompt * READ_PRICE + output * OUTPUT_PRICE,
            "only the cached part of the prompt has the price of a read.",
        ),
        (
            lambda prompt, cached, output: (prompt - cached) * INPUT_PRICE + cached * READ_PRICE,
            "the output is missing.",
        ),
    ]
    because = "new input, cached input and output, each at its own price."
    return judge_function(function, bill, BILL_CASES, mistakes, because=because)


def block_size(counts: Sequence[int]) -> int:
    """The largest number that divides every count of cached tokens."""
    return gcd(*counts)


def counted(readings: Sequence[int]) -> int:
    """What a counter added between its first and its last reading, as far as that can be known."""
    return sum(later - earlier if later >= earlier else later for earlier, later in pairwise(readings))


def bill(prompt: int, cached: int, output: int) -> int:
    """Price of a request whose ``prompt`` tokens include the ``cached`` ones."""
    return (prompt - cached) * INPUT_PRICE + cached * READ_PRICE + output * OUTPUT_PRICE


def _least_gap(counts: Sequence[int]) -> int:
    ordered = sorted(counts)
    return min((later - earlier for earlier, later in pairwise(ordered)), default=ordered[0])
