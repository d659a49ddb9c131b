from __future__ import annotations

import pytest
from scripted_backend import chat_body, client_of, gateway_of, message_body, reply_events

from llmlab.api.errors import ApiError
from llmlab.api.reply import BlockDelta, Ended, Started
from llmlab.api.usage import Usage
from llmlab.gateway.rate_limit import RateLimiter
from llmlab.gateway.settings import Settings


class Clock:
    """Seconds that pass when told to."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def limiter_of(**limits) -> tuple[RateLimiter, Clock]:
    clock = Clock()
    return RateLimiter(Settings(**limits), clock=clock, wall=lambda: 1_700_000_000 + clock.now), clock


def refused(limiter: RateLimiter, key: str = "a") -> ApiError:
    with pytest.raises(ApiError) as caught:
        limiter.admit(key)
    return caught.value


def test_requests_beyond_the_minute_wait_until_one_has_come_back():
    limiter, clock = limiter_of(requests_per_minute=6)
    for _ in range(6):
        limiter.admit("a")
    error = refused(limiter)
    assert (error.status, error.retry_after) == (429, 10)
    clock.now += 9.9
    assert refused(limiter).retry_after == 1
    clock.now += 0.1
    limiter.admit("a")


def test_keys_do_not_share_buckets():
    limiter, _ = limiter_of(requests_per_minute=1)
    limiter.admit("a")
    refused(limiter)
    limiter.admit("b")


def test_cache_reads_are_free_and_the_rest_of_the_prompt_is_not():
    limiter, clock = limiter_of(input_tokens_per_minute=60)
    limiter.admit("a").add(Started(Usage(uncached=40, cache_read=1000, cache_write_5m=50)))
    error = refused(limiter)
    assert error.retry_after == 31  # 30 in debt, one to have again, one a second
    clock.now += 31
    limiter.admit("a")


def test_output_counts_as_it_is_produced_and_is_settled_at_the_end():
    limiter, _ = limiter_of(output_tokens_per_minute=10)
    charge = limiter.admit("a")
    charge.add(BlockDelta(0, 0, "some text"))
    charge.add(BlockDelta(0, 0, "more", (1, 2, 3)))
    assert limiter.headers("a", anthropic=True)["anthropic-ratelimit-output-tokens-remaining"] == "6"
    charge.add(Ended(Usage(1, output=9)))
    assert limiter.headers("a", anthropic=True)["anthropic-ratelimit-output-tokens-remaining"] == "1"


def test_a_refused_request_costs_nothing():
    limiter, clock = limiter_of(requests_per_minute=60, input_tokens_per_minute=60)
    limiter.admit("a").add(Started(Usage(60)))
    for _ in range(50):
        refused(limiter)
    clock.now += 1
    limiter.admit("a")


def test_buckets_never_hold_more_than_a_minute():
    limiter, clock = limiter_of(requests_per_minute=2)
    limiter.admit("a")
    clock.now += 10_000
    limiter.admit("a")
    limiter.admit("a")
    refused(limiter)


def test_no_limits_mean_no_headers():
    limiter, _ = limiter_of()
    limiter.admit("a")
    assert limiter.headers("a", True) == limiter.headers("a", False) == {}


def test_each_protocol_has_its_own_header_family():
    limiter, _ = limiter_of(requests_per_minute=60, output_tokens_per_minute=120)
    limiter.admit("a").add(BlockDelta(0, 0, "x", (1,) * 60))
    assert limiter.headers("a", True) == {
        "anthropic-ratelimit-requests-limit": "60",
        "anthropic-ratelimit-requests-remaining": "59",
        "anthropic-ratelimit-requests-reset": "2023-11-14T22:30:01Z",
        "anthropic-ratelimit-tokens-limit": "120",
        "anthropic-ratelimit-tokens-remaining": "60",
        "anthropic-ratelimit-tokens-reset": "2023-11-14T22:30:30Z",
        "anthropic-ratelimit-output-tokens-limit": "120",
        "anthropic-ratelimit-output-tokens-remaining": "60",
        "anthropic-ratelimit-output-tokens-reset": "2023-11-14T22:30:30Z",
    }
    assert limiter.headers("a", False) == {
        "x-ratelimit-limit-requests": "60",
        "x-ratelimit-remaining-requests": "59",
        "x-ratelimit-reset-requests": "1.000s",
        "x-ratelimit-limit-tokens": "120",
        "x-ratelimit-remaining-tokens": "60",
        "x-ratelimit-reset-tokens": "30.000s",
    }


async def test_the_limit_shows_on_every_response_and_429_says_when():
    gateway = gateway_of(requests_per_minute=2)
    async with client_of(gateway) as client:
        first = await client.post("/v1/messages", json=message_body())
        second = await client.post("/v1/chat/completions", json=chat_body(stream=True))
        third = await client.post("/v1/messages", json=message_body())
        models = await client.get("/v1/models")
    assert first.headers["anthropic-ratelimit-requests-remaining"] == "1"
    assert second.headers["x-ratelimit-remaining-requests"] == "0"
    assert third.status_code == 429
    assert 1 <= int(third.headers["retry-after"]) <= 30
    assert third.json()["error"]["type"] == "rate_limit_error"
    assert "x-ratelimit-remaining-requests" in models.headers


async def test_the_tokens_of_a_reply_are_charged_to_its_key():
    gateway = gateway_of(output_tokens_per_minute=100)
    gateway.backends[0].script = reply_events(["word "] * 30)
    async with client_of(gateway) as client:
        await client.post("/v1/messages", json=message_body(stream=True))
        response = await client.post("/v1/messages", json=message_body())
    assert 40 <= int(response.headers["anthropic-ratelimit-output-tokens-remaining"]) <= 45
