"""Whatever a body holds, decoding succeeds or says what is wrong."""

from __future__ import annotations

import copy
import json
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from llmlab.api.anthropic import AnthropicCodec, place_automatic
from llmlab.api.conversation import Conversation
from llmlab.api.errors import ApiError
from llmlab.api.rules import Rules
from llmlab.api.sse import to_json
from llmlab.engine.params import SamplingParams

TTL = {"cache_control": {"type": "ephemeral", "ttl": "1h"}}
FULL: dict[str, Any] = {
    "model": "m",
    "max_tokens": 100,
    "system": [{"type": "text", "text": "s", **TTL}],
    "tools": [
        {
            "name": "add",
            "input_schema": {"type": "object", "properties": {"a": {"type": "number"}}},
            "input_examples": [{"a": 1}],
        }
    ],
    "tool_choice": {"type": "auto", "disable_parallel_tool_use": True},
    "thinking": {"type": "enabled", "budget_tokens": 32},
    "output_config": {"effort": "low", "format": {"type": "json_schema", "schema": {"type": "object"}}},
    "context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
    "stop_sequences": ["END"],
    "metadata": {"user_id": "u"},
    "temperature": 1,
    "messages": [
        {"role": "user", "content": "hi"},
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "hm", "signature": "s"},
                {"type": "tool_use", "id": "toolu_1", "name": "add", "input": {"a": 1}},
            ],
        },
        {
            "role": "user",
            "content": [
                {"type": "tool_result", "tool_use_id": "toolu_1", "content": [{"type": "text", "text": "2"}]},
                {
                    "type": "document",
                    "source": {"type": "text", "media_type": "text/plain", "data": "d"},
                },
            ],
        },
        {"role": "system", "content": [{"type": "text", "text": "note"}]},
    ],
}


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path, *(place for key, child in items for place in places(child, (*path, key)))]


PLACES = places(FULL)[1:]
NUMBERS = st.integers() | st.sampled_from([10**400, -(10**400), 2**63]) | st.floats()
TEXTS = st.text(st.characters(), max_size=8) | st.sampled_from(["\ud800", "user", "text", "tool_result", "object", ""])
LEAVES = st.none() | st.booleans() | NUMBERS | TEXTS
KEYS = TEXTS | st.sampled_from(
    ["type", "text", "content", "role", "id", "$ref", "$schema", "pattern", "allOf", "items"]
)
JSON = st.recursive(
    LEAVES, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=3), max_leaves=8
)


def decode(body: Any) -> Conversation | None:
    """The request, or ``None`` where both versions refused it; anything else but a refusal fails the test."""
    refusals = []
    for version in ("2023-06-01", "2026-10-21"):
        try:
            return AnthropicCodec().decode(body, {"anthropic-version": version}, Rules())
        except ApiError as error:
            refusals.append(error)
    for refusal in refusals:
        assert refusal.status == 400
        assert json.loads(to_json(refusal.anthropic("req_1")))["error"]["message"]
    return None


def check_usable(found: Conversation | None) -> None:
    if found is not None:
        SamplingParams.from_kwargs(**found.sampling)
        place_automatic(found)
        assert found.turns


def test_the_body_that_is_mutated_is_valid() -> None:
    assert decode(FULL) is not None


@given(JSON)
@settings(max_examples=150, deadline=None)
def test_random_bodies(body: Any) -> None:
    check_usable(decode(body))


@given(st.sampled_from(PLACES), JSON)
@settings(max_examples=400, deadline=None)
def test_one_value_replaced(place: tuple[Any, ...], value: Any) -> None:
    check_usable(decode(changed(place, lambda parent, key: parent.__setitem__(key, value))))


@given(st.sampled_from(PLACES))
@settings(max_examples=60, deadline=None)
def test_one_value_missing(place: tuple[Any, ...]) -> None:
    check_usable(decode(changed(place, lambda parent, key: parent.pop(key))))


@given(st.sampled_from([place for place in PLACES if isinstance(place[-1], str)]), KEYS, JSON)
@settings(max_examples=150, deadline=None)
def test_one_key_more(place: tuple[Any, ...], key: str, value: Any) -> None:
    check_usable(decode(changed(place, lambda parent, _: parent.setdefault(key, value))))


def changed(place: tuple[Any, ...], change: Any) -> Any:
    body = copy.deepcopy(FULL)
    parent = body
    for key in place[:-1]:
        parent = parent[key]
    change(parent, place[-1])
    return body
