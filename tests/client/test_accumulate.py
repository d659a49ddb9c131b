"""Append, replace, snapshot: the three semantics of a stream, and what must not be executed."""

from __future__ import annotations

import json

import pytest
from scripted_server import HELLO, block, end, start, text, thinking, tool

from llmlab.client.accumulate import Accumulator
from llmlab.client.lifecycle import Lifecycle


def build(*events) -> Accumulator:
    accumulator, lifecycle = Accumulator(), Lifecycle()
    for event in events:
        lifecycle.check(event)
        accumulator.add(event)
    return accumulator


ARGUMENTS = {"text": 'quote " 😀 \u00e9\n', "n": [1, {"a": None}]}
ESCAPED = json.dumps(ARGUMENTS)


def test_text_is_appended():
    message = build(*HELLO).message
    assert (message.text, message.stop_reason, message.is_complete) == ("Hello", "end_turn", True)


def test_text_can_be_read_at_any_time():
    accumulator = Accumulator()
    seen = [(accumulator.add(event), accumulator.message.text)[1] for event in HELLO]
    assert seen == ["", "", "", "Hel", "Hello", "Hello", "Hello", "Hello"]


def test_text_of_the_start_is_kept_and_appended_to():
    message = build(start(), *block(0, "text", {"type": "text_delta", "text": "b"}, text="a"), *end()).message
    assert message.text == "ab"


def test_a_block_of_an_unknown_type_may_mix_its_deltas():
    deltas = [{"type": "text_delta", "text": "a"}, {"type": "thinking_delta", "thinking": "b"}]
    message = build(start(), *block(0, "novel", *deltas, deltas[0]), *end()).message
    assert message.content == [{"type": "novel", "text": "aa", "thinking": "b"}]


def test_signature_is_replaced():
    deltas = [{"type": "thinking_delta", "thinking": part} for part in ("a", "b")]
    signatures = [{"type": "signature_delta", "signature": part} for part in ("first", "second")]
    message = build(start(), *block(0, "thinking", *deltas, *signatures, thinking="", signature=""), *end()).message
    assert message.content == [{"type": "thinking", "thinking": "ab", "signature": "second"}]


def test_usage_is_a_snapshot_and_missing_counts_stay():
    first = end(output_tokens=4, cache_read_input_tokens=None)[0]
    message = build(start(cache_read_input_tokens=5), first, *end(output_tokens=9)).message
    assert message.usage == {"input_tokens": 7, "cache_read_input_tokens": 5, "output_tokens": 9}


@pytest.mark.parametrize("text", [ESCAPED, json.dumps(ARGUMENTS, ensure_ascii=False)])
def test_arguments_are_the_same_wherever_they_were_cut(text):
    for at in range(len(text) + 1):
        message = build(start(), *tool(0, "", text[:at], text[at:]), *end("tool_use")).message
        assert message.tool_uses[0]["input"] == ARGUMENTS


@pytest.mark.parametrize("parts", [(), ("",), ("", "")])
def test_no_arguments_are_an_empty_object(parts):
    message = build(start(), *tool(0, *parts), *end("tool_use")).message
    assert message.tool_uses == [{"type": "tool_use", "id": "toolu_0", "name": "add", "input": {}}]


def test_input_of_the_start_is_not_a_base():
    deltas = [{"type": "input_json_delta", "partial_json": '{"b":2}'}]
    message = build(start(), *block(0, "tool_use", *deltas, id="t", name="n", input={"a": 1}), *end()).message
    assert message.tool_uses[0]["input"] == {"b": 2}


def test_input_of_the_start_counts_when_nothing_follows():
    message = build(start(), *block(0, "tool_use", id="t", name="n", input={"a": 1}), *end()).message
    assert message.tool_uses[0]["input"] == {"a": 1}


@pytest.mark.parametrize("bad", ['{"a": 1', "[1]", "3", '{"a": NaN}', "[" * 100_000])
def test_arguments_that_are_not_an_object_are_kept_as_text(bad):
    message = build(start(), *tool(0, bad), *end("tool_use")).message
    assert (message.tool_uses, message.incomplete_tool_uses[0]["partial_json"]) == ([], bad)


@pytest.mark.parametrize("reason", ["max_tokens", "model_context_window_exceeded"])
@pytest.mark.parametrize("parts", [(), ('{"a": 1',), ('{"a": 1}',)])
def test_call_at_the_end_of_a_cut_answer_is_never_executable(reason, parts):
    message = build(start(), *tool(0, "{}"), *tool(1, *parts), *end(reason)).message
    assert [use["id"] for use in message.tool_uses] == ["toolu_0"]
    assert message.incomplete_tool_uses[0]["partial_json"] == "".join(parts)
    assert [block["id"] for block in message.turn()["content"]] == ["toolu_0"]


@pytest.mark.parametrize("seen", range(1, 4))
def test_open_call_is_never_executable(seen):
    message = build(start(), *tool(0, '{"a"', ":1}")[:seen]).message
    assert message.tool_uses == []
    assert message.incomplete_tool_uses[0]["partial_json"] == ("", '{"a"', '{"a":1}')[seen - 1]


def test_citations_are_appended():
    deltas = [{"type": "citations_delta", "citation": {"n": n}} for n in (1, 2)]
    message = build(start(), *block(0, "text", *deltas, text="", citations=None), *end()).message
    assert message.content[0]["citations"] == [{"n": 1}, {"n": 2}]


def test_unknown_things_are_kept_aside():
    novel, event = {"type": "novel_delta", "x": 1}, {"type": "novelty"}
    message = build(start(), event, *block(0, "text", novel, text="a"), *end()).message
    assert message.text == "a"
    assert [each["type"] for each in message.unknown] == ["novelty", "content_block_delta"]


def test_blocks_that_come_whole_are_untouched():
    message = build(start(), *block(0, "redacted_thinking", data="xyz"), *end()).message
    assert message.content == [{"type": "redacted_thinking", "data": "xyz"}]


def test_complete_blocks_are_kept_without_the_open_one():
    accumulator = build(start(), *text(0, "a"), *tool(1, "{}"), *tool(2, '{"x"')[:2])
    message = accumulator.keep_complete_blocks("dropped")
    assert [b["type"] for b in message.content] == ["text", "tool_use"]
    assert (message.stop_reason, message.cut_off, message.is_complete) == ("tool_use", "dropped", False)
    assert accumulator.message is message
    assert message.incomplete_tool_uses == []


def test_edits_and_diagnostics_are_kept():
    begin, (delta, stop) = start(), end()
    begin["message"]["diagnostics"] = {"cache_miss_reason": None}
    delta["context_management"] = {"applied_edits": []}
    message = build(begin, *thinking(0, "a"), delta, stop).message
    assert (message.diagnostics, message.context_management) == ({"cache_miss_reason": None}, {"applied_edits": []})
