"""Anthropic's protocol in front of a server that speaks OpenAI's, as Anthropic's SDK sees it."""

from __future__ import annotations

import asyncio
import json
import threading
from contextlib import contextmanager

import anthropic
import pytest
from fleet import FUNCTION, MESSAGES, TOOL, ask, chat, claude, fleet, front_of, wait_for
from test_upstream import DONE, END, HELLO, STREAM, answer_with, choice, stream, upstream

import llmlab


@pytest.fixture(scope="module")
def found():
    with llmlab.open("mock") as lab, fleet([lab]) as running:
        yield running


@contextmanager
def answering(script):
    """The address of a server that answers every chat completion with one script, on a thread of its own."""
    ready, stop, urls, loops = threading.Event(), asyncio.Event(), [], []

    async def serve() -> None:
        loops.append(asyncio.get_running_loop())
        async with upstream(script) as server:
            server.scripts["/v1/models"] = answer_with(200, '{"data": [{"id": "scripted"}]}')
            urls.append(server.url)
            ready.set()
            await stop.wait()

    thread = threading.Thread(target=lambda: asyncio.run(serve()))
    thread.start()
    assert ready.wait(5)
    try:
        with front_of(urls[0]) as front:
            yield front
    finally:
        loops[0].call_soon_threadsafe(stop.set)
        thread.join()


def events_of(client: anthropic.Anthropic, **changes) -> tuple[list, anthropic.types.Message]:
    body = {"model": "mock", "max_tokens": 12, "messages": MESSAGES} | changes
    with client.messages.stream(**body) as stream:
        events = [event.model_copy(deep=True) for event in stream]
        return events, stream.get_final_message()


def test_usage_is_nothing_at_the_start_and_the_truth_at_the_end(found):
    direct = ask(claude(found.servers[0].url)).parse().usage
    events, message = events_of(claude(found.front.url))
    assert events[0].type == "message_start"
    assert (events[0].message.usage.input_tokens, events[0].message.usage.output_tokens) == (0, 1)
    told = message.usage
    assert told.input_tokens + told.cache_read_input_tokens == direct.input_tokens + direct.cache_read_input_tokens
    assert told.output_tokens == direct.output_tokens == 12
    assert message.stop_reason == "max_tokens"


def test_the_stop_sequence_that_ended_a_reply_comes_through_two_servers(found):
    for url in (found.servers[0].url, found.front.url):
        message = ask(claude(url), stop_sequences=["zz", "DG"], max_tokens=40).parse()
        assert (message.content[0].text, message.stop_reason, message.stop_sequence) == ("inR", "stop_sequence", "DG")
        _, streamed = events_of(claude(url), stop_sequences=["zz", "DG"], max_tokens=40)
        assert (streamed.stop_reason, streamed.stop_sequence) == ("stop_sequence", "DG")


def test_openai_clients_can_see_the_stop_sequence_too(found):
    body = {"model": "mock", "max_tokens": 40, "messages": MESSAGES, "stop": ["zz", "DG"]}
    whole = chat(found.front.url).chat.completions.create(**body).choices[0]
    assert (whole.finish_reason, whole.model_extra["stop_reason"]) == ("stop", "DG")
    unstopped = chat(found.front.url).chat.completions.create(**body | {"max_tokens": 2}).choices[0]
    assert (unstopped.finish_reason, unstopped.model_extra) == ("length", {})


def test_a_streamed_tool_call_has_its_blocks_and_goes_back_with_its_result(found):
    client = claude(found.front.url)
    choice = {"type": "tool", "name": "note", "disable_parallel_tool_use": True}
    events, message = events_of(client, tools=[TOOL], tool_choice=choice, max_tokens=200)
    starts = [event.content_block for event in events if event.type == "content_block_start"]
    assert [(start.type, start.name) for start in starts] == [("tool_use", "note")]
    pieces = [event.partial_json for event in events if event.type == "input_json"]
    assert json.loads("".join(pieces)) == message.content[0].input
    assert message.stop_reason == "tool_use"
    result = {"type": "tool_result", "tool_use_id": message.content[0].id, "content": "noted"}
    turns = [*MESSAGES, {"role": "assistant", "content": message.content}, {"role": "user", "content": [result]}]
    assert ask(client, messages=turns, tools=[TOOL]).parse().usage.input_tokens > 0
    made = chat(found.front.url).chat.completions.create(
        model="mock", max_tokens=200, messages=MESSAGES, tools=[FUNCTION], tool_choice="required", stream=True
    )
    names = [call.function.name for chunk in made for call in chunk.choices[0].delta.tool_calls or [] if call.id]
    assert set(names) == {"note"}


def test_an_upstream_that_does_not_count_invents_no_numbers():
    with answering(stream(*HELLO, choice({}, finish="stop"), DONE)) as front:
        _, message = events_of(claude(front.url), model="scripted")
        assert (message.content[0].text, message.usage.input_tokens) == ("Héllo", 0)
        whole = chat(front.url).chat.completions.create(model="scripted", messages=MESSAGES)
        assert (whole.choices[0].message.content, whole.usage) == ("Héllo", None)
        options = {"stream": True, "stream_options": {"include_usage": True}}
        chunks = list(chat(front.url).chat.completions.create(model="scripted", messages=MESSAGES, **options))
        assert all(chunk.usage is None and chunk.choices for chunk in chunks)


def test_the_reply_starts_with_the_first_output_not_with_the_role():
    async def slowly(writer: asyncio.StreamWriter) -> None:
        writer.write((STREAM + HELLO[0]).encode())
        await writer.drain()
        await asyncio.sleep(0.3)
        writer.write("".join((*HELLO[1:], *END)).encode())
        writer.close()

    with answering(slowly) as front:
        events_of(claude(front.url), model="scripted")
        metrics = front.gateway.metrics
        labels = {"model_name": "scripted", "engine": "0"}
        assert metrics.registry.get_sample_value("vllm:time_to_first_token_seconds_sum", labels) >= 0.3


def test_leaving_while_the_upstream_has_not_answered_closes_the_connection_to_it():
    left = threading.Event()

    async def silent(writer: asyncio.StreamWriter) -> None:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            left.set()
            raise

    with answering(silent) as front:
        with pytest.raises(anthropic.APITimeoutError):
            ask(claude(front.url, timeout=0.3), model="scripted")
        assert left.wait(5)
        wait_for(lambda: front.gateway.backends[0].load == 0)


def test_both_protocols_are_told_which_fields_do_not_reach_the_upstream(found):
    thought = {"type": "thinking", "thinking": "hm", "signature": ""}
    marked = {"type": "text", "text": "hello", "cache_control": {"type": "ephemeral"}}
    plain = ask(claude(found.front.url))
    assert "llmlab-ignored" not in plain.headers
    message = ask(
        claude(found.front.url),
        max_tokens=2000,
        thinking={"type": "enabled", "budget_tokens": 1024},
        messages=[
            {"role": "user", "content": "hi"},
            {"role": "assistant", "content": [thought, {"type": "text", "text": "ho"}]},
            {"role": "user", "content": [marked]},
        ],
        extra_body={
            "context_management": {"edits": [{"type": "clear_tool_uses_20250919"}]},
            "diagnostics": {"previous_message_id": None},
        },
        extra_headers={"anthropic-beta": "context-management-2025-06-27"},
    )
    told = set(message.headers["llmlab-ignored"].split(", "))
    assert told == {"thinking", "messages.content.thinking", "cache_control", "context_management", "diagnostics"}
    body = {"model": "mock", "max_tokens": 12, "messages": MESSAGES, "reasoning_effort": "low", "store": False}
    completion = chat(found.front.url).chat.completions.with_raw_response.create(**body)
    assert set(completion.headers["llmlab-ignored"].split(", ")) == {"store", "reasoning_effort"}
    direct = chat(found.servers[0].url).chat.completions.with_raw_response.create(**body)
    assert direct.headers["llmlab-ignored"] == "store", "our engine thinks when it is asked to"
