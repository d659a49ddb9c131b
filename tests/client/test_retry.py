"""When to try again, and after how long: tables."""

from __future__ import annotations

import random
from email.utils import formatdate

import pytest

from llmlab.client.retry import CLI_STYLE, SDK_STYLE, RetryPolicy, after_break, is_retryable, retry_after, wait_before
from llmlab.client.stream_errors import (
    ConnectionLost,
    IdleTimeout,
    ProtocolViolation,
    StreamIncomplete,
    TotalTimeout,
    failure_from,
    failure_in_stream,
)
from llmlab.errors import InvalidParameter

NOW = 1_800_000_000.0


@pytest.mark.parametrize(
    ("policy", "attempt", "low", "high"),
    [
        *[(SDK_STYLE, k, 0.75 * top, top) for k, top in enumerate([0.5, 1, 2, 4, 8, 8, 8])],
        *[(CLI_STYLE, k, top, 1.25 * top) for k, top in enumerate([0.5, 1, 2, 4, 8, 16, 32, 32])],
        (SDK_STYLE, 10_000, 6, 8),
    ],
)
def test_delays_fill_their_range_and_stay_in_it(policy, attempt, low, high):
    rng = random.Random(1)
    delays = [policy.delay_for(attempt, rng) for _ in range(1000)]
    assert low <= min(delays) < low + 0.02 * (high - low)
    assert high - 0.02 * (high - low) < max(delays) <= high


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({}, None),
        ({"retry-after": "3"}, 3.0),
        ({"retry-after": "0.25"}, 0.25),
        ({"retry-after": " 7 "}, 7.0),
        ({"retry-after-ms": "1500"}, 1.5),
        ({"retry-after-ms": "1500", "retry-after": "9"}, 1.5),
        ({"retry-after-ms": "garbage", "retry-after": "9"}, 9.0),
        ({"retry-after-ms": "-5", "retry-after": "9"}, 9.0),
        ({"retry-after": formatdate(NOW + 20, usegmt=True)}, 20.0),
        ({"retry-after": formatdate(NOW - 20, usegmt=True)}, None),
        ({"retry-after": "0"}, None),
        ({"retry-after": "-3"}, None),
        ({"retry-after": "nan"}, None),
        ({"retry-after": "inf"}, float("inf")),
        ({"retry-after": "-inf"}, None),
        ({"retry-after": "1e9"}, 1e9),
        ({"retry-after": "soon"}, None),
        ({"retry-after": ""}, None),
        ({"retry-after": "Mon, 99 Foo 99999 00:00:00 GMT"}, None),
    ],
)
def test_retry_after(headers, seconds):
    assert retry_after(headers, NOW) == seconds


@pytest.mark.parametrize(
    ("value", "seconds", "asked", "reason"),
    [
        ("60", 60, 60, "retry-after"),
        ("1e9", 120, 1e9, "cut to the longest wait"),
        ("inf", 120, float("inf"), "cut to the longest wait"),
        ("120", 120, 120, "retry-after"),
    ],
)
def test_a_wait_that_was_asked_for_passes_the_backoffs_cap_but_not_its_own(value, seconds, asked, reason):
    wait = wait_before(SDK_STYLE, 0, {"retry-after": value}, random.Random(1), NOW)
    assert (wait.seconds, wait.asked_s) == (seconds, asked)
    assert reason in wait.reason


@pytest.mark.parametrize("value", ["0", "-1", "nan", "garbage"])
def test_nonsense_falls_back_to_the_computed_delay(value):
    wait = wait_before(SDK_STYLE, 1, {"retry-after": value}, random.Random(1), NOW)
    assert 0.75 <= wait.seconds <= 1
    assert wait.asked_s is None


@pytest.mark.parametrize("status", [408, 409, 429, 500, 502, 503, 504, 529, 599])
def test_statuses_that_pass(status):
    assert is_retryable(failure_from(status, None, {}))[0]
    assert not is_retryable(failure_from(status, None, {"x-should-retry": "false"}))[0]


@pytest.mark.parametrize("status", [301, 400, 401, 402, 403, 404, 413, 422])
def test_statuses_that_stay(status):
    assert not is_retryable(failure_from(status, None, {}))[0]
    assert is_retryable(failure_from(status, None, {"x-should-retry": "True"}))[0]


@pytest.mark.parametrize(
    ("kind", "expected"),
    [("overloaded_error", True), ("api_error", True), ("rate_limit_error", True), ("invalid_request_error", False)],
)
def test_error_inside_a_stream_is_judged_by_its_type(kind, expected):
    failure = failure_in_stream({"error": {"type": kind, "message": "m"}}, {"x-should-retry": "true"})
    assert (failure.status, is_retryable(failure)[0]) == (200, expected)


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        (ConnectionLost, True),
        (StreamIncomplete, True),
        (IdleTimeout, True),
        (TotalTimeout, False),
        (ProtocolViolation, False),
    ],
)
def test_failures_without_an_answer(kind, expected):
    assert is_retryable(kind("x"))[0] is expected


@pytest.mark.parametrize(
    ("mid_stream", "phase", "action"),
    [
        ("phases", "nothing", "retry"),
        ("phases", "thinking", "retry"),
        ("phases", "tool_use", "keep"),
        ("phases", "shown", "raise"),
        ("never", "nothing", "retry"),
        ("never", "thinking", "raise"),
        ("never", "tool_use", "raise"),
        ("never", "shown", "raise"),
    ],
)
def test_broken_streams(mid_stream, phase, action):
    assert after_break(RetryPolicy(mid_stream=mid_stream), phase) == action


@pytest.mark.parametrize(
    "bad",
    [
        {"max_retries": 16},
        {"max_retries": -1},
        {"max_retries": 2.0},
        {"base_s": 0},
        {"jitter": (1, 0.5)},
        {"mid_stream": "x"},
        {"cap_s": 0.1},
    ],
)
def test_policies_are_checked(bad):
    with pytest.raises(InvalidParameter):
        RetryPolicy(**bad)
