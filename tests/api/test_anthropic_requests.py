"""What a Messages request becomes in the internal form."""

from __future__ import annotations

from typing import Any

import pytest

from llmlab.api.anthropic import AnthropicCodec
from llmlab.api.conversation import (
    CacheMarker,
    ClearThinking,
    ClearToolUses,
    Conversation,
    OutputFormat,
    Text,
    Thinking,
    ThinkingMode,
    Tool,
    ToolChoice,
    ToolResult,
    ToolUse,
    Turn,
)
from llmlab.api.rules import Rules
from llmlab.engine.params import SamplingParams

FIRST = {"anthropic-version": "2023-06-01"}
LATEST = {"anthropic-version": "2026-10-21"}
USER = {"role": "user", "content": "hi"}
TOOL = {"name": "add", "input_schema": {"type": "object"}}


def text(value: str = "x", **fields: Any) -> dict[str, Any]:
    return {"type": "text", "text": value, **fields}


def said(role: str, *content: Any) -> dict[str, Any]:
    return {"role": role, "content": list(content)}


def decode(headers: dict[str, str] | None = None, rules: Rules | None = None, **fields: Any) -> Conversation:
    body = {"model": "m", "max_tokens": 100, "messages": [USER], **fields}
    return AnthropicCodec().decode(body, headers or {}, rules or Rules())


def test_the_least_request_is_greedy() -> None:
    found = decode()
    assert found == Conversation(
        protocol="anthropic",
        model="m",
        turns=(Turn("user", (Text("hi"),)),),
        tool_choice=ToolChoice("none"),
        sampling={"max_tokens": 100},
    )
    assert SamplingParams.from_kwargs(**found.sampling).greedy


def test_sampling_fields_are_keywords_of_the_engine() -> None:
    found = decode(temperature=1, top_p=0.5, top_k=4, stop_sequences=["END", " ."]).sampling
    expected = SamplingParams(max_tokens=100, temperature=1.0, top_p=0.5, top_k=4, stop=("END", " ."))
    assert SamplingParams.from_kwargs(**found) == expected


@pytest.mark.parametrize(
    ("headers", "rules"), [({}, Rules()), (FIRST, Rules()), (LATEST, Rules(lenient_sampling=True))]
)
def test_where_sampling_fields_are_taken(headers: dict[str, str], rules: Rules) -> None:
    assert decode(headers, rules, temperature=0.5).sampling["temperature"] == 0.5


def test_any_beta_is_taken() -> None:
    assert decode({"anthropic-beta": "what-ever-2031-01-01,thinking-2024"}).model == "m"


def test_neighbours_of_one_role_are_merged() -> None:
    messages = [USER, said("user", text("there")), said("assistant", text("yo")), said("assistant", text("man")), USER]
    assert decode(messages=messages).turns == (
        Turn("user", (Text("hi"), Text("there"))),
        Turn("assistant", (Text("yo"), Text("man"))),
        Turn("user", (Text("hi"),)),
    )


def test_results_of_several_messages_answer_one_turn() -> None:
    calls = [{"type": "tool_use", "id": f"toolu_{n}", "name": "add", "input": {"b": n, "a": 0}} for n in (1, 2)]
    results = [{"type": "tool_result", "tool_use_id": f"toolu_{n}"} for n in (2, 1)]
    messages = [USER, said("assistant", *calls), said("user", results[0]), said("user", results[1], text("go on"))]
    found = decode(messages=messages)
    assert found.turns[1].blocks[0] == ToolUse("toolu_1", "add", {"b": 1, "a": 0})
    assert list(found.turns[1].blocks[0].input) == ["b", "a"]
    assert found.turns[2].blocks == (ToolResult("toolu_2"), ToolResult("toolu_1"), Text("go on"))


def test_blocks_of_all_kinds() -> None:
    document = {"type": "document", "title": "T", "context": "C"}
    plain = document | {"source": {"type": "text", "media_type": "text/plain", "data": "D"}}
    blocks = document | {"source": {"type": "content", "content": [text("D"), text("E")]}}
    found = {"type": "search_result", "title": "T", "source": "S", "content": [text("R")], **mark("5m")}
    call = {"type": "tool_use", "id": "toolu_1", "name": "add", "input": {}, "caller": None}
    result = {"type": "tool_result", "tool_use_id": "toolu_1", "is_error": True, "content": [text("bad"), plain]}
    thinking = {"type": "thinking", "thinking": "hm", "signature": "sig"}
    redacted = {"type": "redacted_thinking", "data": "xyz"}
    messages = [
        said("user", plain, blocks, found),
        said("assistant", thinking, redacted, call),
        said("user", result),
    ]
    turns = decode(messages=messages).turns
    assert turns[0].blocks == (Text("T\nC\nD"), Text("T\nC\nD\nE"), Text("T\nS\nR", CacheMarker("5m")))
    assert turns[1].blocks[:2] == (Thinking("hm", "sig"), Thinking("xyz", redacted=True))
    assert turns[2].blocks == (ToolResult("toolu_1", (Text("bad"), Text("T\nC\nD")), is_error=True),)


def mark(ttl: str) -> dict[str, Any]:
    return {"cache_control": {"type": "ephemeral", "ttl": ttl}}


def test_empty_texts_are_left_out() -> None:
    found = decode(system=[text(""), text("be brief")], messages=[said("user", text(""), text("hi"))])
    assert (found.system, found.turns[0].blocks) == ((Text("be brief"),), (Text("hi"),))


def test_system_as_a_string_and_as_a_turn() -> None:
    found = decode(system="be brief", messages=[USER, said("system", text("a")), said("system", text("b"))])
    assert found.system == (Text("be brief"),)
    assert found.turns[1] == Turn("system", (Text("a"), Text("b")))
    assert not found.continue_last


def test_prefill_is_continued() -> None:
    found = decode(messages=[USER, said("assistant", text("The best is ("))])
    assert found.continue_last
    assert found.turns[-1] == Turn("assistant", (Text("The best is ("),))


def test_an_empty_last_answer_is_no_prefill() -> None:
    found = decode(messages=[USER, {"role": "assistant", "content": ""}])
    assert (len(found.turns), found.continue_last) == (1, False)


def test_tools_and_choices() -> None:
    schema = {"type": "object", "properties": {"a": {"type": "number"}}, "required": ["a"]}
    full = {"name": "sub", "description": "d", "input_schema": schema, "strict": True, "type": "custom"}
    full |= {"input_examples": [{"a": 1}], **mark("1h")}
    found = decode(tools=[TOOL, full])
    assert found.tools == (Tool("add"), Tool("sub", "d", schema, strict=True, marker=CacheMarker("1h")))
    assert found.tool_choice == ToolChoice("auto")


@pytest.mark.parametrize(
    ("choice", "expected"),
    [
        ({"type": "auto"}, ToolChoice("auto")),
        ({"type": "any", "disable_parallel_tool_use": True}, ToolChoice("any", parallel=False)),
        ({"type": "tool", "name": "add"}, ToolChoice("tool", "add")),
        ({"type": "none"}, ToolChoice("none")),
    ],
)
def test_choice_of_tools(choice: dict[str, Any], expected: ToolChoice) -> None:
    assert decode(tools=[TOOL], tool_choice=choice).tool_choice == expected


@pytest.mark.parametrize(
    ("thinking", "expected", "ignored"),
    [
        ({"type": "enabled", "budget_tokens": 20}, ThinkingMode(20), ()),
        ({"type": "enabled", "budget_tokens": 20, "display": "omitted"}, ThinkingMode(20, "omitted"), ()),
        ({"type": "adaptive"}, ThinkingMode(None), ()),
        ({"type": "adaptive", "display": "updates"}, ThinkingMode(None), ("thinking.display",)),
        ({"type": "disabled"}, None, ()),
        ({"type": "between_tools"}, None, ("thinking",)),
    ],
)
def test_thinking(thinking: dict[str, Any], expected: ThinkingMode | None, ignored: tuple[str, ...]) -> None:
    found = decode(thinking=thinking)
    assert (found.thinking, found.ignored) == (expected, ignored)


def test_sampling_that_goes_with_thinking() -> None:
    found = decode(thinking={"type": "adaptive"}, temperature=1, top_p=0.95)
    assert found.sampling == {"max_tokens": 100, "temperature": 1, "top_p": 0.95}


def test_forced_tools_go_with_adaptive_thinking() -> None:
    assert decode(tools=[TOOL], tool_choice={"type": "any"}, thinking={"type": "adaptive"}).thinking


def test_prewarm_asks_for_no_output() -> None:
    found = decode(max_tokens=0)
    assert found.prewarm
    assert SamplingParams.from_kwargs(**found.sampling).max_tokens == 1


def test_output_format() -> None:
    schema = {"type": "object", "properties": {"a": {"const": 1}}}
    found = decode(output_config={"format": {"type": "json_schema", "schema": schema}, "effort": "low"})
    assert (found.format, found.ignored) == (OutputFormat(schema), ("output_config.effort",))


@pytest.mark.parametrize(
    ("edit", "expected"),
    [
        ({"type": "clear_tool_uses_20250919"}, ClearToolUses()),
        (
            {
                "type": "clear_tool_uses_20250919",
                "trigger": {"type": "tool_uses", "value": 5},
                "keep": {"type": "tool_uses", "value": 0},
                "clear_at_least": {"type": "input_tokens", "value": 7},
                "exclude_tools": ["edit"],
                "clear_tool_inputs": ["read"],
            },
            ClearToolUses("tool_uses", 5, 0, 7, ("edit",), ("read",)),
        ),
        ({"type": "clear_tool_uses_20250919", "clear_tool_inputs": True}, ClearToolUses(clear_inputs=True)),
        ({"type": "clear_thinking_20251015"}, ClearThinking(1)),
        ({"type": "clear_thinking_20251015", "keep": {"type": "thinking_turns", "value": 2}}, ClearThinking(2)),
        ({"type": "clear_thinking_20251015", "keep": {"type": "all"}}, ClearThinking(None)),
        ({"type": "clear_thinking_20251015", "keep": "all"}, ClearThinking(None)),
    ],
)
def test_context_edits(edit: dict[str, Any], expected: ClearToolUses | ClearThinking) -> None:
    assert decode(context_management={"edits": [edit]}).edits == (expected,)


def test_facts_about_the_request() -> None:
    found = decode(
        stream=True,
        metadata={"user_id": "u"},
        service_tier="standard_only",
        speed="fast",
        inference_geo="us",
        diagnostics={"previous_message_id": "msg_1"},
    )
    assert (found.stream, found.user, found.service_tier) == (True, "u", "standard_only")
    assert (found.speed, found.inference_geo) == ("fast", "us")
    assert (found.wants_diagnostics, found.previous_message_id) == (True, "msg_1")


@pytest.mark.parametrize(("diagnostics", "wanted"), [({"previous_message_id": None}, True), ({}, True), (None, False)])
def test_diagnostics_of_a_first_turn(diagnostics: Any, wanted: bool) -> None:
    found = decode(diagnostics=diagnostics)
    assert (found.wants_diagnostics, found.previous_message_id) == (wanted, None)


def test_fields_without_effect_are_listed() -> None:
    found = decode(
        container="c",
        mcp_servers=[{"type": "url", "name": "n", "url": "u"}],
        fallbacks=[{"model": "m2"}],
        fallback_credit_token="t",
        billing_policy={"type": "billing_policy"},
        metadata={},
        output_config={"effort": "max", "task_budget": {"type": "tokens", "total": 9}},
        thinking={"type": "adaptive", "block_binding": {"prefix_mismatch_behavior": "error"}},
        tools=[TOOL | {"eager_input_streaming": True, "defer_loading": True, "allowed_callers": ["direct"]}],
    )
    assert set(found.ignored) == {
        "container",
        "mcp_servers",
        "fallbacks",
        "fallback_credit_token",
        "billing_policy",
        "metadata",
        "output_config.effort",
        "output_config.task_budget",
        "thinking.block_binding",
        "tools.0.eager_input_streaming",
        "tools.0.defer_loading",
        "tools.0.allowed_callers",
    }


def test_counting_reads_the_prompt_only() -> None:
    codec = AnthropicCodec()
    prompt = {"model": "m", "messages": [USER], "system": "s", "tools": [TOOL]}
    thinking = {"thinking": {"type": "enabled", "budget_tokens": 5000}}
    counted = codec.decode_count(prompt | thinking, LATEST, Rules())
    sent = codec.decode(prompt | {"max_tokens": 9}, LATEST, Rules())
    assert (counted.turns, counted.system, counted.tools) == (sent.turns, sent.system, sent.tools)
    assert (counted.sampling, counted.thinking) == ({}, ThinkingMode(5000))
