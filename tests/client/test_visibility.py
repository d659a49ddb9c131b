"""Which entries of a session are sent, and in what shape."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from llmlab.client.entry import Entry, note, reply, synthetic, text_block, user
from llmlab.client.visibility import INTERRUPTED, visible_messages


def said(text: str) -> Entry:
    return reply([text_block(text)], model="m", stop_reason="end_turn", usage={})


def asked(*ids: str) -> Entry:
    uses = [{"type": "tool_use", "id": name, "name": "t", "input": {}} for name in ids]
    return reply(uses, model="m", stop_reason="tool_use", usage={})


def result(name: str) -> Entry:
    return Entry("user", ({"type": "tool_result", "tool_use_id": name, "content": "ok"},))


def test_local_entries_stay_here_and_are_listed():
    entries = [user("a"), note("progress", "..."), synthetic("API error"), note("display", "banner"), said("b")]
    seen = visible_messages([*entries, user("c")])
    assert [(m["role"], m["content"][0]["text"]) for m in seen.messages] == [
        ("user", "a"),
        ("assistant", "b"),
        ("user", "c"),
    ]
    assert sum(line.startswith("left out") for line in seen.notes) == 3


def test_neighbours_left_by_a_hidden_reply_are_merged():
    seen = visible_messages([user("a"), synthetic("error"), user("b")])
    assert seen.messages == [{"role": "user", "content": [text_block("a"), text_block("b")]}]


def test_tool_results_come_first_and_keep_their_order():
    seen = visible_messages([user("a"), asked("x", "y"), user("hurry"), result("x"), result("y")])
    assert [block.get("tool_use_id") for block in seen.messages[-1]["content"]] == ["x", "y", None]


def test_a_dangling_tool_use_is_answered_with_an_error():
    seen = visible_messages([user("a"), asked("x", "y"), result("x"), user("go on")])
    results = {b["tool_use_id"]: b for b in seen.messages[-1]["content"] if b["type"] == "tool_result"}
    assert results["x"]["content"] == "ok"
    assert results["y"] == {"type": "tool_result", "tool_use_id": "y", "content": INTERRUPTED, "is_error": True}


def test_a_dangling_tool_use_at_the_very_end_is_answered_too():
    assert visible_messages([user("a"), asked("x")]).messages[-1]["role"] == "user"


def test_a_result_nobody_asked_for_is_dropped():
    seen = visible_messages([user("a"), result("ghost"), said("b"), result("ghost"), user("c")])
    assert all(block["type"] == "text" for m in seen.messages for block in m["content"])
    assert [m["role"] for m in seen.messages] == ["user", "assistant", "user"]


def test_a_second_result_for_one_tool_use_is_dropped():
    seen = visible_messages([user("a"), asked("x"), result("x"), result("x")])
    assert len(seen.messages[-1]["content"]) == 1


def test_an_empty_assistant_turn_at_the_end_is_dropped():
    assert [m["role"] for m in visible_messages([user("a"), said(" \n")]).messages] == ["user"]


def test_empty_text_is_never_sent():
    mixed = Entry("user", (text_block(""), text_block("a")))
    assert visible_messages([mixed, said("")]).messages == [{"role": "user", "content": [text_block("a")]}]


def test_a_summary_stands_for_what_it_covers_but_not_for_what_it_keeps():
    summary = Entry("compaction", (text_block("sum"),), keeps=1)
    seen = visible_messages([user("old"), said("old"), user("new"), summary, said("answer")])
    assert [[b["text"] for b in m["content"]] for m in seen.messages] == [["sum", "new"], ["answer"]]


KINDS = st.sampled_from(["user", "said", "asked", "result", "progress", "synthetic", "empty"])


@given(st.lists(st.tuples(KINDS, st.sampled_from("xyz")), max_size=12))
def test_any_session_becomes_a_valid_conversation(steps):
    make = {
        "user": user,
        "said": said,
        "asked": asked,
        "result": result,
        "progress": lambda name: note("progress", name),
        "synthetic": synthetic,
        "empty": lambda name: said(""),
    }
    entries = [make[kind](name) for kind, name in steps]
    messages = visible_messages(entries).messages
    roles = [m["role"] for m in messages]
    assert all(one != other for one, other in pairwise(roles))
    for before, after in zip([None, *messages], [*messages, {"role": "user", "content": []}], strict=True):
        open_ids = [b["id"] for b in (before or {"content": []})["content"] if b["type"] == "tool_use"]
        results = [b["tool_use_id"] for b in after["content"] if b["type"] == "tool_result"]
        assert sorted(set(open_ids)) == sorted(results)
        kinds = [b["type"] != "tool_result" for b in after["content"]]
        assert kinds == sorted(kinds)
