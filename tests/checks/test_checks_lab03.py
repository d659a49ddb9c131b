"""Lab 03: the right answers pass, the stubs and the usual wrong answers get the message meant for them."""

from __future__ import annotations

from math import ceil, floor

import pytest

from llmlab.api.conversation import Conversation
from llmlab.checks import check
from llmlab.checks.lab03 import LIMIT, SECONDS, TIER_CASES, WAIT_CASES, granted, num_let_in, retry_after
from llmlab.gateway.auth import Identity
from llmlab.gateway.priority import grant
from llmlab.gateway.rate_limit import TokenBucket


def test_the_right_answers_pass():
    assert check.lab03.q1(num_let_in(LIMIT, SECONDS))
    assert check.lab03.q2(retry_after)
    assert check.lab03.q3(granted)


def test_the_stubs_do_not_pass():
    assert "replace the ..." in repr(check.lab03.q1(...))
    assert "replace the ..." in repr(check.lab03.q2(lambda limit, level: ...))
    assert "replace the ..." in repr(check.lab03.q3(lambda key_tier, asked: ...))


def test_requests_wrongly_counted():
    right = num_let_in(LIMIT, SECONDS)
    assert "the full bucket" in repr(check.lab03.q1(LIMIT))
    assert "all of them" in repr(check.lab03.q1(SECONDS))
    assert "the refused ones" in repr(check.lab03.q1(SECONDS - right))
    assert "only at second 60" in repr(check.lab03.q1(2 * LIMIT))


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (lambda limit, level: floor(max(0, (1 - level) * 60 / limit)), "too early"),
        (lambda limit, level: ceil(60 / limit), "the level, or debt"),
        (lambda limit, level: ceil(max(0, -level * 60 / limit)), "one unit more"),
        (lambda limit, level: ceil(max(0, (limit - level) * 60 / limit)), "a full bucket"),
        (lambda limit, level: 60, "not once a minute"),
        (lambda limit, level: max(0.0, (1 - level) * 60 / limit), "whole seconds"),
    ],
)
def test_waits_wrongly_computed(wrong, said):
    assert said in repr(check.lab03.q2(wrong))


@pytest.mark.parametrize(("limit", "level"), WAIT_CASES)
def test_the_bucket_waits_as_the_check_calls_right(limit, level):
    assert retry_after(limit, level) == ceil(TokenBucket(limit, level, 0.0).wait_for(1))


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (lambda key_tier, asked: key_tier, "less than its key allows"),
        (lambda key_tier, asked: "standard" if asked == "standard_only" else key_tier, "lifts a batch key"),
        (lambda key_tier, asked: asked, "the request's word"),
        (lambda key_tier, asked: "standard", "other tiers"),
    ],
)
def test_tiers_wrongly_granted(wrong, said):
    assert said in repr(check.lab03.q3(wrong))


@pytest.mark.parametrize(("key_tier", "asked"), TIER_CASES)
def test_the_gateway_grants_what_the_check_calls_right(key_tier, asked):
    conversation = Conversation("anthropic", "mock", (), service_tier=asked)
    assert grant(Identity("bob", key_tier), conversation).tier == granted(key_tier, asked)
