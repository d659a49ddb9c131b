"""The loop: tools, errors, truncation, compaction, interruption."""

from __future__ import annotations

from itertools import pairwise

import pytest
from scripted_sender import ScriptedSender, says, wants
from scripted_server import ScriptedServer, chunked, end, frames, reply, start, text, tool

from llmlab.client.agent import Agent
from llmlab.client.assemble import Options, SystemText
from llmlab.client.client import Client
from llmlab.client.compaction import CompactionPolicy
from llmlab.client.message import Message
from llmlab.client.output_limit import OutputLimit
from llmlab.client.tool import LocalTool
from llmlab.client.tool_order import what_changed
from llmlab.client.transcript import Transcript
from llmlab.client.visibility import INTERRUPTED
from llmlab.errors import InvalidParameter, LabError
from llmlab.trace.recorder import Recorder

SUM = ("1", "calculator", {"expression": "1+1"})


def agent(*answers, **more) -> Agent:
    return Agent(ScriptedSender(*answers), model="m", **more)


def test_it_loops_until_the_model_wants_no_tool():
    it = agent(wants(SUM), wants(("2", "calculator", {"expression": "2*3"})), says("six"))
    result = it.run("2*3?")
    assert (result.text, result.stopped, len(result.turns)) == ("six", "end_turn", 3)
    assert it.sender.last()[0]["content"] == "6"


def test_parallel_tool_uses_are_answered_in_one_message_in_order():
    it = agent(wants(SUM, ("2", "calculator", {"expression": "3"}), ("3", "nope", {})), says("ok"))
    it.run("go")
    results = it.sender.last()
    assert [(b["tool_use_id"], b.get("is_error", False)) for b in results] == [("1", False), ("2", False), ("3", True)]


def test_an_error_in_a_tool_goes_to_the_model_and_the_loop_goes_on():
    it = agent(wants(("1", "calculator", {"expression": "1/0"})), says("cannot"))
    assert it.run("go").text == "cannot"
    assert it.sender.last()[0]["is_error"] is True


def test_it_stops_after_max_turns_with_a_session_that_can_go_on():
    it = agent(wants(SUM), wants(("2", *SUM[1:])), says("done"), max_turns=2)
    assert it.run("go").stopped == "max_turns"
    assert it.run("more").text == "done"


def test_the_prefix_only_grows_and_the_table_shows_the_cache_at_work():
    usages = [
        {"input_tokens": 3, "cache_creation_input_tokens": 90, "output_tokens": 5},
        {"input_tokens": 2, "cache_read_input_tokens": 93, "cache_creation_input_tokens": 10, "output_tokens": 5},
        {"input_tokens": 1, "cache_read_input_tokens": 105, "output_tokens": 1},
    ]
    it = agent(wants(SUM, **usages[0]), wants(("2", *SUM[1:]), **usages[1]), says("ok", **usages[2]))
    result = it.run("go")
    rows = result.table()
    assert [row["cache_read"] for row in rows] == [0, 93, 105]
    assert [row["prompt"] for row in rows] == [93, 105, 106]
    assert [row["tools"] for row in rows] == ["calculator", "calculator", ""]
    assert result.usage == {"input": 6, "cache_read": 198, "cache_write": 100, "output": 11}
    sent = it.sender.requests
    assert [what_changed(a, b).kind for a, b in pairwise(sent)] == ["none", "none"]


def test_estimates_start_from_the_last_usage():
    it = agent(wants(SUM, input_tokens=1_000, output_tokens=10), says("ok"))
    result = it.run("go")
    assert result.turns[1].estimated == 1_010  # and one character of result, which rounds to nothing


def test_a_truncated_answer_is_asked_for_once_more_with_a_higher_limit():
    it = agent(says("half", "max_tokens"), says("half again", "max_tokens"), limit=OutputLimit(10, 20))
    result = it.run("go")
    assert [request["max_tokens"] for request in it.sender.requests] == [10, 20]
    assert [turn.kind for turn in result.turns] == ["cut", "turn"]
    assert (result.stopped, result.text) == ("max_tokens", "half again")
    assert it.sender.requests[0]["messages"] == it.sender.requests[1]["messages"]


def test_a_tool_call_that_was_cut_off_is_never_run():
    calls: list = []
    tool = LocalTool("t", "", {"type": "object"}, lambda: calls.append(1) or "ran")
    cut = {"type": "tool_use", "id": "1", "name": "t", "input": {}, "partial_json": "{"}
    it = agent(Message(content=[cut], stop_reason="max_tokens"), says("ok"), tools=[tool], limit=OutputLimit(5, 5))
    assert it.run("go").stopped == "max_tokens"
    it.run("more")
    assert calls == []
    assert "tool_use" not in str(it.sender.requests[-1]["messages"])


def test_broken_arguments_beside_whole_ones_are_answered_with_an_error():
    message = wants(SUM)
    message.content.append({"type": "tool_use", "id": "2", "name": "calculator", "input": {}, "partial_json": "{x"})
    it = agent(message, says("ok"))
    it.run("go")
    assert [b.get("is_error", False) for b in it.sender.last()] == [False, True]


def test_tools_asked_for_before_a_stream_broke_are_run():
    message = wants(SUM, stop="")
    message.cut_off = "connection lost"
    assert agent(message, says("ok")).run("go").text == "ok"


def test_what_the_sender_raises_is_kept_for_the_person_and_not_for_the_model():
    it = agent(LabError("overloaded"), says("hello"))
    with pytest.raises(LabError, match="overloaded"):
        it.run("first")
    assert "overloaded" in it.transcript.entries[-1].text
    assert it.run("second").text == "hello"
    assert [block["text"] for block in it.sender.last()] == ["first", "second"]


def test_an_interrupted_tool_leaves_a_session_that_can_be_resumed(tmp_path):
    def interrupt() -> str:
        raise KeyboardInterrupt

    runs = {"quick": lambda: "done", "slow": interrupt}
    tools = [LocalTool(name, "", {"type": "object"}, run) for name, run in runs.items()]
    it = agent(wants(("1", "quick", {}), ("2", "slow", {})), tools=tools, transcript=Transcript(tmp_path, "s"))
    with pytest.raises(KeyboardInterrupt):
        it.run("go")
    later = agent(says("ok"), tools=tools, transcript=Transcript(tmp_path, "s"))
    later.run("go on")
    results = {b["tool_use_id"]: b["content"] for b in later.sender.last() if b["type"] == "tool_result"}
    assert results == {"1": "done", "2": INTERRUPTED}


def test_an_interruption_while_waiting_leaves_the_prompt():
    it = agent(KeyboardInterrupt(), says("ok"))
    with pytest.raises(KeyboardInterrupt):
        it.run("go")
    assert it.run("again").text == "ok"


def test_a_full_window_is_compacted_and_files_have_to_be_read_again(tmp_path):
    (tmp_path / "a.txt").write_text("text")
    read = ("1", "read_file", {"path": "a.txt"})
    it = agent(
        wants(read, input_tokens=10, output_tokens=5),
        says("read it", input_tokens=850, output_tokens=5),
        says("SUMMARY", input_tokens=4, cache_read_input_tokens=900, output_tokens=20),
        wants(read, input_tokens=30, output_tokens=5),
        says("read again", input_tokens=40, output_tokens=5),
        root=tmp_path,
        compaction=CompactionPolicy(1_000),
        limit=OutputLimit(10, 10),
        system="be brief",
    )
    it.run("read a.txt")
    result = it.run("and again")
    assert [turn.kind for turn in result.turns] == ["compaction", "turn", "turn"]
    assert result.usage["cache_read"] == 900
    compaction, after = it.sender.requests[2:4]
    assert what_changed(it.sender.requests[1], compaction).kind == "none"
    assert "and again" not in str(compaction)
    assert [block["text"].split("\n")[-1] for block in after["messages"][0]["content"]] == ["SUMMARY", "and again"]
    assert it.reads.repeated == ["a.txt"]
    assert result.turns[0].estimated > 850, "known from usage"
    assert result.turns[1].estimated < 400, "the old usage says nothing about the new prompt"


def test_a_model_that_gives_no_summary_keeps_its_conversation():
    it = agent(
        says("a", input_tokens=950, output_tokens=1),
        says(" "),
        says("b"),
        compaction=CompactionPolicy(1_000),
        limit=OutputLimit(10, 10),
    )
    it.run("one")
    assert it.run("two").text == "b"
    assert len(it.sender.requests[-1]["messages"]) == 3


def test_a_summary_is_not_summarised_again_before_anything_was_added():
    it = agent(
        wants(SUM, input_tokens=990, output_tokens=1),
        says("long " * 1_000),
        LabError("overloaded"),
        says("ok"),
        compaction=CompactionPolicy(1_000),
    )
    with pytest.raises(LabError):
        it.run("go")
    assert [turn.kind for turn in it.run("again").turns] == ["turn"]


def test_a_prompt_too_long_on_its_own_is_not_compacted_for_ever():
    it = agent(says("a"), compaction=CompactionPolicy(10), limit=OutputLimit(1, 1))
    assert [turn.kind for turn in it.run("long " * 100).turns] == ["turn"]


def test_project_notes_lead_the_first_message_and_changing_facts_end_the_system_prompt():
    it = agent(
        says("a"),
        says("b"),
        first=[{"type": "text", "text": "notes"}],
        system=[SystemText("date", stable=False), SystemText("who")],
    )
    it.run("hi")
    it.run("ho")
    for request in it.sender.requests:
        assert request["messages"][0]["content"][0]["text"] == "notes"
        assert [block["text"] for block in request["system"]] == ["who", "date"]


def test_many_tool_results_at_once_keep_the_former_marker_in_sight():
    calls = [(str(n), "calculator", {"expression": "1"}) for n in range(30)]
    it = agent(wants(*calls), says("ok"), system="s")
    it.run("go")
    blocks = [block for message in it.sender.requests[1]["messages"] for block in message["content"]]
    marked = [block for block in blocks if "cache_control" in block]
    assert len(marked) == 2
    assert marked[0]["text"] == "go"


def test_assembling_is_recorded_once_per_request():
    recorder = Recorder()
    agent(wants(SUM), says("ok"), recorder=recorder, compaction=CompactionPolicy(100_000)).run("go")
    assert [stage.name for stage in recorder.snapshot()] == ["assemble", "assemble"]


def test_assembling_is_recorded_under_the_id_that_the_request_is_sent_with():
    recorder = Recorder()
    it = agent(wants(SUM), says("ok"), recorder=recorder)
    it.run("go")
    assert [stage.wire_id for stage in recorder.snapshot()] == it.sender.wire_ids
    assert len(set(it.sender.wire_ids)) == 2


def test_the_recorder_is_the_senders_unless_another_is_given():
    recorder = Recorder()
    assert Agent(Client("http://127.0.0.1:1", recorder=recorder), model="m").recorder is recorder
    assert Agent(ScriptedSender(), model="m").recorder is None


def test_the_first_requests_of_each_run_can_be_made_to_call_a_tool():
    force = {"type": "tool", "name": "calculator", "disable_parallel_tool_use": True}
    none = {"type": "none"}
    it = agent(
        wants(SUM),
        says("a"),
        wants(("2", *SUM[1:])),
        says("b"),
        tool_choices=[force],
        options=Options(tool_choice=none),
    )
    it.run("one")
    it.run("two")
    assert [request["tool_choice"] for request in it.sender.requests] == [force, none, force, none]


def test_a_truncated_call_is_forced_again():
    force = {"type": "any", "disable_parallel_tool_use": False}
    it = agent(says("", "max_tokens"), wants(SUM), says("ok"), tool_choices=[force], limit=OutputLimit(5, 10))
    it.run("go")
    assert [request.get("tool_choice") for request in it.sender.requests] == [force, force, None]


def test_a_forced_call_is_one_call_unless_the_choice_says_otherwise():
    named, several = {"type": "any"}, {"type": "any", "disable_parallel_tool_use": False}
    it = agent(wants(SUM), wants(("2", *SUM[1:])), says("a"), tool_choices=[named, several, {"type": "auto"}])
    it.run("go")
    sent = [request["tool_choice"] for request in it.sender.requests]
    assert sent == [named | {"disable_parallel_tool_use": True}, several, {"type": "auto"}]


def test_a_small_window_gets_a_small_output_limit():
    it = agent(says("a"), compaction=CompactionPolicy(2_048))
    it.run("hi")
    assert it.sender.requests[0]["max_tokens"] == 256


def test_it_works_over_a_real_connection():
    ask = frames(start(), *tool(0, '{"expression":', ' "6*7"}', name="calculator"), *end("tool_use"))
    answer = frames(start(input_tokens=1, cache_read_input_tokens=7), *text(0, "42"), *end())
    models = reply(200, {"data": [{"id": "mock", "max_input_tokens": 2_048}], "has_more": False})
    with ScriptedServer(models, chunked(ask), chunked(answer)) as server, Client(server.url) as client:
        result = Agent(client, model="mock").run("6*7?")
    assert result.text == "42"
    assert [(turn.tools, turn.cache_read) for turn in result.turns] == [(("calculator",), 0), ((), 7)]
    assert server.requests[2].body["messages"][-1]["content"][0]["content"] == "42"
    assert [request.body["max_tokens"] for request in server.requests[1:]] == [256, 256]


@pytest.mark.parametrize("bad", [{"max_turns": 0}, {"options": Options(betas=("x-1",))}])
def test_settings_that_cannot_work_are_refused(bad):
    with pytest.raises(InvalidParameter):
        agent(**bad)


@pytest.mark.parametrize(
    ("bad", "advice"),
    [
        ({"limit": 60}, r"OutputLimit\(60, 60\)"),
        ({"limit": "much"}, "None for one that fits"),
        ({"compaction": 2_048}, "CompactionPolicy"),
        ({"tools": [len]}, r"LocalTool\('len', description, schema, function\)"),
        ({"tools": len}, "must be a list of LocalTool"),
        ({"tools": LocalTool("t", "", {"type": "object"}, str)}, "put it into one"),
        ({"external_tools": [{"name": "t"}]}, "is not a LocalTool"),
    ],
)
def test_a_wrong_setting_is_refused_with_what_would_work(bad, advice):
    with pytest.raises(InvalidParameter, match=advice):
        agent(**bad)
