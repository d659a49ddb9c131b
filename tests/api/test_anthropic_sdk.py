"""Both directions against the official SDK, which checks every response and event strictly here."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import anthropic
import httpx2
import pytest

from llmlab.api import sse
from llmlab.api.anthropic import AnthropicCodec
from llmlab.api.conversation import Conversation, Text, ToolResult, Turn
from llmlab.api.errors import ApiError
from llmlab.api.reply import BlockDelta, BlockStart, BlockStop, Ended, ReplyEvent, ReplyInfo, SampleEnd, Started
from llmlab.api.rules import Rules
from llmlab.api.usage import Usage

PROMPT = Usage(3, 4, 5, 6)
ASKED = Conversation(protocol="anthropic", model="mock", turns=())
TOOL = {"name": "add", "input_schema": {"type": "object"}}
TEXT = [BlockStart(0, 0, "text"), BlockDelta(0, 0, "héllo "), BlockDelta(0, 0, "\n\nwörld"), BlockStop(0, 0)]
THINKING = [BlockStart(0, 0, "thinking"), BlockDelta(0, 0, "hm"), BlockStop(0, 0, "sig")]
CALL = [
    BlockStart(0, 1, "tool_use", "toolu_1", "add"),
    BlockDelta(0, 1, '{"a": '),
    BlockDelta(0, 1, '[1, "\\u00e9"]}'),
    BlockStop(0, 1),
]


class Server:
    """Answers every request with the same events, and keeps what was asked."""

    def __init__(self, events: list[ReplyEvent], stop: Any = "end_turn", **end: Any) -> None:
        closing = [SampleEnd(0, stop), Ended(replace(PROMPT, output=9, thinking=2), **end)]
        self.events, self.asked = [Started(PROMPT), *events, *closing], []
        self.codec = AnthropicCodec()
        self.client = anthropic.Anthropic(
            api_key="k",
            base_url="http://testserver",
            max_retries=0,
            http_client=httpx2.Client(transport=httpx2.MockTransport(self.handle)),
            _strict_response_validation=True,
        )

    def handle(self, request: httpx2.Request) -> httpx2.Response:
        headers = {"request-id": "req_1"}
        body = json.loads(request.content)
        counting = request.url.path.endswith("count_tokens")
        decode = self.codec.decode_count if counting else self.codec.decode
        try:
            asked = decode(body, {name.lower(): value for name, value in request.headers.items()}, Rules())
        except ApiError as error:
            return httpx2.Response(error.status, json=self.codec.error_body(error, "req_1"), headers=headers)
        self.asked.append(asked)
        if counting:
            return httpx2.Response(200, json={"input_tokens": 7}, headers=headers)
        return httpx2.Response(200, headers=headers | (sse.HEADERS if asked.stream else {}), **self.answer(asked))

    def answer(self, asked: Conversation) -> dict[str, Any]:
        info = ReplyInfo("msg_1", asked.model, 0)
        if asked.stream:
            return {"stream": Stream(self.codec.stream(info, asked), self.events)}
        collector = self.codec.collect(info, asked)
        for event in self.events:
            collector.add(event)
        return {"json": collector.body()}


class Stream(httpx2.SyncByteStream):
    """The frames of a reply, after a ping such as a slow prefill sends."""

    def __init__(self, encoder: Any, events: list[ReplyEvent]) -> None:
        self.encoder, self.events = encoder, events

    def __iter__(self) -> Iterator[bytes]:
        yield self.encoder.ping()
        for event in self.events:
            yield self.encoder.encode(event)


def ask(**fields: Any) -> dict[str, Any]:
    return {"model": "mock", "max_tokens": 100, "messages": [{"role": "user", "content": "hi"}]} | fields


CASES = [
    (TEXT, "end_turn", {}),
    ([*THINKING, *CALL], "tool_use", {"tools": [TOOL], "thinking": {"type": "adaptive"}}),
    ([*THINKING, *CALL], "tool_use", {"tools": [TOOL], "thinking": {"type": "adaptive", "display": "omitted"}}),
    ([], "end_turn", {}),
    (TEXT, "context_window", {}),
    ([], "refusal", {}),
]


@pytest.mark.parametrize(("events", "stop", "fields"), CASES)
def test_streamed_and_whole_replies_are_the_same_message(events: Any, stop: Any, fields: dict[str, Any]) -> None:
    server = Server(events, stop)
    whole = server.client.messages.create(**ask(**fields))
    with server.client.messages.stream(**ask(**fields)) as stream:
        kinds = [event.type for event in stream]
        streamed = stream.get_final_message()
    assert kinds[-1] == "message_stop"
    assert whole._request_id == "req_1"
    assert [block.model_dump(exclude_none=True) for block in streamed.content] == [
        block.model_dump(exclude_none=True) for block in whole.content
    ]
    assert streamed.model_dump(exclude={"content"}) == whole.model_dump(exclude={"content"})
    assert [asked.stream for asked in server.asked] == [False, True]


def test_every_event_passes_strict_validation() -> None:
    events = list(Server([*THINKING, *CALL], "tool_use").client.messages.create(**ask(stream=True)))
    assert [event.type for event in events] == [
        "message_start",
        "content_block_start",
        *["content_block_delta"] * 2,
        "content_block_stop",
        "content_block_start",
        *["content_block_delta"] * 3,
        "content_block_stop",
        "message_delta",
        "message_stop",
    ]
    assert [event.index for event in events if event.type == "content_block_start"] == [0, 1]
    assert events[-2].usage.output_tokens == 9


def test_beta_fields_pass_strict_validation() -> None:
    edit = {"type": "clear_tool_uses_20250919", "cleared_input_tokens": 5, "cleared_tool_uses": 1}
    counts = {"input_tokens": 3, "output_tokens": 9, "cache_creation_input_tokens": 11, "cache_read_input_tokens": 4}
    server = Server(TEXT, applied_edits=(edit,), extra={"iterations": [{"type": "message"} | counts]})
    fields = ask(context_management={"edits": [{"type": "clear_tool_uses_20250919"}]}, betas=["b-2026-01-01"])
    whole = server.client.beta.messages.create(**fields)
    with server.client.beta.messages.stream(**fields) as stream:
        streamed = stream.get_final_message()
    for found in (whole, streamed):
        assert found.context_management.applied_edits[0].cleared_tool_uses == 1
        assert found.usage.iterations[0].output_tokens == 9


def test_a_reply_goes_back_as_the_next_request() -> None:
    server = Server([*THINKING, *CALL], "tool_use")
    first = server.client.messages.create(**ask(tools=[TOOL]))
    result = {"type": "tool_result", "tool_use_id": "toolu_1", "content": "3"}
    turns = [{"role": "assistant", "content": first.content}, {"role": "user", "content": [result]}]
    server.client.messages.create(**ask(tools=[TOOL], messages=[{"role": "user", "content": "hi"}, *turns]))
    found = server.asked[1].turns
    assert (found[1].blocks[0].text, found[1].blocks[0].signature) == ("hm", "sig")
    assert (found[1].blocks[1].id, dict(found[1].blocks[1].input)) == ("toolu_1", {"a": [1, "é"]})
    assert found[2] == Turn("user", (ToolResult("toolu_1", (Text("3"),)),))


def test_dumped_replies_go_back_too() -> None:
    server = Server([*THINKING, *CALL], "tool_use")
    first = server.client.messages.create(**ask(tools=[TOOL]))
    content = [block.model_dump() for block in first.content]
    result = {"type": "tool_result", "tool_use_id": "toolu_1"}
    turns = [{"role": "assistant", "content": content}, {"role": "user", "content": [result]}]
    server.client.messages.create(**ask(messages=[{"role": "user", "content": "hi"}, *turns]))
    assert len(server.asked) == 2


def test_refusals_reach_the_client_as_its_exceptions() -> None:
    client = Server(TEXT).client
    with pytest.raises(anthropic.BadRequestError, match="temperature: Extra inputs are not permitted") as caught:
        client.messages.create(**ask(extra_body={"temperature": 0.2}))
    assert (caught.value.request_id, caught.value.body["error"]["type"]) == ("req_1", "invalid_request_error")
    older = {"anthropic-version": "2023-06-01"}
    assert client.messages.create(**ask(extra_body={"temperature": 0.2}, extra_headers=older)).id == "msg_1"


def test_an_error_in_the_stream_reaches_the_client() -> None:
    server = Server(TEXT)
    busy = AnthropicCodec().stream(ReplyInfo("msg_1", "mock", 0), ASKED)
    frames = busy.encode(Started(PROMPT)) + busy.error(ApiError("overloaded_error", "busy"))
    server.answer = lambda asked: {"content": frames}
    with pytest.raises(anthropic.APIStatusError, match="busy"):
        list(server.client.messages.create(**ask(stream=True)))


def test_counting() -> None:
    server = Server([])
    count = server.client.messages.count_tokens(model="mock", messages=ask()["messages"], tools=[TOOL], system="s")
    assert count.input_tokens == 7
    assert server.asked[0].system == (Text("s"),)
