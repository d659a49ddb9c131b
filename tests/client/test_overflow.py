"""The numbers of an overflow are read and used; below the floor the client gives up and says so."""

from __future__ import annotations

import pytest

from llmlab.client.overflow import Healing, NoRoomLeft, Overflow, read_overflow
from llmlab.client.stream_errors import failure_from
from llmlab.errors import InvalidParameter

WORDS = "input length and `max_tokens` exceed context limit: {} + {} > {}, decrease input length or `max_tokens`"


def refused(*numbers: int, status: int = 400):
    body = {"type": "error", "error": {"type": "invalid_request_error", "message": WORDS.format(*numbers)}}
    return failure_from(status, body, {})


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        (WORDS.format(184915, 20000, 204648), Overflow(184915, 20000, 204648)),
        ("messages.0: " + WORDS.format(1, 2, 2) + " and try again", Overflow(1, 2, 2)),
        (WORDS.format(1, 2, 3), None),  # does not exceed
        (WORDS.format("9" * 13, 2, 3), None),
        ("prompt is too long", None),
        ("", None),
    ],
)
def test_reading(message, expected):
    assert read_overflow(message) == expected


@pytest.mark.parametrize(
    ("numbers", "healing", "expected"),
    [
        ((184915, 20000, 204648), Healing(), 204648 - 184915 - 1000),
        ((7000, 2000, 8192), Healing(margin=64, floor=256), 8192 - 7000 - 64),
        ((196_000, 32_000, 200_000), Healing(), 3000),
    ],
)
def test_what_is_left_less_the_margin(numbers, healing, expected):
    assert healing.max_tokens_for(refused(*numbers)) == expected


def test_below_the_floor_it_gives_up_and_keeps_the_numbers():
    with pytest.raises(NoRoomLeft, match="below the floor of 3,000") as caught:
        Healing().max_tokens_for(refused(196_001, 32_000, 200_000))
    error = caught.value
    assert (error.input_tokens, error.max_tokens, error.context, error.room) == (196_001, 32_000, 200_000, 2_999)


def test_an_input_that_is_longer_than_the_context_gives_up_too():
    with pytest.raises(NoRoomLeft):
        Healing(margin=0, floor=1).max_tokens_for(refused(300, 1, 200))


def test_other_failures_are_left_alone():
    assert Healing().max_tokens_for(refused(9000, 9000, 10000, status=500)) is None
    assert Healing().max_tokens_for(failure_from(400, {"error": {"message": "no"}}, {})) is None


@pytest.mark.parametrize("bad", [{"margin": -1}, {"floor": 0}])
def test_margins_are_checked(bad):
    with pytest.raises(InvalidParameter):
        Healing(**bad)
