"""Replies as the Messages API sends them, frame by frame."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from llmlab.api.anthropic import AnthropicCodec
from llmlab.api.conversation import ClearToolUses, Conversation, Text, ThinkingMode, Turn
from llmlab.api.errors import ApiError
from llmlab.api.reply import BlockDelta, BlockStart, BlockStop, Ended, ReplyEvent, ReplyInfo, SampleEnd, Started
from llmlab.api.usage import Usage

INFO = ReplyInfo("msg_1", "mock", 0, service_tier="priority", speed="fast", inference_geo="us")
ASKED = Conversation(protocol="anthropic", model="mock", turns=(Turn("user", (Text("hi"),)),))
PROMPT = Usage(3, 4, 5, 6)
SPENT = replace(PROMPT, output=9, thinking=2)


def block(index: int, kind: Any, *texts: str, signature: str = "") -> list[ReplyEvent]:
    named = {"id": "toolu_1", "name": "add"} if kind == "tool_use" else {}
    deltas = [BlockDelta(0, index, text) for text in texts]
    return [BlockStart(0, index, kind, **named), *deltas, BlockStop(0, index, signature)]


def reply(
    *blocks: list[ReplyEvent], stop: Any = "end_turn", sequence: str | None = None, **end: Any
) -> list[ReplyEvent]:
    inner = [event for events in blocks for event in events]
    return [Started(PROMPT), *inner, SampleEnd(0, stop, sequence), Ended(SPENT, **end)]


def frames(events: list[ReplyEvent], asked: Conversation = ASKED) -> list[dict[str, Any]]:
    encoder = AnthropicCodec().stream(INFO, asked)
    return parse(b"".join(encoder.encode(event) for event in events))


def parse(stream: bytes) -> list[dict[str, Any]]:
    """The data of each frame, once its form has been checked: an event line, one data line, a blank line."""
    assert stream.endswith(b"\n\n")
    found = []
    for frame in stream.decode().split("\n\n")[:-1]:
        event, data = frame.split("\n")
        found.append(json.loads(data.removeprefix("data: ")))
        assert event == f"event: {found[-1]['type']}"
    return found


def body(events: list[ReplyEvent], asked: Conversation = ASKED) -> dict[str, Any]:
    collector = AnthropicCodec().collect(INFO, asked)
    for event in events:
        collector.add(event)
    return collector.body()


def start(index: int, content: dict[str, Any]) -> dict[str, Any]:
    return {"type": "content_block_start", "index": index, "content_block": content}


def delta(index: int, kind: str, name: str, text: str) -> dict[str, Any]:
    return {"type": "content_block_delta", "index": index, "delta": {"type": kind, name: text}}


def stopped(index: int) -> dict[str, Any]:
    return {"type": "content_block_stop", "index": index}


MIXED = reply(
    block(0, "thinking", "h", "m", signature="sig"),
    block(1, "text", "", "a\n\nb", "\u2028"),
    block(2, "tool_use", '{"a"', "", ": 1}"),
    stop="tool_use",
)


def test_blocks_of_all_kinds_in_their_order() -> None:
    call = {"type": "tool_use", "id": "toolu_1", "name": "add", "input": {}}
    assert frames(MIXED)[1:-2] == [
        start(0, {"type": "thinking", "thinking": "", "signature": ""}),
        {"type": "ping"},
        delta(0, "thinking_delta", "thinking", "h"),
        delta(0, "thinking_delta", "thinking", "m"),
        delta(0, "signature_delta", "signature", "sig"),
        stopped(0),
        start(1, {"type": "text", "text": ""}),
        delta(1, "text_delta", "text", "a\n\nb"),
        delta(1, "text_delta", "text", "\u2028"),
        stopped(1),
        start(2, call),
        delta(2, "input_json_delta", "partial_json", ""),
        delta(2, "input_json_delta", "partial_json", '{"a"'),
        delta(2, "input_json_delta", "partial_json", ": 1}"),
        stopped(2),
    ]


def test_the_frames_around_the_blocks() -> None:
    first, *_, last_but_one, last = frames(MIXED)
    counts = {"input_tokens": 3, "cache_creation_input_tokens": 11, "cache_read_input_tokens": 4}
    assert first["type"] == "message_start"
    message = first["message"]
    assert (message["id"], message["model"], message["role"], message["content"]) == ("msg_1", "mock", "assistant", [])
    assert (message["stop_reason"], message["stop_sequence"]) == (None, None)
    assert message["usage"] == counts | {
        "cache_creation": {"ephemeral_5m_input_tokens": 5, "ephemeral_1h_input_tokens": 6},
        "output_tokens": 1,
        "output_tokens_details": {"thinking_tokens": 0},
        "service_tier": "priority",
        "speed": "fast",
        "inference_geo": "us",
    }
    assert last_but_one == {
        "type": "message_delta",
        "delta": {"stop_reason": "tool_use", "stop_sequence": None, "stop_details": None, "container": None},
        "usage": counts | {"output_tokens": 9, "output_tokens_details": {"thinking_tokens": 2}},
    }
    assert last == {"type": "message_stop"}


def test_the_same_reply_in_one_piece() -> None:
    found = body(MIXED)
    assert found["content"] == [
        {"type": "thinking", "thinking": "hm", "signature": "sig"},
        {"type": "text", "text": "a\n\nb\u2028"},
        {"type": "tool_use", "id": "toolu_1", "name": "add", "input": {"a": 1}},
    ]
    assert {name: found[name] for name in ("id", "type", "role", "model", "stop_reason", "stop_sequence")} == {
        "id": "msg_1",
        "type": "message",
        "role": "assistant",
        "model": "mock",
        "stop_reason": "tool_use",
        "stop_sequence": None,
    }
    assert (found["stop_details"], found["container"], found["diagnostics"]) == (None, None, None)
    assert found["usage"] == SPENT.anthropic() | {"service_tier": "priority", "speed": "fast", "inference_geo": "us"}


def test_a_reply_without_blocks() -> None:
    assert [frame["type"] for frame in frames(reply())] == ["message_start", "message_delta", "message_stop"]
    assert (body(reply())["content"], body(reply())["stop_reason"]) == ([], "end_turn")


def test_a_prewarm_has_no_output() -> None:
    asked = replace(ASKED, prewarm=True)
    assert frames([Started(PROMPT)], asked)[0]["message"]["usage"]["output_tokens"] == 0
    found = body([Started(PROMPT), SampleEnd(0, "max_tokens"), Ended(PROMPT)], asked)
    assert (found["content"], found["stop_reason"], found["usage"]["output_tokens"]) == ([], "max_tokens", 0)


def test_omitted_thinking_leaves_its_signature() -> None:
    asked = replace(ASKED, thinking=ThinkingMode(20, "omitted"))
    events = reply(block(0, "thinking", "secret", signature="sig"), block(1, "text", "a"))
    deltas = [frame["delta"]["type"] for frame in frames(events, asked) if frame["type"] == "content_block_delta"]
    assert deltas == ["signature_delta", "text_delta"]
    assert body(events, asked)["content"][0] == {"type": "thinking", "thinking": "", "signature": "sig"}


@pytest.mark.parametrize(
    ("stop", "sequence", "reason"),
    [
        ("end_turn", None, "end_turn"),
        ("max_tokens", None, "max_tokens"),
        ("stop_sequence", "END", "stop_sequence"),
        ("tool_use", None, "tool_use"),
        ("context_window", None, "model_context_window_exceeded"),
    ],
)
def test_why_it_stopped(stop: Any, sequence: str | None, reason: str) -> None:
    events = reply(block(0, "text", "a"), stop=stop, sequence=sequence)
    streamed, whole = frames(events)[-2]["delta"], body(events)
    for found in (streamed, whole):
        assert (found["stop_reason"], found["stop_sequence"], found["stop_details"]) == (reason, sequence, None)


def test_a_refusal_has_details() -> None:
    details = {"type": "refusal", "category": None, "explanation": None}
    assert body(reply(stop="refusal"))["stop_details"] == details
    assert frames(reply(stop="refusal"))[-2]["delta"]["stop_details"] == details


def test_edits_are_reported_to_who_asked_for_them() -> None:
    edit = {"type": "clear_tool_uses_20250919", "cleared_input_tokens": 5, "cleared_tool_uses": 1}
    asked = replace(ASKED, edits=(ClearToolUses(),))
    assert body(reply(applied_edits=(edit,)), asked)["context_management"] == {"applied_edits": [edit]}
    assert frames(reply(applied_edits=(edit,)), asked)[-2]["context_management"] == {"applied_edits": [edit]}
    assert body(reply(), asked)["context_management"] == {"applied_edits": []}
    assert "context_management" not in body(reply())
    assert "context_management" not in frames(reply())[-2]


def test_diagnostics_come_with_the_first_frame() -> None:
    reason = {"cache_miss_reason": {"type": "tools_changed", "cache_missed_input_tokens": 5}}
    events = [Started(PROMPT, diagnostics=reason), *reply()[1:]]
    assert frames(events)[0]["message"]["diagnostics"] == reason
    assert body(events)["diagnostics"] == reason


def test_iterations_are_reported_to_the_beta_surface_where_the_backend_counted_them() -> None:
    item = {"type": "message", "input_tokens": 3}
    counted, beta = reply(extra={"iterations": [item], "other": 1}), replace(ASKED, beta=True)
    assert body(counted, beta)["usage"]["iterations"] == [item]
    assert frames(counted, beta)[-2]["usage"]["iterations"] == [item]
    assert "iterations" not in body(reply(), beta)["usage"]
    assert "iterations" not in body(counted)["usage"]
    assert "iterations" not in frames(counted)[-2]["usage"]


@pytest.mark.parametrize(
    ("texts", "arguments"),
    [
        ([], {}),
        ([""], {}),
        (['{"b": 1, "a": [2]}'], {"b": 1, "a": [2]}),
        (['{"a": 1, "b": "cut sho'], {"a": 1}),
        (['{"a": {"b": [1, 2'], {"a": {"b": [1, 2]}}),
        (["no json"], {}),
        (["[1]"], {}),
        (['{"a": 1e400}'], {}),
        (['{"a": NaN}'], {}),
        (['{"a": "\\ud800"}'], {}),
    ],
)
def test_arguments_of_a_call(texts: list[str], arguments: dict[str, Any]) -> None:
    found = body(reply(block(0, "tool_use", *texts), stop="max_tokens"))
    assert found["content"][0]["input"] == arguments


def test_pings_and_errors() -> None:
    encoder = AnthropicCodec().stream(INFO, ASKED)
    assert encoder.ping() == b'event: ping\ndata: {"type":"ping"}\n\n'
    error = {"type": "overloaded_error", "message": "busy"}
    assert parse(encoder.error(ApiError("overloaded_error", "busy"))) == [{"type": "error", "error": error}]


def test_error_bodies_carry_the_request_id() -> None:
    codec = AnthropicCodec()
    found = codec.error_body(ApiError("not_found_error", "no such model"), "req_1")
    error = {"type": "not_found_error", "message": "no such model"}
    assert found == {"type": "error", "error": error, "request_id": "req_1"}
    assert codec.request_id_header() == "request-id"
