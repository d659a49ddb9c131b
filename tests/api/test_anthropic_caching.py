"""Where cache breakpoints may be, and where automatic caching puts its own."""

from __future__ import annotations

from typing import Any

import pytest

from llmlab.api.anthropic import AnthropicCodec, place_automatic
from llmlab.api.anthropic.caching import markers
from llmlab.api.conversation import CacheMarker, Conversation, Text, Thinking, Tool, ToolResult, ToolUse, Turn
from llmlab.api.rules import Rules

FIVE, HOUR = CacheMarker("5m"), CacheMarker("1h")
TOOL = Tool("add")


def control(ttl: str = "5m") -> dict[str, Any]:
    return {"cache_control": {"type": "ephemeral", "ttl": ttl}}


def text(value: str = "x", **fields: Any) -> dict[str, Any]:
    return {"type": "text", "text": value, **fields}


def decode(**fields: Any) -> Conversation:
    body = {"model": "m", "max_tokens": 9, "messages": [{"role": "user", "content": [text()]}], **fields}
    return AnthropicCodec().decode(body, {}, Rules())


def conversation(*turns: Turn, **fields: Any) -> Conversation:
    return Conversation(protocol="anthropic", model="m", turns=turns, auto_cache=FIVE, **fields)


@pytest.mark.parametrize(
    "last",
    [Text("x"), ToolUse("toolu_1", "add", {}), ToolResult("toolu_1")],
)
def test_the_last_block_gets_the_breakpoint(last: Any) -> None:
    placed = place_automatic(conversation(Turn("user", (Text("a"), last))))
    assert placed.turns[0].blocks[0] == Text("a")
    assert placed.turns[0].blocks[1].marker == FIVE
    assert placed.auto_cache is None


def test_it_walks_back_past_blocks_that_cannot_carry_one() -> None:
    turns = (Turn("user", (Text("a"),)), Turn("assistant", (Text("b"), Thinking("c", "s"), Text(""))))
    assert place_automatic(conversation(*turns)).turns[1].blocks[0].marker == FIVE
    turns = (Turn("user", (Text("a"),)), Turn("assistant", (Thinking("c", "s"),)))
    assert place_automatic(conversation(*turns)).turns[0].blocks[0].marker == FIVE


def test_it_falls_back_to_system_and_to_tools() -> None:
    nothing = Turn("user", (Text(""),))
    found = place_automatic(conversation(nothing, system=(Text("a"), Text("b")), tools=(TOOL,)))
    assert (found.system, found.tools) == ((Text("a"), Text("b", FIVE)), (TOOL,))
    assert place_automatic(conversation(nothing, tools=(TOOL, TOOL))).tools == (TOOL, Tool("add", marker=FIVE))
    assert markers(place_automatic(conversation(nothing))) == []


def test_a_breakpoint_already_there_is_enough() -> None:
    found = decode(**control(), messages=[{"role": "user", "content": [text(**control())]}])
    assert markers(place_automatic(found)) == [FIVE]


def test_a_longer_breakpoint_is_not_shortened() -> None:
    placed = place_automatic(conversation(Turn("user", (Text("a", HOUR),))))
    assert markers(placed) == [HOUR]


def test_nothing_is_placed_unasked_or_twice() -> None:
    asked = conversation(Turn("user", (Text("a"),)))
    assert place_automatic(place_automatic(asked)) == place_automatic(asked)
    assert markers(place_automatic(decode())) == []


def test_decoding_leaves_the_placing_to_the_backend() -> None:
    found = decode(**control("1h"))
    assert (found.auto_cache, markers(found)) == (HOUR, [])


def test_four_breakpoints_in_the_order_of_the_prompt() -> None:
    found = decode(
        tools=[{"name": "add", "input_schema": {"type": "object"}, **control("1h")}],
        system=[text(**control("1h")), text(**control())],
        messages=[{"role": "user", "content": [text(**control()), text("y")]}],
    )
    assert markers(found) == [HOUR, HOUR, FIVE, FIVE]


def test_the_automatic_one_on_a_marked_block_is_no_fifth() -> None:
    four = [text(str(n), **control()) for n in range(4)]
    found = decode(**control(), messages=[{"role": "user", "content": four}])
    assert len(markers(place_automatic(found))) == 4


def test_a_marker_without_ttl_lasts_five_minutes() -> None:
    assert decode(cache_control={"type": "ephemeral"}).auto_cache == FIVE
    assert decode(cache_control=None).auto_cache is None
