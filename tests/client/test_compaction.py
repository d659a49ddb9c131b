"""When a summary is due, how it is asked for, and what is forgotten."""

from __future__ import annotations

import pytest

from llmlab.client.assemble import Options, assemble
from llmlab.client.compaction import (
    CompactionPolicy,
    ReadTracker,
    compaction_entry,
    compaction_request,
    split_kept,
)
from llmlab.client.entry import Entry, note, reply, text_block, user
from llmlab.client.tool_order import what_changed
from llmlab.errors import CompactionFailed, InvalidParameter

ANSWER = reply([text_block("b")], model="m", stop_reason="end_turn", usage={})
RESULT = Entry("user", ({"type": "tool_result", "tool_use_id": "1", "content": "r"},))
ASKED = reply([{"type": "tool_use", "id": "1", "name": "t", "input": {}}], model="m", stop_reason="tool_use", usage={})


def test_due_at_the_threshold_or_when_the_output_would_not_fit():
    policy = CompactionPolicy(1_000)
    assert [policy.is_due(799), policy.is_due(800)] == [False, True]
    assert [policy.is_due(700, 300), policy.is_due(700, 301)] == [False, True]


@pytest.mark.parametrize("bad", [{"window": 0}, {"window": 10, "threshold": 0}, {"window": 10, "threshold": 1.1}])
def test_a_policy_out_of_range_is_refused(bad):
    with pytest.raises(InvalidParameter):
        CompactionPolicy(**bad)


@pytest.mark.parametrize("entries", [[user("a"), ANSWER], [user("a"), ASKED, RESULT], [user("a")]])
def test_the_request_keeps_its_prefix_and_ends_with_the_instruction(entries):
    made = assemble("m", entries, options=Options())
    asked = compaction_request(made.request, "sum up")
    assert what_changed(made.request, asked).kind == "none"
    assert asked["messages"][-1]["role"] == "user"
    assert asked["messages"][-1]["content"][-1] == text_block("sum up")
    assert {k: v for k, v in asked.items() if k != "messages"} == {
        k: v for k, v in made.request.items() if k != "messages"
    }
    assert "sum up" not in made.body.decode()


def test_a_prompt_nobody_answered_stays():
    entries = [user("a"), ANSWER, note("progress", "…"), user("new")]
    covered, keeps = split_kept(entries)
    assert (list(covered), keeps) == (entries[:2], 2)


def test_tool_results_do_not_stay_without_their_question():
    covered, keeps = split_kept([user("a"), ASKED, RESULT])
    assert (len(covered), keeps) == (3, 0)


def test_the_summary_takes_the_place_of_the_turns_and_carries_its_usage():
    entry = compaction_entry(" short ", model="m", usage={"output_tokens": 3}, keeps=1)
    made = assemble("m", [user("a"), ANSWER, user("new"), entry], options=Options())
    (message,) = made.request["messages"]
    assert message["content"][0]["text"].endswith("short")
    assert message["content"][1]["text"] == "new"
    assert entry.usage == {"output_tokens": 3}


def test_no_summary_is_a_failure():
    with pytest.raises(CompactionFailed):
        compaction_entry(" \n", model="m", usage={}, keeps=0)


def test_files_read_before_a_compaction_are_forgotten():
    reads = ReadTracker()
    assert not reads.read("a").again
    assert reads.read("a") == reads.log[-1]
    assert (reads.log[-1].again, reads.log[-1].forgotten) == (True, False)
    assert (reads.forget(), reads.known) == ({"a"}, frozenset())
    assert reads.read("a").forgotten
    assert not reads.read("b").forgotten
    assert reads.repeated == ["a"]


@pytest.mark.parametrize(("choice", "sent"), [("tool", "none"), ("any", "none"), ("auto", "auto"), ("none", "none")])
def test_no_call_is_forced_where_a_summary_is_wanted(choice, sent):
    request = {"tool_choice": {"type": choice}, "messages": [{"role": "user", "content": "a"}]}
    assert compaction_request(request)["tool_choice"] == {"type": sent}
    assert request["tool_choice"] == {"type": choice}
    assert "tool_choice" not in compaction_request({"messages": []})
