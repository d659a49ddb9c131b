"""Every rule of the Messages API that a request can break, with the words of the refusal."""

from __future__ import annotations

from typing import Any

import pytest

from llmlab.api.anthropic import AnthropicCodec
from llmlab.api.errors import ApiError
from llmlab.api.rules import Rules

LATEST = {"anthropic-version": "2026-10-21"}
USER = {"role": "user", "content": "hi"}
CALL = {"type": "tool_use", "id": "toolu_1", "name": "add", "input": {}}
RESULT = {"type": "tool_result", "tool_use_id": "toolu_1", "content": "3"}
TOOL = {"name": "add", "input_schema": {"type": "object"}}
MARK = {"cache_control": {"type": "ephemeral"}}
HOUR = {"cache_control": {"type": "ephemeral", "ttl": "1h"}}
THINKING = {"type": "enabled", "budget_tokens": 16}
ADAPTIVE = {"type": "adaptive"}
FORMAT = {"format": {"type": "json_schema", "schema": {"type": "object"}}}


def text(value: str = "x", **fields: Any) -> dict[str, Any]:
    return {"type": "text", "text": value, **fields}


def said(role: str, *content: Any) -> dict[str, Any]:
    return {"role": role, "content": list(content)}


def body(**fields: Any) -> dict[str, Any]:
    merged = {"model": "m", "max_tokens": 100, "messages": [USER], **fields}
    return {name: value for name, value in merged.items() if value is not ...}


def message_of(request: Any, headers: dict[str, str] | None = None, rules: Rules | None = None) -> str:
    with pytest.raises(ApiError) as caught:
        AnthropicCodec().decode(request, headers or {}, rules or Rules())
    assert (caught.value.kind, caught.value.status) == ("invalid_request_error", 400)
    return caught.value.message


SCHEMA = [
    ({"max_tokens": ...}, "max_tokens: Field required"),
    ({"model": ...}, "model: Field required"),
    ({"messages": ...}, "messages: Field required"),
    ({"wheels": 4}, "wheels: Extra inputs are not permitted"),
    ({"betas": ["x"]}, "betas: Extra inputs are not permitted"),
    ({"max_tokens": "5"}, "max_tokens: Input should be a valid integer"),
    ({"max_tokens": True}, "max_tokens: Input should be a valid integer"),
    ({"max_tokens": -1}, "max_tokens: Input should be greater than or equal to 0"),
    ({"max_tokens": 10**400}, "max_tokens: Input should be less than or equal to 2147483647"),
    ({"stream": 1}, "stream: Input should be a valid boolean"),
    ({"temperature": 1.5}, "temperature: Input should be less than or equal to 1"),
    ({"temperature": float("inf")}, "temperature: Input should be a finite number"),
    ({"top_p": 0}, "top_p: Input should be greater than 0"),
    ({"top_k": -1}, "top_k: Input should be greater than or equal to 0"),
    ({"service_tier": "gold"}, "service_tier: Input should be 'auto' or 'standard_only'"),
    ({"messages": [{"role": "robot", "content": "x"}]}, "messages.0.role: Input should be 'user', 'assistant' or"),
    ({"messages": ["x"]}, "messages.0: Input should be a valid dictionary"),
    ({"messages": [said("user", {"type": "tex"})]}, "messages.0.content.0: Input tag 'tex' found using 'type'"),
    ({"messages": [said("user", text(5))]}, "messages.0.content.0.text.text: Input should be a valid string"),
    ({"system": "half \ud800"}, "system: Input should be valid Unicode"),
    ({"messages": [said("user", text({"a\udc00": 1}))]}, "messages.0.content.0.text: Input should be valid Unicode"),
    ({"tools": [TOOL | {"wheels": 1}]}, "tools.0.custom.wheels: Extra inputs are not permitted"),
    ({"thinking": {"type": "maybe"}}, "thinking: Input tag 'maybe' found using 'type'"),
    ({"metadata": {"user_id": 5}}, "metadata.user_id: Input should be a valid string"),
]

MESSAGES = [
    ([], "messages: at least one message is required"),
    ([said("assistant", text())], 'messages: first message must use the "user" role'),
    ([said("system", text())], 'messages: first message must use the "user" role'),
    ([said("user")], "messages.0: all messages must have non-empty content except for the optional final assistant"),
    ([{"role": "user", "content": ""}], "messages.0: all messages must have non-empty content"),
    ([said("user", text(""))], "messages.0: all messages must have non-empty content"),
    ([said("assistant")], "messages.0: all messages must have non-empty content"),
    ([USER, said("assistant"), USER], "messages.1: all messages must have non-empty content"),
    ([said("user", CALL)], "messages.0.content.0: `tool_use` blocks can only be in `assistant` messages"),
    ([USER, said("assistant", RESULT)], "messages.1.content.0: `tool_result` blocks can only be in `user` messages"),
    (
        [said("user", {"type": "thinking", "thinking": "a", "signature": "b"})],
        "messages.0.content.0: `thinking` blocks can only be in `assistant` messages",
    ),
    ([USER, said("system", RESULT)], "messages.1.content.0: `tool_result` blocks can only be in `user` messages"),
    ([USER, said("assistant", text()), said("system", text())], "messages.2: a `system` message must directly follow"),
    ([USER, said("system", text()), USER], "messages.1: a `system` message must be the last or be followed by an"),
    ([USER, said("assistant", text("a "))], "messages.1.content.0: final assistant content cannot end with trailing"),
    (
        [USER, said("assistant", text(), {"type": "redacted_thinking", "data": "x"})],
        "messages.1.content.1: an `assistant` message that is to be continued must end with text",
    ),
    ([said("user", {"type": "image", "source": {}})], "messages.0.content.0: `image` blocks are not supported: the"),
    ([said("user", {"type": "container_upload", "file_id": "f"})], "messages.0.content.0: `container_upload` blocks"),
    ([USER, said("assistant", {"type": "server_tool_use"})], "messages.1.content.0: `server_tool_use` blocks are not"),
    (
        [said("user", {"type": "document", "source": {"type": "base64", "data": "JVBE"}})],
        "messages.0.content.0.document.source: `base64` sources are not supported",
    ),
]

FOUND_WITHOUT = "`tool_use` ids were found without `tool_result` blocks immediately after: toolu_1."
PAIRS = [
    ([USER, said("assistant", CALL)], f"messages.1: {FOUND_WITHOUT}"),
    ([USER, said("assistant", CALL), USER], f"messages.1: {FOUND_WITHOUT}"),
    ([USER, said("assistant", CALL), said("user", text(), RESULT)], f"messages.1: {FOUND_WITHOUT}"),
    ([USER, said("assistant", CALL), USER, said("user", RESULT)], f"messages.1: {FOUND_WITHOUT}"),
    (
        [USER, said("assistant", CALL), said("system", text()), said("user", RESULT)],
        "messages.2: a `system` message must directly follow a `user` message",
    ),
    (
        [USER, said("assistant", CALL, CALL | {"id": "toolu_2"}), said("user", RESULT)],
        "messages.1: `tool_use` ids were found without `tool_result` blocks immediately after: toolu_2.",
    ),
    (
        [USER, said("assistant", text()), said("user", RESULT)],
        "messages.2.content.0: unexpected `tool_use_id` found in `tool_result` blocks: toolu_1.",
    ),
    (
        [USER, said("assistant", CALL), said("user", RESULT, RESULT | {"tool_use_id": "toolu_9"})],
        "messages.2.content.1: unexpected `tool_use_id` found in `tool_result` blocks: toolu_9.",
    ),
    (
        [USER, said("assistant", CALL), said("user", RESULT, RESULT)],
        "messages.2.content.1: each `tool_use` must have a single result",
    ),
    (
        [USER, said("assistant", CALL, CALL), said("user", RESULT)],
        "messages.1.content.1: `tool_use` ids must be unique",
    ),
]

BAD_SCHEMA = {"type": "object", "properties": {"a": {"type": "numbr"}}}
NUMBER = {"type": "object", "properties": {"a": {"type": "number"}}}
TOOLS = [
    ({"tools": [TOOL | {"name": "a b"}]}, "tools.0.custom.name: String should match pattern"),
    ({"tools": [TOOL | {"name": "x" * 65}]}, "tools.0.custom.name: String should match pattern"),
    ({"tools": [TOOL, TOOL]}, "tools: Tool names must be unique"),
    ({"tools": [TOOL | {"input_schema": {"type": "array"}}]}, "tools.0.custom.input_schema.type: Input should be 'obj"),
    ({"tools": [TOOL | {"input_schema": BAD_SCHEMA}]}, "tools.0.custom.input_schema.properties.a.type: 'numbr' is not"),
    (
        {"tools": [TOOL | {"input_schema": NUMBER, "input_examples": [{"a": 1}, {"a": "1"}]}]},
        "tools.0.custom.input_examples.1: does not satisfy input_schema: '1' is not of type 'number'",
    ),
    ({"tools": [{"type": "web_search_20250305", "name": "web_search"}]}, "tools.0.type: 'web_search_20250305' runs on"),
    ({"tools": [{"type": "bash_20250124", "name": "bash"}]}, "tools.0.type: 'bash_20250124' is known to hosted models"),
    ({"tools": [{"type": "hammer", "name": "x"}]}, "tools.0.type: 'hammer' is not a type of tool"),
    ({"tool_choice": {"type": "any"}}, "tool_choice: 'any' needs tools to choose from"),
    (
        {"tools": [TOOL], "tool_choice": {"type": "tool", "name": "sub"}},
        "tool_choice.tool.name: Tool 'sub' not found in provided tools",
    ),
    ({"output_config": {"format": {"type": "json_schema", "schema": BAD_SCHEMA}}}, "output_config.format.schema.prop"),
]

PREFILL = [USER, said("assistant", text("So"))]
THINKS = [
    (
        {"thinking": {"type": "enabled", "budget_tokens": 15}},
        "thinking.enabled.budget_tokens: Input should be greater than or equal to 16",
    ),
    (
        {"thinking": {"type": "enabled", "budget_tokens": 100}},
        "max_tokens must be greater than thinking.budget_tokens",
    ),
    ({"thinking": THINKING, "tools": [TOOL], "tool_choice": {"type": "any"}}, "tool_choice: Thinking may not be"),
    ({"thinking": THINKING, "temperature": 0.5}, "`temperature` may only be set to 1 when thinking is enabled"),
    ({"thinking": ADAPTIVE, "temperature": 0}, "`temperature` may only be set to 1 when thinking is enabled"),
    ({"thinking": ADAPTIVE, "top_k": 5}, "`top_k` must be unset when thinking is on."),
    ({"thinking": ADAPTIVE, "top_p": 0.9}, "`top_p` must be from 0.95 to 1 when thinking is on."),
    ({"thinking": ADAPTIVE, "messages": PREFILL}, "messages: the final message cannot be from the assistant when"),
    ({"output_config": FORMAT, "messages": PREFILL}, "messages: the final message cannot be from the assistant when"),
]

PREWARM = [
    ({"stream": True}, "stream"),
    ({"thinking": THINKING}, "thinking.enabled"),
    ({"output_config": FORMAT}, "output_config.format"),
    ({"tools": [TOOL], "tool_choice": {"type": "any"}}, "tool_choice.any"),
    ({"tools": [TOOL], "tool_choice": {"type": "tool", "name": "add"}}, "tool_choice.tool"),
]

FOUR = [text(**MARK)] * 4
CACHING = [
    (
        {"tools": [TOOL | MARK], "system": FOUR},
        "A maximum of 4 blocks with cache_control may be provided. Found 5.",
    ),
    ({"system": FOUR, **MARK}, "A maximum of 4 blocks with cache_control may be provided. Found 5."),
    (
        {"tools": [TOOL | MARK], "system": [text(**HOUR)]},
        "cache_control.ttl: a ttl='1h' cache_control block must not come after a ttl='5m' cache_control block",
    ),
    ({"system": [text(**MARK)], **HOUR}, "cache_control.ttl: a ttl='1h' cache_control block must not come after"),
    ({"messages": [said("user", text(**MARK))], **HOUR}, "cache_control.ttl: ttl='1h' differs from ttl='5m' of the"),
    ({"system": [text("", **MARK)]}, "system.0: cache_control cannot be set for empty text blocks"),
    (
        {"messages": [said("user", text("", **MARK))]},
        "messages.0.content.0.text: cache_control cannot be set for empty",
    ),
    (
        {"messages": [said("user", {"type": "search_result", "title": "", "source": "", "content": [], **MARK})]},
        "messages.0.content.0.search_result: cache_control cannot be set for empty text blocks",
    ),
    (
        {"messages": [USER, said("assistant", {"type": "thinking", "thinking": "", "signature": "", **MARK}, text())]},
        "messages.1.content.0.thinking.cache_control: Extra inputs are not permitted",
    ),
    (
        {"messages": [USER, said("assistant", CALL), said("user", RESULT | {"content": [text(**MARK)]})]},
        "messages.2.content.0.tool_result.content.0.cache_control: cache_control belongs on the block of the message",
    ),
    ({"cache_control": {"type": "ephemeral", "ttl": "2h"}}, "cache_control.ttl: Input should be '5m' or '1h'"),
]

CLEAR_USES = {"type": "clear_tool_uses_20250919"}
CLEAR_THINKING = {"type": "clear_thinking_20251015"}
REST = [
    (
        {"context_management": {"edits": [CLEAR_USES, CLEAR_THINKING]}},
        "context_management.edits.1: clear_thinking_20251015 must be the first edit",
    ),
    (
        {"context_management": {"edits": [{"type": "compact_20260112"}]}},
        "context_management.edits.0: compaction happens",
    ),
    ({"compaction": {"type": "summarize"}}, "compaction: compaction happens in the client here"),
    ({"thread": {"type": "continue", "previous_message_id": "m"}}, "thread: this server keeps no conversations"),
    ({"thread": {"type": "create"}}, "thread: this server keeps no conversations"),
    ({"stop_sequences": [" \n"]}, "stop_sequences.0: each stop sequence must contain non-whitespace"),
    ({"stop_sequences": ["a", "x" * 257]}, "stop_sequences.1: String should have at most 256 characters"),
    ({"stop_sequences": ["x"] * 17}, "stop_sequences: at most 16 are allowed, not 17"),
]


@pytest.mark.parametrize(("fields", "expected"), SCHEMA + TOOLS + THINKS + CACHING + REST)
def test_a_field_that_breaks_a_rule_is_named(fields: dict[str, Any], expected: str) -> None:
    assert message_of(body(**fields)).startswith(expected)


@pytest.mark.parametrize(("messages", "expected"), MESSAGES + PAIRS)
def test_a_message_out_of_place_is_named(messages: list[Any], expected: str) -> None:
    assert message_of(body(messages=messages)).startswith(expected)


@pytest.mark.parametrize(("fields", "name"), PREWARM)
def test_a_prewarm_generates_nothing(fields: dict[str, Any], name: str) -> None:
    assert message_of(body(max_tokens=0, **fields)) == (
        f"max_tokens: 0 computes the prompt only and cannot be combined with {name}"
    )


@pytest.mark.parametrize("name", ["temperature", "top_p", "top_k"])
def test_sampling_fields_are_unknown_to_the_latest_version(name: str) -> None:
    assert message_of(body(**{name: 1}), LATEST) == f"{name}: Extra inputs are not permitted"


@pytest.mark.parametrize(
    ("messages", "expected"),
    [
        (
            [said("user", text(citations=[{"type": "char_location"}]))],
            "messages.0.content.0.text.citations: citations must be empty",
        ),
        (
            [
                USER,
                said(
                    "assistant",
                    {"type": "document", "source": {"type": "text", "media_type": "text/plain", "data": "d"}},
                    text(),
                ),
            ],
            "messages.1.content.0: `document` blocks cannot be in `assistant` messages",
        ),
    ],
)
def test_what_the_latest_version_no_longer_takes(messages: list[Any], expected: str) -> None:
    AnthropicCodec().decode(body(messages=messages), {"anthropic-version": "2023-06-01"}, Rules())
    assert message_of(body(messages=messages), LATEST).startswith(expected)


def test_an_unknown_version_names_the_known_ones() -> None:
    found = message_of(body(), {"anthropic-version": "2030-01-01"})
    assert found == "anthropic-version: '2030-01-01' is not a version of this API; use 2023-06-01 or 2026-10-21"


@pytest.mark.parametrize("request_body", [None, [], "x", 5, [body()]])
def test_a_body_that_is_no_object(request_body: Any) -> None:
    assert message_of(request_body) == "the body must be a JSON object"


def test_a_body_too_deep() -> None:
    deep: Any = 1
    for _ in range(5000):
        deep = [deep]
    assert message_of(body(metadata=deep)) == "the body is nested more than 128 levels deep"


@pytest.mark.parametrize(
    ("rules", "fields", "expected"),
    [
        (Rules(strict_roles=True), {"messages": [USER, USER]}, "messages.1: roles must alternate"),
        (
            Rules(allow_prefill=False),
            {"messages": PREFILL},
            "This model does not support assistant message prefill. The conversation must end with a user message.",
        ),
        (Rules(allow_prefill=False), {"messages": [USER, said("assistant")]}, "This model does not support assistant"),
        (Rules(max_output_tokens=50), {}, "max_tokens: 100 > 50, the maximum number of output tokens"),
        (
            Rules(min_thinking_budget=1024),
            {"thinking": THINKING},
            "thinking.enabled.budget_tokens: Input should be greater than or equal to 1024",
        ),
    ],
)
def test_rules_of_a_server(rules: Rules, fields: dict[str, Any], expected: str) -> None:
    assert message_of(body(**fields), rules=rules).startswith(expected)


@pytest.mark.parametrize("name", ["max_tokens", "stream", "metadata", "stop_sequences", "temperature"])
def test_counting_takes_no_field_of_the_reply(name: str) -> None:
    with pytest.raises(ApiError, match=f"^{name}: Extra inputs are not permitted$"):
        AnthropicCodec().decode_count(body(max_tokens=...) | {name: 1}, {}, Rules())


REFERENCES = {"a0": {}} | {f"a{n}": {"allOf": [{"$ref": f"#/$defs/a{n - 1}"}] * 2} for n in range(1, 60)}


@pytest.mark.parametrize(
    ("schema", "expected"),
    [
        ({"$defs": REFERENCES, "$ref": "#/$defs/a59"}, "more than 1000 references"),
        ({"$schema": "http://json-schema.org/draft-07/schema#", "allOf": [{"$ref": "#"}]}, "recursion depth"),
        ({"allOf": [{"$ref": "http://127.0.0.1:9/elsewhere"}]}, "Unresolvable"),
        ({"allOf": [{"$schema": "http://json-schema.org/draft-07/schema#"}]}, "names a $schema of its own"),
        ({"properties": {"a": {"multipleOf": 0.1}}}, "cannot be checked"),
    ],
)
def test_a_hostile_schema_ends_in_a_refusal(schema: dict[str, Any], expected: str) -> None:
    tool = TOOL | {"input_schema": {"type": "object"} | schema, "input_examples": [{"a": 10**400}]}
    assert expected in message_of(body(tools=[tool]))


@pytest.mark.parametrize(
    "schema",
    [
        {"properties": {"a": {"pattern": "^(a+)+$"}}},
        {"patternProperties": {"^(a+)+$": {}}, "additionalProperties": False},
        {"patternProperties": {"^(a+)+$": {}}, "unevaluatedProperties": False},
    ],
)
def test_a_hostile_pattern_is_not_tried(schema: dict[str, Any]) -> None:
    examples = [{"a": "a" * 200 + "b", "a" * 200 + "b": 1}]
    tool = TOOL | {"input_schema": {"type": "object"} | schema, "input_examples": examples}
    assert AnthropicCodec().decode(body(tools=[tool]), {}, Rules()).tools[0].input_schema["type"] == "object"


@pytest.mark.parametrize(
    ("fields", "limit"),
    [
        ({"input_schema": {"type": "object", "enum": [0] * 10_000}}, "input_schema: more than 10000 JSON values"),
        ({"input_examples": [{"a": [0] * 500}]}, "input_examples.0: more than 500 JSON values"),
    ],
)
def test_schemas_and_examples_are_of_bounded_size(fields: dict[str, Any], limit: str) -> None:
    assert message_of(body(tools=[TOOL | fields])).startswith(f"tools.0.custom.{limit}")


def test_a_refused_thread_carries_the_code_that_sdks_recover_from() -> None:
    with pytest.raises(ApiError) as caught:
        AnthropicCodec().decode(body(thread={"type": "create"}), {}, Rules())
    assert caught.value.anthropic()["error"]["details"]["error_code"] == "thread_unsupported_request"
