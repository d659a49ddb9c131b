"""A stable order of tools, and where two requests begin to differ."""

from __future__ import annotations

import pytest

from llmlab.client.breakpoints import place
from llmlab.client.tool_order import order_tools, prefix_digest, what_changed
from llmlab.errors import InvalidParameter


def tool(name: str, **properties: dict) -> dict:
    return {"name": name, "description": name, "input_schema": {"type": "object", "properties": properties}}


def request(tools=("a", "b"), system=("s",), turns=("hi",), **more) -> dict:
    roles = ("user", "assistant")
    messages = [{"role": roles[n % 2], "content": text} for n, text in enumerate(turns)]
    blocks = [{"type": "text", "text": text} for text in system]
    return {"model": "m", "tools": [tool(n) for n in tools], "system": blocks, "messages": messages, **more}


def names(tools) -> list[str]:
    return [each["name"] for each in tools]


def test_built_in_tools_keep_their_order_and_come_first():
    given = [tool(name) for name in ("zoo", "read", "apple", "calc")]
    assert names(order_tools(given, builtin=("read", "calc"))) == ["read", "calc", "apple", "zoo"]
    assert names(order_tools(given[::-1], builtin=("read", "calc"))) == ["read", "calc", "apple", "zoo"]


def test_an_external_tool_leaves_the_built_in_prefix_as_it_was():
    builtin = [tool("read"), tool("calc")]
    before = order_tools(builtin, ("read", "calc"))
    after = order_tools([tool("apple"), *builtin], ("read", "calc"))
    assert after[: len(before)] == before


def test_two_tools_of_one_name_are_refused():
    with pytest.raises(InvalidParameter, match="'read'"):
        order_tools([tool("read"), tool("read")])


def test_a_longer_conversation_changes_nothing_before_it():
    change = what_changed(request(turns=("a",)), request(turns=("a", "b", "c")))
    assert (change.kind, change.shared, change.lost) == ("none", 4, 0)


@pytest.mark.parametrize(
    ("after", "kind", "shared"),
    [
        (request(tools=("b", "a")), "tools_changed", 0),
        (request(tools=("a", "b", "c")), "tools_changed", 2),
        (request(system=("other",)), "system_changed", 2),
        (request(speed="fast"), "system_changed", 2),
        (request(turns=("other",)), "messages_changed", 3),
        (request(tool_choice={"type": "any"}), "messages_changed", 3),
        (request() | {"model": "other"}, "model_changed", 0),
    ],
)
def test_the_first_difference_is_named(after, kind, shared):
    change = what_changed(request(), after)
    assert (change.kind, change.shared) == (kind, shared)
    assert change.lost == 4 - shared


def test_key_order_in_a_schema_counts_and_markers_do_not():
    one = request() | {"tools": [tool("a", x={}, y={})]}
    two = request() | {"tools": [tool("a", y={}, x={})]}
    assert one == two, "equal as Python sees it"
    assert what_changed(one, two).kind == "tools_changed"
    assert prefix_digest(place(one).request) == prefix_digest(one)


def test_who_said_it_counts():
    other = request()
    other["messages"] = [{"role": "assistant", "content": "hi"}]
    assert what_changed(request(), other).kind == "messages_changed"
