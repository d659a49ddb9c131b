from __future__ import annotations

import asyncio
import gzip
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scripted_backend import ScriptedBackend, client_of, gateway_of, message_body

from llmlab.api.errors import ApiError
from llmlab.gateway.body import parse_json, read_body
from llmlab.gateway.disconnect import ClientLeft


async def post(content: bytes, headers: dict | None = None, **settings):
    async with client_of(gateway_of(**settings)) as client:
        return await client.post("/v1/messages", content=content, headers=headers)


def sender(*messages: dict):
    """A ``receive`` that gives messages and then never anything again."""
    waiting = list(messages)

    async def receive() -> dict:
        if not waiting:
            await asyncio.Event().wait()
        return waiting.pop(0)

    receive.waiting = waiting
    return receive


def part(data: bytes, more: bool = True) -> dict:
    return {"type": "http.request", "body": data, "more_body": more}


async def test_a_body_above_the_limit_is_413_and_one_at_the_limit_is_served():
    body = json.dumps(message_body()).encode()
    assert (await post(body, max_body_bytes=len(body))).status_code == 200
    response = await post(body, max_body_bytes=len(body) - 1)
    assert (response.status_code, response.json()["error"]["type"]) == (413, "request_too_large")


async def test_an_announced_length_is_refused_without_reading():
    receive = sender(part(b"x"))
    with pytest.raises(ApiError, match="exceeds 10 bytes"):
        await read_body(receive, {"content-length": "11"}, 10)
    assert len(receive.waiting) == 1


async def test_an_unannounced_length_is_refused_as_soon_as_it_shows():
    receive = sender(*[part(b"x" * 8)] * 100)
    with pytest.raises(ApiError) as caught:
        await read_body(receive, {}, 20)
    assert (caught.value.status, len(receive.waiting)) == (413, 97)


async def test_a_body_that_trickles_in_is_408():
    with pytest.raises(ApiError) as caught:
        await read_body(sender(part(b"{")), {}, 100, timeout_s=0.05)
    assert caught.value.status == 408


async def test_a_body_that_breaks_off_belongs_to_a_client_that_left():
    with pytest.raises(ClientLeft):
        await read_body(sender(part(b"{"), {"type": "http.disconnect"}), {}, 100)


async def test_compressed_bodies_are_refused():
    body = gzip.compress(json.dumps(message_body()).encode())
    response = await post(body, {"content-encoding": "gzip"})
    assert response.status_code == 415
    assert "content-encoding" in response.json()["error"]["message"]


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"hello",
        b"\xff\xfe{}",
        b'\xef\xbb\xbf{"model": "tiny"}',
        b'{"max_tokens": NaN}',
        b'{"max_tokens": -Infinity}',
        b'{"max_tokens": 1e999}',
        b'{"max_tokens": ' + b"9" * 5000 + b"}",
        b"[" * 100_000,
        b'{"a":' * 100_000,
        b"[" * 65 + b"]" * 65,
    ],
)
async def test_what_is_not_sound_json_is_400(content):
    response = await post(content)
    assert (response.status_code, response.json()["error"]["type"]) == (400, "invalid_request_error")


def test_nesting_is_counted_exactly():
    assert parse_json(b"[" * 4 + b"]" * 4, 4) == [[[[]]]]
    assert parse_json(b'{"a": {"b": [1]}}', 3) == {"a": {"b": [1]}}
    assert parse_json(b"1", 0) == 1
    with pytest.raises(ApiError, match="3 levels"):
        parse_json(b"[" * 4 + b"]" * 4, 3)


async def test_a_large_body_is_parsed_as_a_small_one():
    body = message_body(messages=[{"role": "user", "content": "x" * 400_000}])
    assert (await post(json.dumps(body).encode())).status_code == 200


anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)
mutated = st.dictionaries(st.sampled_from([*message_body(), "stream", "tools", "system"]), anything).map(
    lambda changes: json.dumps(message_body() | changes).encode()
)


@settings(max_examples=150, deadline=None)
@given(content=st.binary(max_size=200) | anything.map(lambda value: json.dumps(value).encode()) | mutated)
@pytest.mark.parametrize("path", ["/v1/messages", "/v1/chat/completions", "/v1/messages/count_tokens"])
def test_no_body_whatever_makes_the_server_fail(path, content):
    async def send():
        async with client_of(gateway_of(ScriptedBackend())) as client:
            return await client.post(path, content=content, headers={"anthropic-version": "2023-06-01"})

    response = asyncio.run(send())
    assert response.status_code in (200, 400, 404)
    if response.status_code != 200:
        assert response.json()["error"]["message"]
