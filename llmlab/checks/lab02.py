"""Checks of lab 02, the wire frame by frame."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from llmlab.checks.judge import judge_function
from llmlab.checks.verdict import Verdict

REPORT_CASES = (([1, 12],), ([0, 4, 9],), ([3, None, 7],), ([5, None],), ([2],))
RETRY_CASES = tuple((n,) for n in range(1, 11))
OVERFLOW_CASES = ((190_000, 200_000), (196_000, 200_000), (196_001, 200_000), (199_500, 200_000), (4_000, 8_192))


def q1(function: Any) -> Verdict:
    """Output tokens of a stream that reports totals."""
    mistakes = [
        (_sum, "the reports are totals so far, not additions: the sum counts tokens several times."),
        (lambda reports: reports[0], "that is the first report, made when the message had hardly begun."),
        (lambda reports: reports[-1] or 0, "nearly: a report that is missing keeps the one before it."),
        (len, "that is the number of reports."),
        (lambda reports: reports[-1], "nearly: a report that is missing keeps the one before it."),
    ]
    because = "each report replaces the one before; one that is missing changes nothing."
    return judge_function(function, output_tokens, REPORT_CASES, mistakes, because=because)


def q2(function: Any) -> Verdict:
    """The longest wait before a retry, in milliseconds."""
    mistakes = [
        (lambda n: int(min(500 * 2**n, 32_000) * 1.25), "the first retry, n = 1, waits 500, so double n - 1 times."),
        (
            lambda n: min(int(500 * 2 ** (n - 1) * 1.25), 32_000),
            "the jitter comes after the cap, so that clients at the cap are spread too: 40,000 at most.",
        ),
        (lambda n: min(500 * 2 ** (n - 1), 32_000), "that is the wait without jitter, the shortest one."),
        (lambda n: int(500 * 2 ** (n - 1) * 1.25), "the cap of 32,000 is missing."),
        (lambda n: int(min(500 * n, 32_000) * 1.25), "the wait doubles each time; yours grows by the same amount."),
        (lambda n: min(500 * 2 ** (n - 1), 32_000) / 1000 * 1.25, "that is in seconds; give milliseconds."),
    ]
    because = "doubled, capped, then up to a quarter more: 40,000 from the seventh retry on."
    return judge_function(function, longest_wait, RETRY_CASES, mistakes, because=because)


def q3(function: Any) -> Verdict:
    """The ``max_tokens`` to try after an overflow; 0 to give up."""
    mistakes = [
        (lambda used, context: _or_zero(context - used, 3_000), "the margin of 1,000 is missing."),
        (lambda used, context: context - used - 1_000, "give up below the floor: with 3,000 or more it is worth it."),
        (
            lambda used, context: _or_zero(context - used - 1_000, 3_001),
            "nearly: exactly 3,000 is still enough; an input of 196,000 heals.",
        ),
        (
            lambda used, context: context - used - 1_000 if context - used >= 3_000 else 0,
            "the floor is compared with what is left after the margin.",
        ),
        (
            lambda used, context: max(context - used - 1_000, 0),
            "that stops at 0; fewer than 3,000 are not worth another request.",
        ),
        (
            lambda used, context: max(context - used - 1_000, 3_000),
            "a floor is where to give up; asking for more than is left would be refused again.",
        ),
    ]
    because = "context, less input, less margin, and nothing below the floor."
    return judge_function(function, healed_max_tokens, OVERFLOW_CASES, mistakes, because=because)


def output_tokens(reports: Sequence[int | None]) -> int:
    """The last report there is."""
    return [each for each in reports if each is not None][-1]


def longest_wait(n: int) -> int:
    """Milliseconds before retry ``n`` (from 1) at most."""
    return int(min(500 * 2 ** (n - 1), 32_000) * 1.25)


def healed_max_tokens(input_tokens: int, context: int) -> int:
    """What is left less a margin of 1,000, or 0 below a floor of 3,000."""
    return _or_zero(context - input_tokens - 1_000, 3_000)


def _sum(reports: Sequence[int | None]) -> int:
    return sum(each or 0 for each in reports)


def _or_zero(room: int, floor: int) -> int:
    return room if room >= floor else 0
