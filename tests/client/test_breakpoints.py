"""Where cache markers go, and what is never marked."""

from __future__ import annotations

import pytest

from llmlab.client.breakpoints import MAX_MARKERS, marker_problems, place, spots, without_markers
from llmlab.errors import InvalidParameter


def text(value: str) -> dict:
    return {"type": "text", "text": value}


def request(blocks: int, tools: int = 2, system: int = 2) -> dict:
    return {
        "model": "m",
        "tools": [{"name": f"t{n}", "input_schema": {"type": "object"}} for n in range(tools)],
        "system": [text(f"s{n}") for n in range(system)],
        "messages": [{"role": "user", "content": [text(f"b{n}") for n in range(blocks)]}],
    }


def test_the_ends_of_tools_system_and_messages_are_marked():
    marked = place(request(3))
    assert [mark.path for mark in marked.marks] == [("tools", 1), ("system", 1), ("messages", 0, 2)]
    assert marked.request["system"][1]["cache_control"] == {"type": "ephemeral"}
    assert "cache_control" not in marked.request["system"][0]


def test_the_marker_stays_in_front_of_changing_system_blocks():
    assert ("system", 0) in [mark.path for mark in place(request(1), stable_system=1).marks]
    assert all(mark.path[0] != "system" for mark in place(request(1), stable_system=0).marks)


@pytest.mark.parametrize(("added", "marks"), [(5, 1), (19, 1), (20, 2), (40, 2)])
def test_a_former_marker_out_of_sight_is_set_again(added, marks):
    plain = {"model": "m", "messages": request(10 + added, 0, 0)["messages"]}
    marked = place(plain, previous=9)
    assert len(marked.marks) == marks
    assert (9 in [mark.position for mark in marked.marks]) == (marks == 2)


def test_there_are_never_more_than_four_and_a_server_would_take_them():
    marked = place(request(60), previous=10)
    assert len(marked.marks) == MAX_MARKERS
    assert marker_problems(marked.request) == []


@pytest.mark.parametrize("last", [text(""), {"type": "thinking", "thinking": "hm", "signature": "s"}])
def test_what_cannot_be_marked_is_passed_over(last):
    plain = request(2)
    plain["messages"][0]["content"].append(last)
    assert place(plain).marks[-1].path == ("messages", 0, 1)


def test_the_long_time_to_live_comes_first():
    marked = place(request(1), stable_ttl="1h")
    assert [mark.ttl for mark in marked.marks] == ["1h", "1h", "5m"]
    with pytest.raises(InvalidParameter, match="longer ones must come first"):
        place(request(1), messages_ttl="1h")


def test_placing_leaves_the_request_alone_and_can_be_undone():
    plain = request(3)
    marked = place(plain)
    assert not any("cache_control" in spot.block for spot in spots(plain))
    assert without_markers(marked.request) == plain
    assert any("cache_control" in spot.block for spot in spots(marked.request)), "undoing works on a copy"


def test_plain_strings_are_marked_as_blocks():
    marked = place({"model": "m", "system": "s", "messages": [{"role": "user", "content": "hi"}]})
    assert [mark.path for mark in marked.marks] == [("system", 0), ("messages", 0, 0)]


def test_problems_are_named():
    marker = {"cache_control": {"type": "ephemeral"}}
    bad = request(5)
    for block in bad["messages"][0]["content"]:
        block |= marker
    bad["messages"][0]["content"][4]["cache_control"] = {"type": "ephemeral", "ttl": "1h"}
    bad["messages"][0]["content"].append({"type": "thinking", "thinking": "", **marker})
    said = " ".join(marker_problems(bad))
    assert "6 markers" in said
    assert "1h marker comes after" in said
    assert "messages.0.content.5 cannot carry" in said
