"""Another server as a backend, over a real socket: what is sent to it, and what becomes of all it may answer."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from email.utils import formatdate
from time import time

import pytest

from llmlab.api.conversation import (
    Conversation,
    OutputFormat,
    Text,
    Thinking,
    Tool,
    ToolChoice,
    ToolResult,
    ToolUse,
    Turn,
)
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
from llmlab.errors import InvalidParameter
from llmlab.gateway.backend import Call
from llmlab.gateway.upstream import UpstreamBackend
from llmlab.trace.recorder import Recorder

USER = Turn("user", (Text("Hello"),))
INFO = ReplyInfo("chatcmpl-1", "up-model", 1)
STREAM = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n"
DONE = "data: [DONE]\n\n"

Script = Callable[[asyncio.StreamWriter], Awaitable[None]]


@dataclass
class Upstream:
    """A server that answers each path with its script and keeps what it was sent."""

    scripts: dict[str, Script]
    requests: list[tuple[str, dict[str, str], dict]] = field(default_factory=list)
    hung_up: asyncio.Event = field(default_factory=asyncio.Event)
    tasks: list[asyncio.Task] = field(default_factory=list)
    url: str = ""

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.tasks.append(asyncio.current_task())
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        headers = {k.lower(): v for k, _, v in (line.partition(": ") for line in head[1:] if line)}
        body = await reader.readexactly(int(headers.get("content-length", 0)))
        path = head[0].split()[1]
        self.requests.append((path, headers, json.loads(body or "{}")))
        answer = asyncio.create_task(self.scripts.get(path, answer_with(404))(writer))
        if not await reader.read():
            self.hung_up.set()
        answer.cancel()
        writer.close()
        await asyncio.wait([asyncio.ensure_future(writer.wait_closed())])


@asynccontextmanager
async def upstream(chat: Script | None = None, **other: Script) -> AsyncIterator[Upstream]:
    scripts = {"/" + path.replace("__", "/"): script for path, script in other.items()}
    found = Upstream(scripts | ({"/v1/chat/completions": chat} if chat else {}))
    server = await asyncio.start_server(found.serve, "127.0.0.1", 0)
    found.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        yield found
    finally:
        server.close()
        if found.tasks:
            await asyncio.wait(found.tasks, timeout=2)


def send(*pieces: str | bytes, hold: bool = False) -> Script:
    """Writes the pieces one by one, then closes, or stays silent with the connection open."""

    async def script(writer: asyncio.StreamWriter) -> None:
        for piece in pieces:
            if writer.is_closing():
                return  # the client has left, which some tests are about
            writer.write(piece if isinstance(piece, bytes) else piece.encode())
            await asyncio.sleep(0)
        if hold:
            await asyncio.sleep(60)
        writer.close()

    return script


def answer_with(status: int, body: str | bytes = "{}", **headers: str) -> Script:
    lines = [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    head = "\r\n".join([f"HTTP/1.1 {status} X", "connection: close", *lines])
    data = body if isinstance(body, bytes) else body.encode()
    return send(head.encode() + b"\r\n\r\n" + data)


def stream(*events: str | bytes, hold: bool = False) -> Script:
    return send(STREAM, *events, hold=hold)


def event(**chunk) -> str:
    return f"data: {json.dumps(chunk)}\n\n"


def choice(delta: dict, index: int = 0, finish: str | None = None, **extra) -> str:
    return event(choices=[{"index": index, "delta": delta, "finish_reason": finish} | extra])


USAGE = event(
    choices=[],
    usage={
        "prompt_tokens": 7,
        "completion_tokens": 5,
        "prompt_tokens_details": {"cached_tokens": 4},
        "completion_tokens_details": {"reasoning_tokens": 2},
    },
)
HELLO = (choice({"role": "assistant", "content": ""}), choice({"content": "Hé"}), choice({"content": "llo"}))
END = (choice({}, finish="stop"), USAGE, DONE)
WHOLE = (*HELLO, *END)
HELLO_EVENTS = [
    Started(Usage(0)),
    BlockStart(0, 0, "text"),
    BlockDelta(0, 0, "Hé"),
    BlockDelta(0, 0, "llo"),
    BlockStop(0, 0),
    SampleEnd(0, "end_turn"),
    Ended(Usage(uncached=3, cache_read=4, output=5, thinking=2)),
]


def conversation(*turns: Turn, **fields) -> Conversation:
    return Conversation(**({"protocol": "openai", "model": "asked", "turns": turns or (USER,)} | fields))


def call(wanted: Conversation | None = None, **fields) -> Call:
    return Call("req_1", wanted or conversation(), INFO, **fields)


async def generate(found: Upstream, wanted: Conversation | None = None, **options) -> list[ReplyEvent]:
    backend = UpstreamBackend(found.url, **options)
    try:
        generation = await backend.open(call(wanted))
        assert backend.load == 1
        return [event async for event in generation]
    finally:
        assert backend.load == 0
        await backend.aclose()


async def failure(script: Script, wanted: Conversation | None = None, **options) -> ApiError:
    async with upstream(script) as found:
        with pytest.raises(ApiError) as caught:
            await generate(found, wanted, **options)
    return caught.value


async def sent(wanted: Conversation, **options) -> dict:
    async with upstream(stream(*WHOLE)) as found:
        await generate(found, wanted, **options)
    return found.requests[0][2]


async def events_of(*events: str, **fields) -> list[ReplyEvent]:
    async with upstream(stream(*events)) as found:
        return await generate(found, conversation(**fields))


# -- what is sent -------------------------------------------------------------------------------------------


async def test_smallest_request():
    assert await sent(conversation()) == {
        "model": "up-model",
        "messages": [{"role": "user", "content": "Hello"}],
        "stream": True,
        "stream_options": {"include_usage": True},
    }


async def test_turns_become_messages():
    found = await sent(
        conversation(
            USER,
            Turn("assistant", (Thinking("hm", "sig"), Text("Let me see."), ToolUse("c1", "weather", {"city": "Köln"}))),
            Turn("user", (ToolResult("c1", (Text("sunny"),)), Text("And?"))),
            Turn("system", (Text("Be brief."),)),
            Turn("assistant", (Thinking("only thinking"),)),
            system=(Text("A"), Text("B")),
        )
    )
    function = {"name": "weather", "arguments": '{"city": "Köln"}'}
    assert found["messages"] == [
        {"role": "system", "content": "A\n\nB"},
        {"role": "user", "content": "Hello"},
        {
            "role": "assistant",
            "content": "Let me see.",
            "tool_calls": [{"id": "c1", "type": "function", "function": function}],
        },
        {"role": "tool", "tool_call_id": "c1", "content": "sunny"},
        {"role": "user", "content": "And?"},
        {"role": "system", "content": "Be brief."},
    ]


@pytest.mark.parametrize(
    ("choice", "expected"),
    [
        (ToolChoice("auto"), "auto"),
        (ToolChoice("any"), "required"),
        (ToolChoice("none"), "none"),
        (ToolChoice("tool", "f"), {"type": "function", "function": {"name": "f"}}),
    ],
)
async def test_tools_and_tool_choice(choice, expected):
    found = await sent(conversation(tools=(Tool("f", "does f", {"type": "object"}),), tool_choice=choice))
    function = {"name": "f", "description": "does f", "parameters": {"type": "object"}}
    assert found["tools"] == [{"type": "function", "function": function}]
    assert found["tool_choice"] == expected
    assert "parallel_tool_calls" not in found


async def test_sampling_format_and_extensions_are_sent_only_when_set():
    found = await sent(
        conversation(
            sampling={"max_tokens": 9, "stop": ("a",), "logprobs": 2, "top_k": 5, "include_stop": True, "seed": None},
            format=OutputFormat({"type": "object"}),
            tools=(Tool("f"),),
            tool_choice=ToolChoice(parallel=False),
            cache_salt="s",
            return_token_ids=True,
        )
    )
    assert (found["max_tokens"], found["stop"], found["top_logprobs"], found["top_k"]) == (9, ["a"], 2, 5)
    assert found["logprobs"] is found["include_stop_str_in_output"] is found["return_token_ids"] is True
    assert found["response_format"]["json_schema"]["schema"] == {"type": "object"}
    assert (found["cache_salt"], found["parallel_tool_calls"]) == ("s", False)
    assert not {"seed", "temperature", "min_p", "n"} & set(found)


async def test_the_name_of_the_output_limit_can_be_chosen():
    wanted = conversation(sampling={"max_tokens": 9})
    assert (await sent(wanted, max_tokens_field="max_completion_tokens"))["max_completion_tokens"] == 9


async def test_our_own_key_is_sent_and_nothing_of_the_clients():
    async with upstream(stream(*WHOLE)) as found:
        backend = UpstreamBackend(found.url + "/v1/", api_key="sk-up", send_salt=True)
        generation = await backend.open(call(conversation(user="client", cache_key="k"), salt="who"))
        await generation.aclose()
        await backend.aclose()
    path, headers, body = found.requests[0]
    assert (path, headers["authorization"], body["cache_salt"]) == ("/v1/chat/completions", "Bearer sk-up", "who")
    usual = {"host", "accept", "accept-encoding", "connection", "user-agent", "content-type", "content-length"}
    assert set(headers) <= usual | {"authorization"}
    assert not {"user", "prompt_cache_key"} & set(body)


async def test_prewarming_is_refused_before_anything_is_sent():
    async with upstream(stream(*WHOLE)) as found:
        with pytest.raises(ApiError, match="another server") as caught:
            await generate(found, conversation(prewarm=True))
    assert (caught.value.status, found.requests) == (400, [])


@pytest.mark.parametrize(
    "url", ["ftp://x", "localhost:8000", "http://", "http://k:s@h", "http://h/v1?x=1", "http://h:x", 7]
)
def test_unusable_addresses(url):
    with pytest.raises(InvalidParameter):
        UpstreamBackend(url)


# -- what comes back ----------------------------------------------------------------------------------------


async def test_text_and_usage():
    assert await events_of(*WHOLE) == HELLO_EVENTS


@pytest.mark.parametrize("size", [1, 2, 3, 7])
@pytest.mark.parametrize("line_end", ["\n", "\r\n", "\r"])
async def test_any_split_and_any_line_end(size, line_end):
    data = ": ping\n\n".join(WHOLE).replace("\n", line_end).encode()
    pieces = [data[i : i + size] for i in range(0, len(data), size)]
    async with upstream(stream(*pieces)) as found:
        assert await generate(found) == HELLO_EVENTS


async def test_tool_calls():
    def fragment(index: int, arguments: str, **more) -> str:
        function = {"arguments": arguments} | ({"name": more.pop("name")} if "name" in more else {})
        return choice({"tool_calls": [{"index": index, "function": function} | more]})

    found = await events_of(
        choice({"role": "assistant", "content": "Well."}),
        fragment(0, "", id="c1", name="f"),
        fragment(0, '{"a"'),
        fragment(0, ": 1}"),
        fragment(1, "{}", id="c2", name="g"),
        choice({}, finish="tool_calls"),
        DONE,
    )
    assert found[1:-1] == [
        BlockStart(0, 0, "text"),
        BlockDelta(0, 0, "Well."),
        BlockStop(0, 0),
        BlockStart(0, 1, "tool_use", "c1", "f"),
        BlockDelta(0, 1, '{"a"'),
        BlockDelta(0, 1, ": 1}"),
        BlockStop(0, 1),
        BlockStart(0, 2, "tool_use", "c2", "g"),
        BlockDelta(0, 2, "{}"),
        BlockStop(0, 2),
        SampleEnd(0, "tool_use"),
    ]


@pytest.mark.parametrize(("protocol", "prefix"), [("openai", "call_"), ("anthropic", "toolu_")])
async def test_a_forced_call_without_index_and_id(protocol, prefix):
    found = await events_of(
        choice({"tool_calls": [{"function": {"name": "f", "arguments": "{"}}]}),
        choice({"tool_calls": [{"function": {"arguments": "}"}}]}),
        choice({}, finish="stop"),
        DONE,
        protocol=protocol,
    )
    assert found[1].id.startswith(prefix)
    assert [event.text for event in found if isinstance(event, BlockDelta)] == ["{", "}"]
    assert found[-2] == SampleEnd(0, "tool_use")


@pytest.mark.parametrize("name", ["reasoning_content", "reasoning"])
async def test_thinking_under_both_names(name):
    found = await events_of(choice({name: "Hm"}), choice({"content": "Yes"}), choice({}, finish="stop"), DONE)
    assert found[1:7] == [
        BlockStart(0, 0, "thinking"),
        BlockDelta(0, 0, "Hm"),
        BlockStop(0, 0),
        BlockStart(0, 1, "text"),
        BlockDelta(0, 1, "Yes"),
        BlockStop(0, 1),
    ]


async def test_two_samples_keep_apart():
    found = await events_of(
        choice({"content": "a"}),
        choice({"content": "b"}, index=1),
        choice({"content": "c"}, finish="length"),
        choice({}, index=1, finish="stop"),
        DONE,
        sampling={"n": 2},
    )
    texts = {
        number: "".join(e.text for e in found if isinstance(e, BlockDelta) and e.sample == number) for number in (0, 1)
    }
    assert texts == {0: "ac", 1: "b"}
    assert [event for event in found if isinstance(event, SampleEnd)] == [
        SampleEnd(0, "max_tokens"),
        SampleEnd(1, "end_turn"),
    ]


async def test_logprobs_token_ids_and_stop_string():
    items = [
        {
            "token": "é",
            "logprob": -1.0,
            "bytes": None,
            "top_logprobs": [{"token": "e", "logprob": -2.0, "bytes": [101]}],
        }
    ]
    found = await events_of(
        event(
            choices=[{"delta": {"content": "é"}, "logprobs": {"content": items}, "token_ids": [9]}],
            prompt_token_ids=[1],
        ),
        choice({}, finish="stop", stop_reason="END", token_ids=[2]),
        DONE,
    )
    assert found[0].prompt_token_ids == (1,)
    assert found[2] == BlockDelta(0, 0, "é", (9,), (TokenLogprob("é", (195, 169), -1.0, (("e", (101,), -2.0),)),))
    assert found[3] == BlockDelta(0, 0, "", (2,))
    assert found[5] == SampleEnd(0, "stop_sequence", "END")


async def test_without_usage_that_is_said():
    *_, ended = await events_of(*HELLO, choice({}, finish="stop"), DONE)
    assert ended == Ended(Usage(0), extra={"usage_unknown": True})
    *_, ended = await events_of(*HELLO, choice({}, finish="stop"), event(choices=[], usage={}))
    assert ended.extra == {"usage_unknown": True}


async def test_usage_on_every_chunk_is_known_at_the_start():
    started, *_, ended = await events_of(
        event(choices=[{"delta": {"content": "a"}}], usage={"prompt_tokens": 7, "completion_tokens": 1}),
        event(choices=[{"delta": {}, "finish_reason": "stop"}], usage={"prompt_tokens": 7, "completion_tokens": 2}),
        DONE,
    )
    assert (started.usage, ended.usage) == (Usage(7), Usage(7, output=2))


async def test_our_own_frames_come_back_as_the_events_they_were():
    events = [
        Started(Usage(0)),
        BlockStart(0, 0, "thinking"),
        BlockDelta(0, 0, "hm"),
        BlockStop(0, 0),
        BlockStart(0, 1, "text"),
        BlockDelta(0, 1, "Well"),
        BlockStop(0, 1),
        BlockStart(0, 2, "tool_use", "c1", "f"),
        BlockDelta(0, 2, '{"a": 1}'),
        BlockStop(0, 2),
        SampleEnd(0, "tool_use"),
        Ended(Usage(uncached=3, cache_read=4, output=5, thinking=2)),
    ]
    encoder = OpenAICodec().stream(INFO, conversation(include_usage=True))
    async with upstream(stream(*(encoder.encode(event) for event in events))) as found:
        assert await generate(found) == events


# -- what goes wrong ----------------------------------------------------------------------------------------


ENVELOPE = json.dumps({"error": {"message": "too many", "type": "x", "param": "n", "code": "c"}})
ANTHROPIC = json.dumps({"type": "error", "error": {"type": "overloaded_error", "message": "too many"}})
OLD_VLLM = json.dumps({"object": "error", "message": "too many", "code": 400})
FASTAPI = json.dumps({"detail": "too many"})


@pytest.mark.parametrize("body", [ENVELOPE, ANTHROPIC, OLD_VLLM, FASTAPI, json.dumps({"error": "too many"})])
async def test_messages_of_all_envelopes_are_passed_on(body):
    error = await failure(answer_with(400, body), name="up")
    assert (error.kind, error.status, error.message) == ("invalid_request_error", 400, "upstream up: too many")


@pytest.mark.parametrize(
    ("status", "kind", "expected"),
    [
        (400, "invalid_request_error", 400),
        (401, "api_error", 502),
        (402, "api_error", 502),
        (403, "api_error", 502),
        (404, "not_found_error", 404),
        (408, "timeout_error", 504),
        (409, "conflict_error", 409),
        (413, "request_too_large", 413),
        (418, "api_error", 502),
        (422, "invalid_request_error", 400),
        (429, "rate_limit_error", 429),
        (500, "api_error", 500),
        (502, "api_error", 502),
        (503, "overloaded_error", 503),
        (504, "timeout_error", 504),
        (529, "overloaded_error", 529),
        (204, "api_error", 502),
    ],
)
async def test_statuses(status, kind, expected):
    error = await failure(answer_with(status, ENVELOPE if status != 204 else ""))
    assert (error.kind, error.status) == (kind, expected)


async def test_a_refusal_of_our_key_says_nothing_of_it():
    error = await failure(answer_with(401, json.dumps({"error": {"message": "bad key sk-up"}})), api_key="sk-up")
    assert "sk-up" not in error.message
    assert error.should_retry is False
    error = await failure(answer_with(500, json.dumps({"error": {"message": "bad key sk-up"}})), api_key="sk-up")
    assert "bad key [key]" in error.message


@pytest.mark.parametrize(
    ("headers", "expected"),
    [
        ({"retry_after": "7"}, 7.0),
        ({"retry_after": "1.5"}, 1.5),
        ({"retry_after_ms": "250", "retry_after": "9"}, 0.25),
        ({"retry_after": "1e9"}, 86_400.0),
        ({"retry_after": "-1"}, None),
        ({"retry_after": "nan"}, None),
        ({"retry_after": "inf"}, None),
        ({"retry_after": "soon"}, None),
        ({"retry_after": formatdate(0, usegmt=True)}, None),
    ],
)
async def test_retry_after_is_carried_over(headers, expected):
    assert (await failure(answer_with(429, ENVELOPE, **headers))).retry_after == expected


async def test_retry_after_as_a_date_and_should_retry():
    date = formatdate(time() + 100, usegmt=True)
    error = await failure(answer_with(429, ENVELOPE, retry_after=date, x_should_retry="false"))
    assert 90 < error.retry_after < 101
    assert error.should_retry is False


async def test_a_page_for_people_is_not_repeated():
    error = await failure(answer_with(502, "<html>secret</html>", content_type="text/html"))
    assert (error.status, "secret" in error.message, "text/html" in error.message) == (502, False, True)
    error = await failure(answer_with(200, "<html>hi</html>", content_type="text/html"))
    assert (error.status, "text/html, not an event stream" in error.message) == (502, True)


async def test_redirects_are_not_followed():
    error = await failure(answer_with(307, "", location="http://127.0.0.1:1/"))
    assert (error.status, "redirects" in error.message) == (502, True)


async def test_nobody_listens():
    async with upstream() as found:
        pass
    with pytest.raises(ApiError, match=r"cannot be reached \(Connection refused\)") as caught:
        await generate(found)
    assert (caught.value.status, caught.value.should_retry) == (502, True)


async def test_silence_is_a_timeout():
    error = await failure(stream(*HELLO, hold=True), timeout=0.05)
    assert (error.kind, error.status) == ("timeout_error", 504)
    error = await failure(send(hold=True), timeout=0.05)
    assert error.kind == "timeout_error"


TRUNCATED = [(), HELLO, (*HELLO, DONE), (*HELLO, END[0][:-1]), (*HELLO, END[0][:9])]


@pytest.mark.parametrize("events", TRUNCATED)
async def test_a_stream_that_ends_early_is_an_error(events):
    error = await failure(stream(*events))
    assert (error.status, "in the middle" in error.message) == (502, True)


async def test_a_chunked_stream_that_breaks_off_is_an_error():
    head = STREAM.replace("connection: close", "transfer-encoding: chunked")
    error = await failure(send(head, f"{len(HELLO[0]):x}\r\n{HELLO[0]}\r\n"))
    assert (error.status, "broke" in error.message) == (502, True)


async def test_a_missing_done_is_forgiven():
    assert await events_of(*WHOLE[:-1]) == HELLO_EVENTS


@pytest.mark.parametrize(
    ("error", "kind", "words"),
    [
        ({"message": "full", "type": "overloaded_error"}, "overloaded_error", "full"),
        ({"message": "full", "type": "odd", "code": 429}, "rate_limit_error", "full"),
        ({"message": 3, "type": []}, "api_error", "without a message"),
        ("boom", "api_error", "boom"),
    ],
)
async def test_an_error_event_in_mid_stream(error, kind, words):
    found = await failure(stream(*HELLO, event(error=error)))
    assert (found.kind, words in found.message) == (kind, True)


def calls(*found: dict) -> str:
    return choice({"tool_calls": list(found)})


MALFORMED = [
    "data: {\n\n",
    "data: " + "[" * 100_000 + "\n\n",
    "data: 7\n\n",
    event(choices=7),
    event(choices=[{"delta": {"content": 7}}]),
    choice({"content": "x"}, index=1),
    choice({"content": "x"}, index=-1),
    calls({"index": 0, "id": "c"}),
    calls({"index": 1, "function": {"name": "f"}}),
    calls({"index": 0, "function": {"name": "f"}}, {"index": 1, "function": {"name": "f"}}, {"index": 0}),
    choice({}, finish="error"),
    r'data: {"choices": [{"delta": {"content": "\ud800"}}]}' + "\n\n",
]


@pytest.mark.parametrize("malformed", MALFORMED)
async def test_malformed_events(malformed):
    error = await failure(stream(malformed, *WHOLE))
    assert (error.kind, error.status) == ("api_error", 502)


async def test_an_endless_answer_is_cut():
    error = await failure(stream(*HELLO * 10), max_response_bytes=100)
    assert "more than 100 bytes" in error.message
    error = await failure(answer_with(400, "x" * 100_000))
    assert error.status == 400


async def test_compressed_answers_are_refused():
    error = await failure(answer_with(200, b"\x1f\x8b", content_encoding="gzip", content_type="text/event-stream"))
    assert (error.status, "compressed" in error.message) == (502, True)


# -- leaving early ------------------------------------------------------------------------------------------


async def test_aclose_hangs_up_at_once():
    async with upstream(stream(*HELLO, hold=True)) as found:
        backend = UpstreamBackend(found.url)
        generation = await backend.open(call())
        events = aiter(generation)
        assert [await anext(events) for _ in range(4)] == HELLO_EVENTS[:4]
        await generation.aclose()
        await generation.aclose()
        await asyncio.wait_for(found.hung_up.wait(), 2)
        assert (backend.load, [event async for event in events]) == (0, [])
        await backend.aclose()


async def test_aclose_from_another_task_ends_the_reader():
    async with upstream(stream(*HELLO, hold=True)) as found:
        backend = UpstreamBackend(found.url)
        generation = await backend.open(call())
        received: list[ReplyEvent] = []

        async def read() -> None:
            async for item in generation:
                received.append(item)

        task = asyncio.create_task(read())
        while len(received) < 4:
            await asyncio.sleep(0.001)
        await generation.aclose()
        await asyncio.wait_for(task, 2)
        await asyncio.wait_for(found.hung_up.wait(), 2)
        await backend.aclose()
    assert received == HELLO_EVENTS[:4]


@pytest.mark.parametrize("script", [stream(*HELLO, hold=True), send(hold=True)])
async def test_a_cancelled_task_hangs_up(script):
    async with upstream(script) as found:
        task = asyncio.create_task(generate(found))
        while not found.requests:
            await asyncio.sleep(0.001)
        await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await asyncio.wait_for(found.hung_up.wait(), 2)


async def test_stages_are_recorded():
    recorder = Recorder()
    async with upstream(stream(*WHOLE)) as found:
        await generate(found, name="up", recorder=recorder)
    async with upstream(answer_with(429, ENVELOPE)) as found:
        with pytest.raises(ApiError):
            await generate(found, name="up", recorder=recorder)
    stages = recorder.snapshot()
    assert [(s.wire_id, s.side, s.name, s.outcome) for s in stages] == [
        ("req_1", "gateway", "upstream", "ok"),
        ("req_1", "gateway", "upstream stream", "ok"),
        ("req_1", "gateway", "upstream", "refused"),
    ]
    assert stages[1].details == {"bytes": sum(len(event.encode()) for event in WHOLE), "backend": "up"}
    assert stages[2].details["status"] == 429


# -- models and counting ------------------------------------------------------------------------------------

LIST = json.dumps({"object": "list", "data": [{"id": "a", "created": 5, "max_model_len": 99}, {"id": "b"}]})


async def test_models_are_listed_once_and_remembered():
    async with upstream(v1__models=answer_with(200, LIST)) as found:
        backend = UpstreamBackend(found.url, name="up")
        listed = [await backend.models() for _ in range(2)][1]
        await backend.aclose()
    assert [(m.id, m.created, m.max_input_tokens, m.owned_by) for m in listed] == [
        ("a", 5, 99, "up"),
        ("b", 0, None, "up"),
    ]
    assert len(found.requests) == 1


async def test_fixed_models_need_no_request():
    backend = UpstreamBackend("http://127.0.0.1:1", models=["x"])
    assert [model.id for model in await backend.models()] == ["x"]


@pytest.mark.parametrize("body", ["[]", "{}", "<html>", '{"data": [{"id": 7}]}', "[" * 100_000])
async def test_an_unreadable_model_list(body):
    async with upstream(v1__models=answer_with(200, body)) as found:
        backend = UpstreamBackend(found.url)
        with pytest.raises(ApiError) as caught:
            await backend.models()
        await backend.aclose()
    assert caught.value.status == 502


async def count(tokenize: Script) -> tuple[tuple[int, int], Upstream]:
    async with upstream(v1__models=answer_with(200, LIST), tokenize=tokenize) as found:
        backend = UpstreamBackend(found.url)
        try:
            return await backend.count_tokens(conversation(tools=(Tool("f"),))), found
        finally:
            await backend.aclose()


async def test_counting_asks_the_tokenizer_of_the_upstream():
    counted, found = await count(answer_with(200, '{"count": 17, "tokens": []}'))
    assert counted == (17, 17)
    body = found.requests[-1][2]
    assert (body["model"], body["messages"]) == ("a", [{"role": "user", "content": "Hello"}])
    assert body["tools"][0]["function"]["name"] == "f"


@pytest.mark.parametrize("script", [answer_with(404), answer_with(405), answer_with(200, "{}")])
async def test_an_upstream_that_cannot_count(script):
    with pytest.raises(ApiError, match="cannot count tokens") as caught:
        await count(script)
    assert caught.value.status == 404


async def test_other_failures_of_counting_are_passed_on():
    with pytest.raises(ApiError, match="too many") as caught:
        await count(answer_with(429, ENVELOPE))
    assert caught.value.status == 429
