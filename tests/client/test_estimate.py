"""Guesses by character count, and how they yield to real counts."""

from __future__ import annotations

import pytest

from llmlab.client.estimate import context_tokens, estimate, estimate_text, is_json, layered, reconcile


def test_the_rules_for_text_json_and_tools():
    assert estimate_text("x" * 265) == 66
    assert estimate_text('{"a": "' + "x" * 127 + '"}') == 68
    tool = {"name": "t", "input_schema": {}}
    assert estimate({"tools": [tool]}).total == round(len('{"name":"t","input_schema":{}}') / 2.5)


def test_halves_are_rounded_up():
    assert [estimate_text("x" * n) for n in (1, 2, 6, 10)] == [0, 1, 2, 3]


@pytest.mark.parametrize(("text", "expected"), [("[1]", True), (' {"a": 1}', True), ("[1", False), ("1", False)])
def test_what_counts_as_json(text, expected):
    assert is_json(text) is expected


def test_deeply_nested_brackets_are_survived():
    assert is_json("[" * 200_000) is False


def test_every_part_is_listed_and_the_total_is_their_sum():
    content = [
        {"type": "text", "text": "x" * 40},
        {"type": "tool_use", "id": "1", "name": "t", "input": {"a": 1}},
        {"type": "tool_result", "tool_use_id": "1", "content": [{"type": "text", "text": "y" * 8}, {"type": "image"}]},
        {"type": "thinking", "thinking": "z" * 4, "signature": "long" * 100},
    ]
    found = estimate({"system": "s" * 4, "messages": [{"role": "user", "content": content}]})
    assert [part.tokens for part in found.parts] == [1, 10, 4, 2, 0, 1]
    assert found.total == 18
    assert found.by_section() == {"tools": 0, "system": 1, "messages": 17}
    assert found.uncounted == ("messages.0.content.2.content.1",)


def test_a_cache_marker_costs_no_tokens():
    tool = {"name": "t", "input_schema": {}}
    assert estimate({"tools": [tool | {"cache_control": {"type": "ephemeral"}}]}) == estimate({"tools": [tool]})


def test_reconciling_says_how_wrong_it_was():
    found = reconcile(estimate({"system": "中" * 82}), 100)
    assert (found.estimated, found.exact) == (21, 100)
    assert found.error == pytest.approx(-0.79)
    assert found.chars_per_token == pytest.approx(0.82)


def test_the_last_usage_is_trusted_and_only_what_follows_is_estimated():
    usage = {"input_tokens": 5, "cache_read_input_tokens": 100, "cache_creation_input_tokens": None, "output_tokens": 7}
    turns = [{"role": "user", "content": "中" * 500}, {"role": "assistant", "content": "b" * 80}]
    found = layered(usage, {"messages": [*turns, {"role": "user", "content": "x" * 40}]}, answered=2)
    assert context_tokens(usage) == 112
    assert (found.trusted, found.added, found.total) == (112, 10, 122)


def test_without_usage_all_is_estimated():
    found = layered(None, {"messages": [{"role": "user", "content": "x" * 40}]}, 0)
    assert (found.trusted, found.added) == (0, 10)
