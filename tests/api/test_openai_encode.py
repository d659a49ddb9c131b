"""Chat completion replies, streamed and whole: exact frames, and what the real SDK in strict mode makes of them."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable

import httpx2
import pytest
from openai import APIError, OpenAI
from openai.types.chat import ChatCompletion

from llmlab.api.conversation import Conversation
from llmlab.api.errors import ApiError
from llmlab.api.openai import OpenAICodec
from llmlab.api.reply import (
    BlockDelta,
    BlockStart,
    BlockStop,
    Ended,
    ReplyEvent,
    ReplyInfo,
    SampleEnd,
    Started,
    TokenLogprob,
)
from llmlab.api.usage import Usage

INFO = ReplyInfo("chatcmpl-1", "mock", 1_700_000_000)
USAGE = Usage(uncached=3, cache_read=4, output=5, thinking=2)
USAGE_SEEN = {
    "prompt_tokens": 7,
    "completion_tokens": 5,
    "total_tokens": 12,
    "prompt_tokens_details": {"cached_tokens": 4},
    "completion_tokens_details": {"reasoning_tokens": 2},
}


def conversation(**fields) -> Conversation:
    return Conversation("openai", "mock", (), **fields)


def block(sample: int, index: int, kind: str, *pieces: str, **start) -> list[ReplyEvent]:
    deltas = [BlockDelta(sample, index, piece) for piece in pieces]
    return [BlockStart(sample, index, kind, **start), *deltas, BlockStop(sample, index)]


def reply(*events: ReplyEvent) -> list[ReplyEvent]:
    return [Started(Usage(3, 4)), *events, Ended(USAGE)]


TEXT = reply(*block(0, 0, "text", "Hel", "", "lo"), SampleEnd(0, "end_turn"))
CALLS = reply(
    *block(0, 0, "text", "Well."),
    *block(0, 1, "tool_use", "", '{"city":', ' "Rome"}', id="call_a", name="weather"),
    *block(0, 2, "tool_use", "", id="call_b", name="clock"),
    SampleEnd(0, "tool_use"),
)
ONLY_CALL = reply(*block(0, 0, "tool_use", '{"a": 1}', id="call_a", name="f"), SampleEnd(0, "tool_use"))
THINKING = reply(*block(0, 0, "thinking", "Hm", "m"), *block(0, 1, "text", "Yes"), SampleEnd(0, "end_turn"))


def frames(events: Iterable[ReplyEvent], **fields) -> list:
    """Payloads of all frames, with what every chunk repeats checked and taken away."""
    encoder = OpenAICodec().stream(INFO, conversation(stream=True, **fields))
    raw = b"".join(encoder.encode(event) for event in events)
    assert raw.endswith(b"\n\n")
    lines = raw.decode().removesuffix("\n\n").split("\n\n")
    assert all(line.startswith("data: ") and "\n" not in line for line in lines)
    return [line if line == "data: [DONE]" else _without_head(json.loads(line[6:])) for line in lines]


def _without_head(chunk: dict) -> dict:
    assert (chunk.pop("id"), chunk.pop("object")) == ("chatcmpl-1", "chat.completion.chunk")
    assert (chunk.pop("created"), chunk.pop("model")) == (1_700_000_000, "mock")
    assert chunk.pop("service_tier") == "default"
    assert chunk.pop("system_fingerprint").startswith("fp_")
    return chunk


def delta(sample: int, **fields) -> dict:
    return {"choices": [{"index": sample, "delta": fields, "logprobs": None, "finish_reason": None}]}


def finish(sample: int, reason: str) -> dict:
    return {"choices": [{"index": sample, "delta": {}, "logprobs": None, "finish_reason": reason}]}


def call(index: int, **fields) -> dict:
    return delta(0, tool_calls=[{"index": index} | fields])


def whole(events: Iterable[ReplyEvent], **fields) -> dict:
    collector = OpenAICodec().collect(INFO, conversation(**fields))
    for event in events:
        collector.add(event)
    return json.loads(json.dumps(collector.body(), allow_nan=False))


def sdk(content: bytes, content_type: str) -> OpenAI:
    def respond(request: httpx2.Request) -> httpx2.Response:
        return httpx2.Response(200, content=content, headers={"content-type": content_type})

    client = httpx2.Client(transport=httpx2.MockTransport(respond))
    return OpenAI(
        api_key="k", base_url="http://lab/v1", http_client=client, max_retries=0, _strict_response_validation=True
    )


def through_sdk(events: Iterable[ReplyEvent], **fields) -> ChatCompletion:
    """What the SDK's own streaming helper puts together, every chunk validated."""
    encoder = OpenAICodec().stream(INFO, conversation(stream=True, **fields))
    pieces = [piece for event in events for piece in (encoder.ping(), encoder.encode(event))]
    client = sdk(b"".join(pieces), "text/event-stream")
    with client.chat.completions.stream(model="mock", messages=[{"role": "user", "content": "x"}]) as stream:
        return stream.get_final_completion()


def whole_through_sdk(events: Iterable[ReplyEvent], **fields) -> ChatCompletion:
    client = sdk(json.dumps(whole(events, **fields)).encode(), "application/json")
    return client.chat.completions.create(model="mock", messages=[{"role": "user", "content": "x"}])


def test_frames_of_text():
    assert frames(TEXT) == [
        delta(0, role="assistant", content=""),
        delta(0, content="Hel"),
        delta(0, content="lo"),
        finish(0, "stop"),
        "data: [DONE]",
    ]


def test_usage_is_null_on_every_chunk_and_then_has_a_chunk_of_its_own():
    *chunks, last, done = frames(TEXT, include_usage=True)
    assert [chunk["usage"] for chunk in chunks] == [None] * 4
    assert last == {"choices": [], "usage": USAGE_SEEN}
    assert done == "data: [DONE]"


def test_unknown_usage_is_not_invented():
    events = [*TEXT[:-1], Ended(Usage(0), extra={"usage_unknown": True})]
    assert frames(events, include_usage=True)[-2] == finish(0, "stop") | {"usage": None}
    assert whole(events)["usage"] is None


def test_frames_of_tool_calls():
    assert frames(CALLS) == [
        delta(0, role="assistant", content=""),
        delta(0, content="Well."),
        call(0, id="call_a", type="function", function={"name": "weather", "arguments": ""}),
        call(0, function={"arguments": '{"city":'}),
        call(0, function={"arguments": ' "Rome"}'}),
        call(1, id="call_b", type="function", function={"name": "clock", "arguments": ""}),
        call(1, function={"arguments": "{}"}),
        finish(0, "tool_calls"),
        "data: [DONE]",
    ]


def test_content_is_null_when_there_are_only_tool_calls():
    assert frames(ONLY_CALL)[0] == delta(0, role="assistant", content=None)
    assert whole(ONLY_CALL)["choices"][0]["message"]["content"] is None


def test_a_call_cut_off_before_its_arguments_stays_incomplete():
    events = reply(*block(0, 0, "tool_use", id="call_a", name="f"), SampleEnd(0, "max_tokens"))
    assert frames(events)[1:] == [
        call(0, id="call_a", type="function", function={"name": "f", "arguments": ""}),
        finish(0, "length"),
        "data: [DONE]",
    ]
    assert whole(events)["choices"][0]["message"]["tool_calls"][0]["function"]["arguments"] == ""


def test_a_call_without_arguments_before_another_that_is_cut_off_is_complete():
    events = reply(
        *block(0, 0, "tool_use", id="call_a", name="f"),
        *block(0, 1, "tool_use", '{"a', id="call_b", name="f"),
        SampleEnd(0, "max_tokens"),
    )
    assert call(0, function={"arguments": "{}"}) in frames(events)
    calls = whole(events)["choices"][0]["message"]["tool_calls"]
    assert [item["function"]["arguments"] for item in calls] == ["{}", '{"a']


def test_frames_of_thinking():
    assert frames(THINKING)[:4] == [
        delta(0, role="assistant", content=None),
        delta(0, reasoning_content="Hm"),
        delta(0, reasoning_content="m"),
        delta(0, content="Yes"),
    ]
    message = whole(THINKING)["choices"][0]["message"]
    assert (message["content"], message["reasoning_content"]) == ("Yes", "Hmm")


def test_choice_0_begins_first_whatever_arrives_first():
    events = reply(
        *block(1, 0, "text", "b"), SampleEnd(1, "end_turn"), *block(0, 0, "text", "a"), SampleEnd(0, "max_tokens")
    )
    assert frames(events) == [
        delta(0, role="assistant", content=""),
        delta(1, role="assistant", content=""),
        delta(1, content="b"),
        finish(1, "stop"),
        delta(0, content="a"),
        finish(0, "length"),
        "data: [DONE]",
    ]


def test_an_empty_reply_still_has_a_role():
    assert frames(reply(SampleEnd(0, "end_turn"))) == [
        delta(0, role="assistant", content=""),
        finish(0, "stop"),
        "data: [DONE]",
    ]
    assert whole(reply(SampleEnd(0, "end_turn")))["choices"][0]["message"]["content"] == ""


@pytest.mark.parametrize(
    ("stop", "reason"),
    [
        ("end_turn", "stop"),
        ("stop_sequence", "stop"),
        ("max_tokens", "length"),
        ("context_window", "length"),
        ("tool_use", "tool_calls"),
        ("refusal", "content_filter"),
    ],
)
def test_finish_reasons(stop, reason):
    assert finish(0, reason) in frames(reply(SampleEnd(0, stop)))
    assert whole(reply(SampleEnd(0, stop)))["choices"][0]["finish_reason"] == reason


LOGPROBS = (
    TokenLogprob("é", (195, 169), -0.5, (("é", (195, 169), -0.5), ("e", (101,), -math.inf))),
    TokenLogprob("!", (33,), -1.0),
)
SCORED = reply(
    BlockStart(0, 0, "text"),
    BlockDelta(0, 0, "é!", (7, 8), LOGPROBS),
    BlockDelta(0, 0, "", (2,), LOGPROBS[1:]),
    BlockStop(0, 0),
    SampleEnd(0, "end_turn"),
)


def test_logprobs_travel_with_the_chunk_of_their_text():
    found = [frame["choices"][0] for frame in frames(SCORED, sampling={"logprobs": 2})[1:3]]
    assert [choice["delta"]["content"] for choice in found] == ["é!", ""]
    content = found[0]["logprobs"]["content"]
    assert content[0]["top_logprobs"][1] == {"token": "e", "bytes": [101], "logprob": -9999.0}
    assert [item["token"] for item in content] == ["é", "!"]
    assert len(found[1]["logprobs"]["content"]) == 1


def test_logprobs_that_nobody_asked_for_are_not_sent():
    assert frames(SCORED)[1:3] == [delta(0, content="é!"), finish(0, "stop")]
    assert whole(SCORED)["choices"][0]["logprobs"] is None


def test_token_ids_on_request():
    events = [Started(Usage(3), prompt_token_ids=(1, 2, 3)), *SCORED[1:]]
    found = frames(events, return_token_ids=True)
    assert found[0]["prompt_token_ids"] == [1, 2, 3]
    assert [frame["choices"][0]["token_ids"] for frame in found[1:3]] == [[7, 8], [2]]
    assert all("prompt_token_ids" not in frame for frame in found[1:-1])
    body = whole(events, return_token_ids=True)
    assert (body["prompt_token_ids"], body["choices"][0]["token_ids"]) == ([1, 2, 3], [7, 8, 2])
    assert "token_ids" not in whole(events)["choices"][0]


def test_service_tiers_have_openais_names():
    info = ReplyInfo("chatcmpl-1", "mock", 1, service_tier="batch")
    chunk = OpenAICodec().stream(info, conversation()).encode(SampleEnd(0, "end_turn"))
    assert b'"service_tier":"flex"' in chunk


def test_ping_is_only_a_comment():
    assert OpenAICodec().stream(INFO, conversation()).ping() == b": ping\n\n"


def test_strict_sdk_reads_text():
    for completion in (through_sdk(TEXT, include_usage=True), whole_through_sdk(TEXT)):
        assert completion.choices[0].message.content == "Hello"
        assert completion.choices[0].finish_reason == "stop"
        assert completion.usage.to_dict() == USAGE_SEEN
        assert completion.service_tier == "default"


def test_strict_sdk_reads_tool_calls():
    for completion in (through_sdk(CALLS), whole_through_sdk(CALLS)):
        calls = completion.choices[0].message.tool_calls
        assert [(item.id, item.function.name) for item in calls] == [("call_a", "weather"), ("call_b", "clock")]
        assert [json.loads(item.function.arguments) for item in calls] == [{"city": "Rome"}, {}]
        assert completion.choices[0].message.role == "assistant"


def test_strict_sdk_reads_two_choices():
    events = reply(
        *block(0, 0, "text", "a"), *block(1, 0, "text", "b"), SampleEnd(1, "end_turn"), SampleEnd(0, "end_turn")
    )
    for completion in (through_sdk(events, sampling={"n": 2}), whole_through_sdk(events, sampling={"n": 2})):
        found = [(choice.index, choice.message.role, choice.message.content) for choice in completion.choices]
        assert found == [(0, "assistant", "a"), (1, "assistant", "b")]


def test_strict_sdk_reads_logprobs_and_thinking():
    for completion in (
        through_sdk(SCORED, sampling={"logprobs": 2}),
        whole_through_sdk(SCORED, sampling={"logprobs": 2}),
    ):
        assert [item.logprob for item in completion.choices[0].logprobs.content] == [-0.5, -1.0, -1.0]
    assert whole_through_sdk(THINKING).choices[0].message.reasoning_content == "Hmm"


def test_an_error_in_mid_stream_reaches_the_sdk():
    encoder = OpenAICodec().stream(INFO, conversation())
    raw = encoder.encode(TEXT[0]) + encoder.encode(TEXT[1]) + encoder.error(ApiError("overloaded_error", "full"))
    stream = sdk(raw, "text/event-stream").chat.completions.create(
        model="mock", messages=[{"role": "user", "content": "x"}], stream=True
    )
    with pytest.raises(APIError, match="full"):
        list(stream)


def test_error_body_has_all_four_keys():
    body = OpenAICodec().error_body(ApiError("invalid_request_error", "no", param="n"), "req_1")
    assert body == {"error": {"message": "no", "type": "invalid_request_error", "param": "n", "code": None}}


def test_the_sdks_own_accumulation_equals_the_whole_body():
    streamed = through_sdk(CALLS, include_usage=True).choices[0].message
    at_once = whole_through_sdk(CALLS).choices[0].message
    assert streamed.content == at_once.content == "Well."
    pairs = zip(streamed.tool_calls, at_once.tool_calls, strict=True)
    assert all(one.function.arguments == other.function.arguments for one, other in pairs)
