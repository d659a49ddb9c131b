"""Tool calls are found in text however it is split, and nothing of their form is shown."""

from __future__ import annotations

import json
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmlab.gateway.tool_calls import ToolCallParser

ARGUMENTS = r'{"city": "Zür\"ich {[\\", "days": [1, {"x": "}"}], "e": "\ud83d\ude00"}'
CALL = '<tool_call>\n{"name": "weather", "arguments": ' + ARGUMENTS + "}\n</tool_call>"
TWO = f"Let me look.\n{CALL}\n{CALL}"


def parse(pieces: list[str], cut: bool = False) -> list[tuple[str, str]]:
    """What came out, neighbouring text and argument fragments joined."""
    parser, found = ToolCallParser(), []
    for piece in [p for text in pieces for p in parser.feed(text)] + list(parser.finish(cut)):
        if found and piece.kind == found[-1][0] and piece.kind in ("text", "arguments"):
            found[-1] = (piece.kind, found[-1][1] + piece.text)
        else:
            found.append((piece.kind, piece.text))
    return found


CALLED = [("call", "weather"), ("arguments", ARGUMENTS), ("end", "")]


@pytest.mark.parametrize("size", [1, 2, 3, 7, 1000])
def test_any_split_gives_the_same_calls_and_text(size):
    pieces = [TWO[i : i + size] for i in range(0, len(TWO), size)]
    assert parse(pieces) == [("text", "Let me look."), *CALLED, *CALLED]


@given(st.lists(st.integers(0, len(TWO)), max_size=12))
def test_random_splits_give_the_same_calls_and_text(cuts):
    edges = [0, *sorted(cuts), len(TWO)]
    pieces = [TWO[a:b] for a, b in pairwise(edges)]
    assert parse(pieces) == [("text", "Let me look."), *CALLED, *CALLED]


def test_arguments_come_before_the_call_is_complete():
    parser = ToolCallParser()
    list(parser.feed('<tool_call>{"name": "f", "arguments": '))
    first = [(p.kind, p.text) for p in parser.feed('{"a')]
    second = [(p.kind, p.text) for p in parser.feed('": 1')]
    assert first == [("call", "f"), ("arguments", '{"a')]
    assert second == [("arguments", '": 1')]
    assert parser.num_calls == 0


def test_a_beginning_marker_is_held_back_and_shown_only_if_it_was_none():
    parser = ToolCallParser()
    assert [p.text for p in parser.feed("a <tool_c")] == ["a"]
    assert "".join(p.text for p in parser.feed("at>")) == " <tool_cat>"


@pytest.mark.parametrize("text", ["no call here ", "a < b", "line\n", "<tool_calls>", "<think>x</think>"])
def test_text_without_a_call_is_unchanged(text):
    assert parse(list(text)) == [("text", text)]


def test_a_marker_that_was_cut_off_is_not_shown_and_one_that_ended_is():
    assert parse(["so <tool_ca"], cut=True) == [("text", "so")]
    assert parse(["so <tool_ca"], cut=False) == [("text", "so <tool_ca")]


def test_a_call_cut_in_its_arguments_keeps_what_is_there():
    assert parse(['<tool_call>{"name": "f", "arguments": {"a": "b'], cut=True) == [
        ("call", "f"),
        ("arguments", '{"a": "b'),
        ("end", ""),
    ]


def test_a_call_cut_after_its_name_has_no_arguments_yet():
    assert parse(['<tool_call>\n{"name": "f", "argu'], cut=True) == [("call", "f"), ("end", "")]
    assert parse(['<tool_call>\n{"name": "f'], cut=True) == []


def test_a_cut_call_does_not_count_as_made():
    parser = ToolCallParser()
    list(parser.feed('<tool_call>{"name": "f", "arguments": {"a": '))
    list(parser.finish(cut=True))
    assert parser.num_calls == 0


def test_keys_in_another_order_are_understood_once_the_call_is_closed():
    text = '<tool_call>{"arguments": {"a": 1}, "name": "f"}</tool_call>'
    assert parse(list(text)) == [("call", "f"), ("arguments", '{"a": 1}'), ("end", "")]


@pytest.mark.parametrize("inside", ["nonsense", '{"name": 3, "arguments": {}}', '{"name": "f", "arguments": [1]}', ""])
def test_what_names_no_tool_is_text(inside):
    text = f"<tool_call>{inside}</tool_call>"
    assert parse(list(text)) == [("text", text)]


def test_a_call_that_never_names_a_tool_is_given_up_as_text():
    text = "<tool_call>" + "x" * 5000
    assert parse([text[i : i + 100] for i in range(0, len(text), 100)]) == [("text", text)]


def test_text_goes_on_after_a_call_that_was_not_closed():
    assert parse(['<tool_call>{"name": "f", "arguments": {}} and so on']) == [
        ("call", "f"),
        ("arguments", "{}"),
        ("end", ""),
        ("text", "and so on"),
    ]


objects = st.dictionaries(
    st.text(), st.recursive(st.integers() | st.text() | st.booleans(), lambda x: st.lists(x, max_size=3)), max_size=4
)


@given(objects, st.booleans(), st.integers(1, 9))
def test_arguments_come_out_exactly_as_written(value, ascii_only, size):
    written = json.dumps(value, ensure_ascii=ascii_only)
    text = '<tool_call>\n{"name": "f", "arguments": ' + written + "}\n</tool_call>"
    found = parse([text[i : i + size] for i in range(0, len(text), size)])
    assert found == [("call", "f"), ("arguments", written), ("end", "")]
