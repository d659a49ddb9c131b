"""Rate limits as the public SDKs meet them."""

from __future__ import annotations

import time
from contextlib import contextmanager
from datetime import UTC, datetime

import anthropic
import openai
import pytest
from fleet import MESSAGES, ask, chat, claude

import llmlab


@pytest.fixture(scope="module")
def lab():
    with llmlab.open("mock") as found:
        yield found


@contextmanager
def limited(lab, tmp_path, **limits):
    """The address of a server with two keys and those limits a minute."""
    keys = tmp_path / "keys"
    keys.write_text("key-of-alice alice\nkey-of-bob bob\n")
    keys.chmod(0o600)
    with lab.serve(keys_file=keys, drain_s=0, **{f"{name}_per_minute": value for name, value in limits.items()}) as it:
        yield it.url


def complete(client: openai.OpenAI):
    return client.chat.completions.with_raw_response.create(model="mock", max_tokens=4, messages=MESSAGES)


def test_anthropic_headers_tell_what_is_left(lab, tmp_path):
    with limited(lab, tmp_path, requests=10, input_tokens=1000, output_tokens=500) as url:
        client = claude(url, api_key="key-of-alice")
        headers = [ask(client, max_tokens=4).headers for _ in range(2)]
    family = "anthropic-ratelimit"
    assert [int(each[f"{family}-requests-remaining"]) for each in headers] == [9, 8]
    assert int(headers[0][f"{family}-input-tokens-remaining"]) == 1000 - 22
    assert int(headers[0][f"{family}-output-tokens-remaining"]) == 500 - 4
    assert headers[0][f"{family}-requests-limit"] == "10"
    for kind in ("requests", "input-tokens", "output-tokens", "tokens"):
        assert datetime.fromisoformat(headers[0][f"{family}-{kind}-reset"]) >= datetime.now(UTC).replace(microsecond=0)


def test_openai_headers_tell_what_is_left(lab, tmp_path):
    with limited(lab, tmp_path, requests=10, output_tokens=500) as url:
        headers = complete(chat(url, api_key="key-of-bob")).headers
    assert headers["x-ratelimit-limit-requests"] == "10"
    assert headers["x-ratelimit-remaining-requests"] == "9"
    assert headers["x-ratelimit-remaining-tokens"] == "496"
    assert headers["x-ratelimit-reset-requests"].endswith("s")
    assert not any(name.startswith("anthropic-ratelimit") for name in headers)


def test_each_key_has_its_own_limit(lab, tmp_path):
    with limited(lab, tmp_path, requests=1) as url:
        ask(claude(url, api_key="key-of-alice"))
        with pytest.raises(anthropic.RateLimitError, match="limited to 1 requests per minute") as caught:
            ask(claude(url, api_key="key-of-alice"))
        with pytest.raises(openai.RateLimitError) as refused:
            complete(chat(url, api_key="key-of-alice"))
        assert complete(chat(url, api_key="key-of-bob")).status_code == 200
        with pytest.raises(anthropic.AuthenticationError):
            ask(claude(url, api_key="key-of-mallory"))
    assert 0 < float(caught.value.response.headers["retry-after"]) <= 60
    assert caught.value.body["error"]["type"] == "rate_limit_error"
    assert refused.value.code == "rate_limit_exceeded"
    assert refused.value.response.headers["x-ratelimit-remaining-requests"] == "0"


@pytest.mark.parametrize("protocol", ["anthropic", "openai"])
def test_the_sdk_waits_as_long_as_it_is_told_and_succeeds(lab, tmp_path, protocol):
    with limited(lab, tmp_path, requests=60) as url:
        if protocol == "anthropic":
            client = claude(url, api_key="key-of-alice", max_retries=1)
            attempt = lambda: ask(client, max_tokens=1)  # noqa: E731
        else:
            openai_client = chat(url, api_key="key-of-alice", max_retries=1)
            attempt = lambda: complete(openai_client)  # noqa: E731
        waits, deadline = [], time.monotonic() + 30
        while not waits and time.monotonic() < deadline:
            start = time.monotonic()
            response = attempt()
            if response.retries_taken:
                waits.append(time.monotonic() - start)
        assert waits
        assert 0.9 <= waits[0] < 5
        assert response.status_code == 200
