"""Why a prefix could not be reused, in the public wire's own words."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from llmlab.api.conversation import CacheMarker, Conversation, Text, Tool, Turn
from llmlab.gateway.cache_diagnostics import CacheDiagnostics, fingerprint

SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}, "unit": {"enum": ["C", "F"]}}}
BASE = Conversation(
    "anthropic",
    "model",
    (Turn("user", (Text("hello"),)),),
    system=(Text("Be brief."),),
    tools=(Tool("weather", "the weather", SCHEMA),),
)
LONGER = replace(BASE, turns=(*BASE.turns, Turn("assistant", (Text("hi"),)), Turn("user", (Text("more"),))))
ENDS = [40, 60, 75, 85, 95]


def compare(now: Conversation, model: str = "model", before: Conversation = BASE, tokens: int = 100):
    diagnostics = CacheDiagnostics()
    diagnostics.remember("msg_1", fingerprint(before, "model", 80))
    return diagnostics.compare("msg_1", fingerprint(now, model, tokens), ENDS)


def test_a_conversation_that_only_grew_missed_nothing():
    assert compare(LONGER) is None
    assert compare(BASE) is None


def test_moving_a_marker_changes_no_prompt():
    assert compare(replace(LONGER, system=(Text("Be brief.", CacheMarker("1h")),))) is None


@pytest.mark.parametrize(
    ("change", "kind", "missed"),
    [
        ({"tools": ()}, "tools_changed", 80),
        ({"system": (Text("Be long."),)}, "system_changed", 40),
        ({"turns": (Turn("user", (Text("hallo"),)), *LONGER.turns[1:])}, "messages_changed", 20),
    ],
)
def test_the_first_part_that_changed_is_named_with_the_tokens_it_cost(change, kind, missed):
    found = compare(replace(LONGER, **change))
    assert found == {"cache_miss_reason": {"type": kind, "cache_missed_input_tokens": missed}}


def test_a_speed_without_effect_costs_nothing():
    assert compare(replace(LONGER, speed="fast")) is None


def test_another_model_is_named_before_anything_else():
    found = compare(replace(LONGER, tools=()), model="another")
    assert found["cache_miss_reason"]["type"] == "model_changed"


def test_the_order_of_keys_in_a_tool_matters_and_serialising_it_again_does_not():
    again = json.loads(json.dumps(SCHEMA))
    shuffled = {"properties": SCHEMA["properties"], "type": "object"}
    assert compare(replace(LONGER, tools=(Tool("weather", "the weather", again),))) is None
    found = compare(replace(LONGER, tools=(Tool("weather", "the weather", shuffled),)))
    assert found["cache_miss_reason"]["type"] == "tools_changed"


def test_the_first_turn_has_nothing_to_compare_with():
    assert CacheDiagnostics().compare(None, fingerprint(BASE, "model", 80), ENDS) is None


def test_an_unknown_message_is_said_to_be_unknown():
    found = CacheDiagnostics().compare("msg_9", fingerprint(BASE, "model", 80), ENDS)
    assert found == {"cache_miss_reason": {"type": "previous_message_not_found"}}


def test_without_a_prefix_cache_nothing_can_be_said():
    found = CacheDiagnostics().compare("msg_9", fingerprint(BASE, "model", 80), ENDS, available=False)
    assert found == {"cache_miss_reason": {"type": "unavailable"}}


def test_only_the_latest_messages_are_remembered():
    diagnostics = CacheDiagnostics(capacity=2)
    print_ = fingerprint(BASE, "model", 80)
    for name in ("a", "b", "c"):
        diagnostics.remember(name, print_)
    assert diagnostics.compare("a", print_, ENDS) is not None
    assert diagnostics.compare("b", print_, ENDS) is None
