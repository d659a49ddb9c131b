"""Checks of lab 03, the gateway's front desk."""

from __future__ import annotations

from math import ceil, floor
from typing import Any

from llmlab.api.errors import ApiError
from llmlab.checks.judge import judge_function, judge_number
from llmlab.checks.verdict import Verdict
from llmlab.gateway.rate_limit import RateLimiter
from llmlab.gateway.settings import Settings

LIMIT, SECONDS = 6, 60
WAIT_CASES = ((3, 0), (60, -9), (60, 0.5), (4, 1), (10, -2.5), (600, -100), (7, 0))
TIER_CASES = tuple((tier, asked) for tier in ("priority", "standard", "batch") for asked in ("auto", "standard_only"))


def q1(answer: Any) -> Verdict:
    """How many of 60 requests, one a second, does a limit of 6 a minute let in?"""
    right = num_let_in(LIMIT, SECONDS)
    mistakes = [
        (LIMIT, "that is what the full bucket holds; it also gains one every 10 seconds meanwhile."),
        (SECONDS, "that is all of them; the bucket is empty after the first ones."),
        (SECONDS - LIMIT, "those are refused if nothing is gained; the question is who is let in."),
        (SECONDS - right, "those are the refused ones."),
        (2 * LIMIT, "nearly: the bucket gains 6 in 60 seconds, but the last of them is there only at second 60."),
    ]
    because = f"a full bucket of {LIMIT}, and one more for every 10 seconds that have passed."
    return judge_number(answer, right, mistakes, because=because, hint="Try it with RateLimiter and a clock of yours.")


def q2(function: Any) -> Verdict:
    """Whole seconds until one unit is in a bucket."""
    mistakes = [
        (lambda limit, level: floor(_seconds(limit, level)), "rounded down, the client comes back too early."),
        (lambda limit, level: round(_seconds(limit, level)), "round() may give too few seconds; round up."),
        (lambda limit, level: ceil(60 / limit), "that is the time of one unit; the level, or debt, counts too."),
        (lambda limit, level: ceil(max(0, -level * 60 / limit)), "that pays the debt; one unit more has to be there."),
        (
            lambda limit, level: ceil(max(0, (limit - level) * 60 / limit)),
            "that waits for a full bucket; one unit is enough.",
        ),
        (lambda limit, level: ceil(max(0, 1 - level) * limit / 60), "the rate is limit / 60 a second: divide by it."),
        (lambda limit, level: 60, "the bucket is refilled evenly, not once a minute."),
        (_seconds, "nearly: retry-after has whole seconds here, rounded up."),
    ]
    because = "what is missing, divided by what is gained a second, rounded up."
    return judge_function(function, retry_after, WAIT_CASES, mistakes, because=because)


def q3(function: Any) -> Verdict:
    """The service tier a request is given."""
    mistakes = [
        (lambda key_tier, asked: key_tier, "a request may ask for less than its key allows: standard_only does."),
        (
            lambda key_tier, asked: "standard" if asked == "standard_only" else key_tier,
            "that lifts a batch key to standard; a request never gets more than its key.",
        ),
        (
            lambda key_tier, asked: "standard" if asked == "standard_only" else "priority",
            "auto asks for the key's tier, not for the best.",
        ),
        (lambda key_tier, asked: asked, "that is the request's word, no tier; the key decides what it may have."),
        (lambda key_tier, asked: "standard", "keys of other tiers get those when the request does not ask for less."),
    ]
    because = "the key's tier at most, and less only when asked for."
    return judge_function(function, granted, TIER_CASES, mistakes, because=because)


def num_let_in(limit: int, seconds: int) -> int:
    """Requests let in, one being made at every full second from 0 on, of a bucket that was full."""
    now = 0.0
    limiter = RateLimiter(Settings(requests_per_minute=limit), clock=lambda: now)
    count = 0
    for second in range(seconds):
        now = float(second)
        try:
            limiter.admit("a key")
        except ApiError:
            continue
        count += 1
    return count


def retry_after(limit: int, level: float) -> int:
    """Seconds until one unit is there, rounded up."""
    return ceil(_seconds(limit, level))


def granted(key_tier: str, asked: str) -> str:
    """At most the key's tier, and a lower one when the request asks for less."""
    return "standard" if asked == "standard_only" and key_tier == "priority" else key_tier


def _seconds(limit: int, level: float) -> float:
    return max(0.0, (1 - level) * 60 / limit)
