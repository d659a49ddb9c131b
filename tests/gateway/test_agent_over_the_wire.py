"""The agent loop over a real connection, with a model whose answers are known."""

from __future__ import annotations

import json
from itertools import pairwise

import pytest
from playback import playback_lab

from llmlab.client.agent import Agent
from llmlab.client.compaction import CompactionPolicy
from llmlab.client.output_limit import OutputLimit
from llmlab.client.tool import LocalTool
from llmlab.client.transcript import Transcript
from llmlab.client.visibility import INTERRUPTED

LIMIT = OutputLimit(200, 200)
ROOM = {"num_blocks": 1024, "max_model_len": 8192}


def asks(name: str, **arguments) -> str:
    """What a model writes to call a tool."""
    call = json.dumps({"name": name, "arguments": arguments})
    return f"<tool_call>\n{call}\n</tool_call>"


ANSWERS = (
    asks("list_folder"),
    asks("read_file", path="numbers.txt"),
    asks("calculator", expression="6 * 7"),
    "It is 42.",
)


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "numbers.txt").write_text("6 and 7")
    return tmp_path


def agent(client, folder, **more) -> Agent:
    return Agent(client, model="playback", root=folder, limit=more.pop("limit", LIMIT), **more)


def results(it: Agent) -> list[str]:
    """What the tools gave, in order."""
    blocks = [block for entry in it.transcript.entries for block in entry.content]
    return [block["content"] for block in blocks if block["type"] == "tool_result"]


def test_three_tools_in_four_turns(folder):
    with playback_lab(*ANSWERS, **ROOM) as lab:
        it = agent(lab.client(), folder, system="Use the tools.")
        result = it.run("Multiply the numbers in the file.")
    assert (result.text, result.stopped) == ("It is 42.", "end_turn")
    assert [turn.tools for turn in result.turns] == [("list_folder",), ("read_file",), ("calculator",), ()]
    assert results(it) == ["numbers.txt", "6 and 7", "42"]
    assert lab.trace.check() == []
    assert len(lab.trace.exchanges) == 4


def test_what_is_read_from_the_cache_is_what_the_turn_before_left_there(folder):
    with playback_lab(*ANSWERS, **ROOM) as lab:
        turns = agent(lab.client(), folder).run("go").turns
        requests = lab.trace.requests
    marked = [0, *(turn.cache_read + turn.cache_write for turn in turns[:-1])]
    held = list(requests.num_cached_tokens)
    reads = [turn.cache_read for turn in turns]
    assert reads == [min(pair) for pair in zip(marked, held, strict=True)]
    assert all(one < other for one, other in pairwise(reads))
    assert [turn.prompt for turn in turns] == list(requests.num_prompt_tokens)


def test_counted_as_the_engine_had_it_the_table_is_the_trace(folder):
    with playback_lab(*ANSWERS, **ROOM) as lab:
        client = lab.client(lab.serve(cache_accounting="engine"))
        turns = agent(client, folder).run("go").turns
        held = list(lab.trace.requests.num_cached_tokens)
    assert [turn.cache_read for turn in turns] == held == sorted(held)
    assert held[-1] > held[1] > 0


def test_the_second_time_everything_but_the_end_is_cached(folder):
    with playback_lab("a", "b", **ROOM) as lab:
        it = agent(lab.client(), folder)
        one, two = it.run("first").turns + it.run("second").turns
    assert two.cache_read == one.cache_read + one.cache_write
    assert two.prompt - two.cache_read < 200


def test_a_small_window_is_compacted_and_the_session_goes_on(folder):
    once = asks("read_file", path="numbers.txt"), "They are 6 and 7."
    with playback_lab(*once, *once, "SUMMARY", "42", **ROOM) as lab:
        client = lab.client()
        filled = agent(client, folder).run("Which numbers?").turns[-1].prompt
        window = filled + LIMIT.max_tokens + 5  # room for this prompt and an answer, but for no further prompt
        it = agent(client, folder, compaction=CompactionPolicy(window, threshold=1.0))
        first = it.run("Which numbers?")
        second = it.run("Multiply them.")
    assert [turn.kind for turn in first.turns] == ["turn", "turn"]
    assert [turn.kind for turn in second.turns] == ["compaction", "turn"]
    compaction, after = second.turns
    assert compaction.cache_read > 0, "the conversation is the prefix of the request for its summary"
    assert after.prompt < compaction.prompt
    assert (second.text, lab.trace.check()) == ("42", [])


def test_an_interrupted_run_is_resumed_from_its_file_and_from_the_cache(folder, tmp_path):
    def interrupt() -> str:
        raise KeyboardInterrupt

    tools = [LocalTool("slow", "Takes its time.", {"type": "object"}, interrupt)]
    with playback_lab(asks("slow"), "Then not.", **ROOM) as lab:
        client = lab.client()
        settings = {"tools": tools, "root": None, "limit": LIMIT, "model": "playback"}
        with pytest.raises(KeyboardInterrupt):
            Agent(client, transcript=Transcript(tmp_path / "log", "s"), **settings).run("go")
        later = Agent(client, transcript=Transcript(tmp_path / "log", "s"), **settings)
        result = later.run("go on")
        request = later.assemble().request
    assert result.text == "Then not."
    assert INTERRUPTED in str(request["messages"])
    assert result.turns[0].cache_read > 0


def test_a_stream_that_breaks_behind_a_whole_call_is_gone_on_from(folder):
    with playback_lab(*ANSWERS, **ROOM) as lab:
        agent(lab.client(), folder).run("go")
    frames = lab.trace.wire[(lab.trace.wire.side == "gateway") & (lab.trace.wire.kind == "frame")]
    first = frames[frames.wire_id == frames.wire_id.iloc[0]]
    whole = first["size"].cumsum()[first.name == "content_block_stop"].iloc[0]
    with playback_lab(*ANSWERS, **ROOM) as lab:
        server = lab.serve()
        server.faults.inject(f"drop={whole + 10}")
        it = agent(lab.client(server), folder)
        result = it.run("go")
    assert result.text == "It is 42."
    retries = lab.trace.stages[lab.trace.stages.name == "retry"]
    assert list(retries.outcome) == ["kept"]
    assert results(it) == ["numbers.txt", "6 and 7", "42"]
