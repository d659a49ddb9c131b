"""A field of a request changes what is asked of the backend, or is refused, or is listed as ignored."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from llmlab.api.anthropic import AnthropicCodec
from llmlab.api.anthropic.schema import CountRequest, CustomTool, MessageRequest
from llmlab.api.conversation import Conversation
from llmlab.api.errors import ApiError
from llmlab.api.openai.codec import OpenAICodec
from llmlab.api.openai.schema import ChatRequest
from llmlab.api.rules import Rules

TOOL = {"name": "look", "input_schema": {"type": "object"}}
USE = {"type": "tool_use", "id": "toolu_1", "name": "look", "input": {}}
RESULT = {"type": "tool_result", "tool_use_id": "toolu_1", "content": [{"type": "text", "text": "found"}]}
MESSAGES = [
    {"role": "user", "content": [{"type": "text", "text": "hi"}]},
    {"role": "assistant", "content": [{"type": "text", "text": "yes"}, USE]},
    {"role": "user", "content": [RESULT]},
]
MESSAGE = {"model": "m", "max_tokens": 100, "tools": [TOOL], "messages": MESSAGES}

MESSAGE_FIELDS: dict[str, Any] = {
    "model": "other",
    "messages": MESSAGES[:1],
    "max_tokens": 5,
    "system": "Be brief.",
    "tools": [TOOL, {**TOOL, "name": "more"}],
    "tool_choice": {"type": "any"},
    "thinking": {"type": "enabled", "budget_tokens": 50},
    "output_config": {"effort": "low"},
    "cache_control": {"type": "ephemeral"},
    "context_management": {"edits": [{"type": "clear_tool_uses_20250919"}]},
    "speed": "fast",
    "mcp_servers": [{"name": "x"}],
    "billing_policy": {"x": 1},
    "compaction": {"x": 1},
    "stream": True,
    "stop_sequences": ["x"],
    "temperature": 0.5,
    "top_p": 0.5,
    "top_k": 5,
    "metadata": {"user_id": "someone"},
    "service_tier": "standard_only",
    "inference_geo": "us",
    "diagnostics": {"previous_message_id": "msg_1"},
    "container": "x",
    "fallbacks": [{"model": "x"}],
    "fallback_credit_token": "x",
    "thread": {"type": "create"},
}

CHAT = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
FUNCTION = {"type": "function", "function": {"name": "look"}}
CHAT_FIELDS: dict[str, Any] = {
    "model": "other",
    "messages": [{"role": "user", "content": "ho"}],
    "audio": {"voice": "x"},
    "metadata": {"a": "b"},
    "modalities": ["text"],
    "moderation": {"x": 1},
    "prediction": {"type": "content", "content": "x"},
    "prompt_cache_options": {"x": 1},
    "prompt_cache_retention": "24h",
    "prompt_logprobs": 1,
    "store": True,
    "verbosity": "low",
    "web_search_options": {},
    "top_k": 5,
    "min_p": 0.5,
    "repetition_penalty": 1.1,
    "min_tokens": 1,
    "ignore_eos": True,
    "stop_token_ids": [1],
    "include_stop_str_in_output": True,
    "return_token_ids": True,
    "add_generation_prompt": False,
    "continue_final_message": True,
    "cache_salt": "x",
    "frequency_penalty": 1,
    "presence_penalty": 1,
    "logit_bias": {"5": 1},
    "logprobs": True,
    "top_logprobs": 2,
    "max_completion_tokens": 5,
    "max_tokens": 5,
    "n": 2,
    "parallel_tool_calls": False,
    "prompt_cache_key": "x",
    "reasoning_effort": "low",
    "response_format": {"type": "json_object"},
    "safety_identifier": "x",
    "seed": 5,
    "service_tier": "flex",
    "stop": "x",
    "stream": True,
    "stream_options": {"include_usage": True},
    "temperature": 0.5,
    "tool_choice": "required",
    "tools": [FUNCTION, {"type": "function", "function": {"name": "more"}}],
    "top_p": 0.5,
    "user": "x",
    "function_call": "auto",
    "functions": [{}],
}


def asked(conversation: Conversation) -> Conversation:
    """What a backend can act on: these fields say who asks, and what the engine has no choice of."""
    return replace(conversation, ignored=(), user=None, speed=None, inference_geo=None)


def decode(codec: Any, body: dict[str, Any]) -> Conversation | None:
    """``None`` when it is refused."""
    try:
        return codec.decode(body, {}, Rules())
    except ApiError:
        return None


def is_silent(codec: Any, before: dict[str, Any], after: dict[str, Any], path: str) -> bool:
    """Whether the change was accepted without any effect and without being listed."""
    plain, changed = decode(codec, before), decode(codec, after)
    assert plain is not None
    if changed is None:
        return False
    listed = any(found == path or found.startswith(f"{path}.") for found in changed.ignored)
    return asked(plain) == asked(changed) and not listed


def test_every_field_of_both_protocols_is_tried() -> None:
    assert set(MESSAGE_FIELDS) == set(MessageRequest.model_fields)
    assert set(CountRequest.model_fields) < set(MessageRequest.model_fields)
    assert set(CHAT_FIELDS) == set(ChatRequest.model_fields)


@pytest.mark.parametrize("name", MESSAGE_FIELDS)
def test_no_field_of_a_message_request_is_silent(name: str) -> None:
    assert not is_silent(AnthropicCodec(), MESSAGE, MESSAGE | {name: MESSAGE_FIELDS[name]}, name)


@pytest.mark.parametrize("name", CHAT_FIELDS)
def test_no_field_of_a_chat_request_is_silent(name: str) -> None:
    before = CHAT | ({"tools": [FUNCTION]} if name in ("parallel_tool_calls", "tool_choice") else {})
    before |= {"logprobs": True} if name == "top_logprobs" else {}
    before |= {"stream": True} if name == "stream_options" else {}
    assert not is_silent(OpenAICodec(), before, before | {name: CHAT_FIELDS[name]}, name)


def test_the_description_of_a_format_is_not_silent() -> None:
    form = {"name": "x", "schema": {"type": "object"}}
    before = CHAT | {"response_format": {"type": "json_schema", "json_schema": form}}
    after = CHAT | {"response_format": {"type": "json_schema", "json_schema": form | {"description": "d"}}}
    assert not is_silent(OpenAICodec(), before, after, "response_format.json_schema.description")


TOOL_FIELDS: dict[str, Any] = {
    "name": "find",
    "input_schema": {"type": "object", "properties": {}},
    "description": "Looks.",
    "strict": True,
    "input_examples": [{}],
    "cache_control": {"type": "ephemeral"},
    "eager_input_streaming": True,
    "defer_loading": True,
    "allowed_callers": ["direct"],
}


def test_no_field_of_a_tool_is_silent() -> None:
    assert set(TOOL_FIELDS) == set(CustomTool.model_fields) - {"type"}
    before = MESSAGE | {"messages": MESSAGES[:1]}
    for name, value in TOOL_FIELDS.items():
        after = before | {"tools": [TOOL | {name: value}]}
        assert not is_silent(AnthropicCodec(), before, after, f"tools.0.{name}"), name


CITED = [{"type": "char_location", "cited_text": "x"}]
DOCUMENT = {"type": "document", "source": {"type": "text", "media_type": "text/plain", "data": "x"}}
FOUND = {"type": "search_result", "title": "t", "source": "s", "content": [{"type": "text", "text": "x"}]}


@pytest.mark.parametrize(
    ("block", "name", "value"),
    [
        ({"type": "text", "text": "x"}, "citations", CITED),
        (DOCUMENT, "citations", {"enabled": True}),
        (DOCUMENT, "title", "t"),
        (DOCUMENT, "context", "c"),
        (FOUND, "citations", {"enabled": True}),
        (RESULT, "toolset_name", "x"),
        (RESULT, "is_error", True),
    ],
)
def test_no_field_of_a_users_block_is_silent(block: dict[str, Any], name: str, value: Any) -> None:
    first = [*MESSAGES[:2], {"role": "user", "content": [RESULT, block] if block != RESULT else [block]}]
    changed = [*MESSAGES[:2], {"role": "user", "content": [*first[2]["content"][:-1], block | {name: value}]}]
    path = f"messages.2.content.{len(first[2]['content']) - 1}.{name}"
    assert not is_silent(AnthropicCodec(), MESSAGE | {"messages": first}, MESSAGE | {"messages": changed}, path)


@pytest.mark.parametrize(
    ("name", "value"), [("caller", {"type": "code_execution", "tool_id": "x"}), ("toolset_name", "x")]
)
def test_no_field_of_a_call_is_silent(name: str, value: Any) -> None:
    turn = {"role": "assistant", "content": [MESSAGES[1]["content"][0], USE | {name: value}]}
    after = MESSAGE | {"messages": [MESSAGES[0], turn, MESSAGES[2]]}
    assert not is_silent(AnthropicCodec(), MESSAGE, after, f"messages.1.content.1.{name}")


def test_parts_of_a_result_and_of_the_system_prompt_are_listed_too() -> None:
    part = {"type": "text", "text": "found", "citations": CITED}
    turns = [*MESSAGES[:2], {"role": "user", "content": [RESULT | {"content": [part]}]}]
    found = AnthropicCodec().decode(MESSAGE | {"messages": turns, "system": [part]}, {}, Rules())
    assert found.ignored == ("system.0.citations", "messages.2.content.0.content.0.citations")


def test_what_stands_for_nothing_is_not_listed() -> None:
    """Clients send replies back as they were dumped: empty fields and the default caller say nothing."""
    call = USE | {"caller": {"type": "direct"}, "toolset_name": None}
    text = {"type": "text", "text": "yes", "citations": None}
    turns = [MESSAGES[0], {"role": "assistant", "content": [text, call]}, MESSAGES[2]]
    changes = {"speed": "standard", "inference_geo": None, "messages": turns}
    assert AnthropicCodec().decode(MESSAGE | changes, {}, Rules()).ignored == ()
