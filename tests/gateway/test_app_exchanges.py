from __future__ import annotations

import asyncio
import logging
import time

import pytest
from scripted_backend import (
    ScriptedBackend,
    chat_body,
    client_of,
    gateway_of,
    message_body,
    overloaded,
    recorded,
    reply_events,
)

from llmlab.api.errors import ApiError
from llmlab.errors import EngineStopped
from llmlab.trace.events import Stage, WireEvent, WireLink
from llmlab.trace.recorder import Recorder

ANTHROPIC = {"anthropic-version": "2023-06-01"}


async def ask(gateway, path: str = "/v1/messages", body: dict | None = None, **options):
    async with client_of(gateway) as client:
        return await client.post(path, json=message_body() if body is None else body, **options)


@pytest.mark.parametrize(
    ("method", "path", "status", "anthropic"),
    [
        ("GET", "/v1/messages", 405, True),
        ("DELETE", "/v1/messages/count_tokens", 405, True),
        ("POST", "/v1/messages/", 404, True),
        ("POST", "/v1/v1/messages", 404, True),
        ("POST", "/v1/v1/chat/completions", 404, False),
        ("GET", "/v1/chat/completions", 405, False),
        ("POST", "/v1/models", 405, False),
        ("GET", "/v1/models/nobody", 404, False),
        ("POST", "/v1/completions", 404, False),
        ("GET", "/", 404, False),
        ("POST", "/metrics", 405, False),
    ],
)
async def test_what_is_not_here_is_said_in_the_protocols_envelope(method, path, status, anthropic):
    async with client_of(gateway_of()) as client:
        response = await client.request(method, path)
    error = response.json()["error"]
    assert response.status_code == status
    assert (response.json().get("type") == "error") == anthropic
    assert set(error) == ({"type", "message"} if anthropic else {"message", "type", "param", "code"})
    assert ("allow" in response.headers) == (status == 405)


async def test_a_doubled_v1_hints_at_the_base_url():
    response = await ask(gateway_of(), "/v1/v1/messages")
    assert "base_url" in response.json()["error"]["message"]


async def test_a_path_that_is_not_here_is_answered_with_those_that_are():
    gateway = gateway_of()
    async with client_of(gateway) as client:
        message = (await client.post("/v1/nothing")).json()["error"]["message"]
        posts, gets = (part.split(", ") for part in message.partition("POST ")[2].split("; GET "))
        assert "/v1/messages" in posts
        assert "/v1/models/{id}" in gets
        assert [(await client.get(path)).status_code for path in posts] == [405] * 3
        assert [(await client.post(path)).status_code for path in gets] == [405] * len(gets)


@pytest.mark.parametrize("path", ["/v1/messages", "/v1/chat/completions"])
async def test_a_base_url_without_v1_reaches_the_same_endpoint(path):
    answers = [(await ask(gateway_of(), each)).json() for each in (path, path.removeprefix("/v1"))]
    assert [set(answer) for answer in answers] == [set(answers[0])] * 2
    assert answers[0].get("type") == answers[1].get("type")


async def test_the_alias_refuses_in_the_envelope_of_its_protocol():
    async with client_of(gateway_of()) as client:
        response = await client.get("/messages")
    assert (response.status_code, response.json()["type"]) == (405, "error")


async def test_the_shared_models_path_answers_in_the_callers_envelope():
    async with client_of(gateway_of()) as client:
        response = await client.get("/v1/models/nobody", headers=ANTHROPIC)
        page = await client.get("/v1/models?limit=1000", headers=ANTHROPIC)
        bad = await client.get("/v1/models?limit=%D9%A3", headers=ANTHROPIC)
    assert response.json()["error"]["type"] == "not_found_error"
    assert response.json()["request_id"] == response.headers["request-id"]
    assert [model["id"] for model in page.json()["data"]] == ["tiny"]
    assert bad.status_code == 400


async def test_models_of_all_backends_are_listed_once():
    backends = [ScriptedBackend("a", model_names=["x", "org/y"]), ScriptedBackend("b", model_names=["x", "z"])]
    async with client_of(gateway_of(*backends)) as client:
        ids = [model["id"] for model in (await client.get("/v1/models")).json()["data"]]
        assert (await client.get("/v1/models/org/y")).json()["id"] == "org/y"
    assert ids == ["x", "org/y", "z"]


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/chat/completions"])
async def test_chat_completions_are_served_with_and_without_v1(path):
    response = await ask(gateway_of(), path, chat_body())
    assert response.json()["choices"][0]["message"]["content"] == "one two"


async def test_the_beta_query_is_no_other_endpoint():
    assert (await ask(gateway_of(), "/v1/messages?beta=true")).json()["content"][0]["text"] == "one two"


async def test_the_warming_probe_is_answered():
    async with client_of(gateway_of()) as client:
        response = await client.head("/api/hello")
    assert (response.status_code, response.content) == (200, b"")


async def test_count_tokens_counts_and_tells_the_edits():
    body = {key: value for key, value in message_body().items() if key != "max_tokens"}
    edits = {"context_management": {"edits": [{"type": "clear_tool_uses_20250919"}]}}
    plain = await ask(gateway_of(), "/v1/messages/count_tokens", body)
    edited = await ask(gateway_of(), "/v1/messages/count_tokens", body | edits)
    assert plain.json() == {"input_tokens": 12}
    assert edited.json() == {"input_tokens": 12, "context_management": {"original_input_tokens": 15}}


async def test_every_response_has_one_id_under_both_names():
    gateway = gateway_of()
    async with client_of(gateway) as client:
        found = [
            await client.post("/v1/messages", json=message_body(stream=True)),
            await client.post("/v1/chat/completions", json={}),
            await client.get("/nowhere"),
            await client.get("/health"),
        ]
    ids = [response.headers["request-id"] for response in found]
    assert ids == [response.headers["x-request-id"] for response in found]
    assert len(set(ids)) == 4
    assert {event.wire_id for event in recorded(gateway, WireEvent)} == set(ids)
    assert all(name.startswith("req_") for name in ids)


async def test_streams_keep_proxies_from_collecting_them():
    response = await ask(gateway_of(), body=message_body(stream=True))
    assert response.headers["content-type"] == "text/event-stream; charset=utf-8"
    assert response.headers["cache-control"] == "no-cache"
    assert response.headers["x-accel-buffering"] == "no"
    assert "content-encoding" not in response.headers


async def test_ignored_fields_are_listed_in_a_harmless_header():
    response = await ask(gateway_of(), "/v1/chat/completions", chat_body(store=True, verbosity="low"))
    assert set(response.headers["llmlab-ignored"].split(", ")) == {"store", "verbosity"}
    assert "llmlab-ignored" not in (await ask(gateway_of())).headers


@pytest.mark.parametrize("stream", [True, False])
async def test_a_refusal_at_the_backend_has_a_status_even_for_a_stream(stream):
    backend = ScriptedBackend(open_script=[overloaded()])
    response = await ask(gateway_of(backend), body=message_body(stream=stream))
    assert (response.status_code, response.headers["retry-after"]) == (529, "2")
    assert response.json()["error"]["message"] == "too many requests at the engine"


@pytest.mark.parametrize("position", [0, 1, 3])
async def test_a_failure_after_the_head_is_the_last_frame(position):
    backend = ScriptedBackend(script=[*reply_events(["a", "b"])[:position], overloaded()])
    gateway = gateway_of(backend)
    message = await ask(gateway, body=message_body(stream=True))
    chat = await ask(gateway, "/v1/chat/completions", chat_body(stream=True))
    assert message.status_code == chat.status_code == 200
    assert message.text.count("event: error") == 1
    assert message.text.endswith(
        'event: error\ndata: {"type":"error","error":{"type":"overloaded_error",'
        '"message":"too many requests at the engine"}}\n\n'
    )
    assert '"error":{"message":"too many requests at the engine"' in chat.text
    assert backend.closed == 2


async def test_a_failure_of_an_answer_in_one_piece_has_a_status():
    backend = ScriptedBackend(script=[*reply_events(["a"])[:3], ApiError("api_error", "broken")])
    response = await ask(gateway_of(backend))
    assert (response.status_code, response.json()["error"]["message"]) == (500, "broken")


@pytest.mark.parametrize("stream", [True, False])
async def test_mistakes_of_ours_are_logged_and_not_told(stream, caplog):
    backend = ScriptedBackend(script=[ZeroDivisionError("secret path")])
    with caplog.at_level(logging.ERROR):
        response = await ask(gateway_of(backend), body=message_body(stream=stream))
    assert response.status_code == (200 if stream else 500)
    assert "internal server error" in response.text
    assert "secret path" not in response.text
    assert "secret path" in caplog.text


async def test_named_errors_of_the_engine_keep_their_message():
    backend = ScriptedBackend(open_script=[EngineStopped("the engine is closed: open another")])
    response = await ask(gateway_of(backend))
    assert (response.status_code, response.json()["error"]["message"]) == (500, "the engine is closed: open another")


async def test_a_silent_stream_pings_and_a_busy_one_does_not():
    silent = ScriptedBackend(script=[0.25, *reply_events(["a"])])
    response = await ask(gateway_of(silent, ping_s=0.05), body=message_body(stream=True))
    assert response.text.startswith('event: ping\ndata: {"type":"ping"}\n\n' * 3)
    assert response.text.count("event: message_stop") == 1
    chat = await ask(gateway_of(silent, ping_s=0.05), "/v1/chat/completions", chat_body(stream=True))
    assert chat.text.startswith(":")
    busy = ScriptedBackend(script=[item for event in reply_events(["a"] * 10) for item in (0.02, event)])
    response = await ask(gateway_of(busy, ping_s=0.5), body=message_body(stream=True))
    assert response.text.count("event: ping") == 1  # the codec's own, after the first block's start


async def test_a_slow_backend_does_not_hold_other_requests_up():
    gateway = gateway_of(ScriptedBackend("slow", model_names=["slow"], open_script=[0.5]), ScriptedBackend())
    async with client_of(gateway) as client:
        slow = asyncio.create_task(client.post("/v1/messages", json=message_body(model="slow")))
        start = time.monotonic()
        assert (await client.post("/v1/messages", json=message_body())).status_code == 200
        assert time.monotonic() - start < 0.4
        assert (await slow).status_code == 200


async def test_the_trace_holds_the_exchange_from_request_to_end():
    gateway = gateway_of()
    response = await ask(gateway, body=message_body(stream=True), headers={"x-client-request-id": "mine"})
    events = recorded(gateway, WireEvent)
    assert [event.kind for event in events if event.kind != "frame"] == ["request", "response", "end"]
    request, head = events[0], events[1]
    assert (request.name, request.direction, request.side) == ("POST /v1/messages", "received", "gateway")
    assert '"hello"' in request.text
    assert (head.name, head.direction) == ("200", "sent")
    frames = [event for event in events if event.kind == "frame"]
    assert [frame.name for frame in frames][:2] == ["message_start", "content_block_start"]
    assert sum(frame.size for frame in frames) == len(response.content) == events[-1].size
    assert [(link.relation, link.other_id) for link in recorded(gateway, WireLink)] == [("client", "mine")]


async def test_an_error_is_recorded_with_its_stage():
    gateway = gateway_of()
    response = await ask(gateway, body=message_body(max_tokens="many"))
    assert response.status_code == 400
    decode = recorded(gateway, Stage)[-1]
    assert (decode.name, decode.outcome, decode.details["status"]) == ("decode", "refused", 400)
    events = recorded(gateway, WireEvent)
    assert [event.kind for event in events] == ["request", "error", "response", "end"]
    assert events[-1].name == "invalid_request_error"


async def test_long_bodies_are_cut_in_the_trace():
    gateway = gateway_of()
    await ask(gateway, body=message_body(messages=[{"role": "user", "content": "x" * 200_000}]))
    request = recorded(gateway, WireEvent)[0]
    assert request.size > 200_000
    assert len(request.text) < 66_000
    assert "more characters" in request.text


async def test_nothing_is_recorded_when_recording_is_off():
    recorder = Recorder(enabled=False)
    response = await ask(gateway_of(recorder=recorder), body=message_body(stream=True))
    assert response.status_code == 200
    assert recorder.snapshot() == []
