"""A session's state becomes a request body, the same bytes every time."""

from __future__ import annotations

import json

import pytest

from llmlab.client.assemble import Options, SystemText, assemble
from llmlab.client.betas import BetaLatch
from llmlab.client.entry import note, reply, text_block, user
from llmlab.client.tool_order import what_changed
from llmlab.errors import InvalidParameter
from llmlab.trace.recorder import Recorder

TOOLS = [{"name": name, "input_schema": {"type": "object"}} for name in ("zoo", "calc")]
HELLO = [user("hello")]


def body(**options) -> dict:
    return assemble("m", HELLO, options=Options(max_tokens=100, **options)).request


def test_only_what_is_set_is_sent_and_in_a_fixed_order():
    assert list(body()) == ["model", "max_tokens", "stream", "messages"]
    full = assemble(
        "m",
        HELLO,
        system=[SystemText("s")],
        tools=TOOLS,
        options=Options(speed="fast", temperature=0.5, stop_sequences=("\n",), user_id={"session_id": "1"}),
    ).request
    assert list(full) == [
        *("model", "max_tokens", "stream", "tools", "system", "messages"),
        *("temperature", "stop_sequences", "metadata", "speed"),
    ]
    assert json.loads(full["metadata"]["user_id"]) == {"session_id": "1"}


def test_the_same_session_gives_the_same_bytes():
    def once(tools):
        return assemble("m", HELLO, system=[SystemText("é")], tools=tools, options=Options()).body

    assert once(TOOLS) == once(TOOLS[::-1])
    assert json.loads(once(TOOLS))["system"][0]["text"] == "é"


def test_the_next_turn_only_adds_to_the_prefix():
    entries = [user("a"), reply([text_block("b")], model="m", stop_reason="end_turn", usage={})]
    one = assemble("m", entries[:1], tools=TOOLS, system=[SystemText("s")], options=Options())
    two = assemble(
        "m", [*entries, note("progress", "…"), user("c")], tools=TOOLS, system=[SystemText("s")], options=Options()
    )
    assert what_changed(one.request, two.request).kind == "none"


def test_changing_system_text_goes_behind_the_stable_and_stays_out_of_the_cached_part():
    made = assemble("m", HELLO, system=[SystemText("now", stable=False), SystemText("s")], options=Options())
    assert [block["text"] for block in made.request["system"]] == ["s", "now"]
    assert [("cache_control" in block) for block in made.request["system"]] == [True, False]
    assert any("behind the stable" in line for line in made.notes)


def test_leading_blocks_open_the_first_user_message_and_not_the_system_prompt():
    made = assemble("m", HELLO, first=[text_block("notes")], options=Options())
    assert [block["text"] for block in made.request["messages"][0]["content"]] == ["notes", "hello"]
    assert "system" not in made.request


@pytest.mark.parametrize(
    ("options", "sent"),
    [
        ({"temperature": 0.2, "top_p": 0.9, "top_k": 5}, {"temperature", "top_p", "top_k"}),
        ({"temperature": 0.2, "top_p": 0.9, "top_k": 5, "thinking": {"type": "adaptive"}}, set()),
        ({"temperature": 1.0, "top_p": 0.97, "thinking": {"type": "adaptive"}}, {"top_p"}),
        ({"temperature": 0.2, "thinking": {"type": "disabled"}}, {"temperature"}),
        ({"temperature": 1.0, "top_p": 1.0, "version": "2026-10-21"}, set()),
    ],
)
def test_sampling_fields_the_server_would_refuse_are_left_out_with_a_note(options, sent):
    made = assemble("m", HELLO, options=Options(**options))
    asked = {"temperature", "top_p", "top_k"} & set(options)
    assert set(made.request) & {"temperature", "top_p", "top_k"} == sent
    assert sum(line.startswith("left out") for line in made.notes) == len(asked - sent)


def test_a_thinking_budget_must_leave_room_for_an_answer():
    with pytest.raises(InvalidParameter, match="budget_tokens=100 must be below max_tokens=100"):
        body(thinking={"type": "enabled", "budget_tokens": 100})


def test_extra_fields_may_add_but_not_replace():
    assert body(extra={"top_n": 3})["top_n"] == 3
    with pytest.raises(InvalidParameter, match="model"):
        body(extra={"model": "other"})


def test_a_beta_stays_in_the_header_and_out_of_the_body():
    latch = BetaLatch()
    assemble("m", HELLO, options=Options(betas=("x-1",)), latch=latch)
    later = assemble("m", HELLO, options=Options(), latch=latch)
    assert later.headers == {"anthropic-version": "2023-06-01", "anthropic-beta": "x-1"}
    assert "betas" not in later.request
    assert any(line.startswith("kept a beta") for line in later.notes)


def test_without_cache_there_is_no_marker():
    assert b"cache_control" not in assemble("m", HELLO, tools=TOOLS, options=Options(cache=False)).body


def test_a_session_with_nothing_to_send_is_refused():
    with pytest.raises(InvalidParameter, match="add a user entry"):
        assemble("m", [note("display", "banner")], options=Options())


def test_the_work_is_recorded_as_one_stage():
    recorder = Recorder()
    made = assemble("m", HELLO, options=Options(), recorder=recorder, wire_id="w")
    (stage,) = recorder.snapshot()
    assert (stage.side, stage.name, stage.wire_id) == ("client", "assemble", "w")
    assert stage.details["bytes"] == len(made.body)
    assert stage.details["notes"] == made.notes
    assert stage.end_ns >= stage.t_ns
