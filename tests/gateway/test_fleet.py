"""One gateway in front of several servers: what clients see of it, and what happens when a server goes away."""

from __future__ import annotations

import asyncio
import json

import anthropic
import httpx2
import openai
import pytest
from fleet import FUNCTION, MESSAGES, NUMBER, TOOL, ask, backends_of, chat, claude, fleet, front_of, two_labs, wait_for
from scripted_backend import ScriptedBackend, gateway_of, message_body, recorded

import llmlab
from llmlab.api.errors import ApiError
from llmlab.errors import InvalidParameter, LabError
from llmlab.gateway.app import Gateway
from llmlab.gateway.engine_backend import EngineBackend
from llmlab.gateway.server import Server
from llmlab.gateway.settings import Settings
from llmlab.gateway.upstream import UpstreamBackend
from llmlab.gateway.upstream_health import Health
from llmlab.trace.events import Stage


@pytest.fixture(scope="module")
def labs():
    with two_labs() as found:
        yield found


@pytest.fixture
def pair(labs):
    with fleet(labs) as found:
        yield found


# -- the SDKs -----------------------------------------------------------------------------------------------


def test_anthropic_sdk_gets_from_the_fleet_what_it_gets_from_a_server(pair):
    for url in (pair.servers[0].url, pair.front.url):
        client = claude(url)
        message = ask(client).parse()
        with client.messages.stream(model="mock", max_tokens=12, messages=MESSAGES) as stream:
            assert stream.get_final_text() == message.content[0].text == "inRDGQFBf^H*"
        call = ask(client, tools=[TOOL], tool_choice={"type": "tool", "name": "note"}, max_tokens=200).parse()
        assert (call.content[0].type, call.content[0].name) == ("tool_use", "note")
        assert type(call.content[0].input["a"]) is bool
        shaped = ask(client, output_config={"format": {"type": "json_schema", "schema": NUMBER}}, max_tokens=200)
        assert json.loads(shaped.parse().content[0].text).keys() == {"a"}
        assert [model.id for model in client.models.list()] == ["mock"]


def test_openai_sdk_gets_from_the_fleet_what_it_gets_from_a_server(pair):
    for url in (pair.servers[0].url, pair.front.url):
        completions = chat(url).chat.completions
        body = {"model": "mock", "max_tokens": 12, "messages": MESSAGES}
        whole = completions.create(**body)
        chunks = list(completions.create(**body, stream=True, stream_options={"include_usage": True}))
        text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
        assert text == whole.choices[0].message.content == "inRDGQFBf^H*"
        assert chunks[-1].usage.prompt_tokens == whole.usage.prompt_tokens == 22
        named = {"type": "function", "function": {"name": "note"}}
        call = completions.create(**body | {"max_tokens": 200}, tools=[FUNCTION], tool_choice=named)
        assert json.loads(call.choices[0].message.tool_calls[0].function.arguments).keys() == {"a"}
        form = {"type": "json_schema", "json_schema": {"name": "a", "schema": NUMBER, "strict": True}}
        shaped = completions.create(**body | {"max_tokens": 200}, response_format=form)
        assert json.loads(shaped.choices[0].message.content).keys() == {"a"}


def test_token_counts_are_the_upstreams_own(pair):
    turns = [
        *MESSAGES,
        {"role": "assistant", "content": [{"type": "tool_use", "id": "toolu_1", "name": "note", "input": {"a": True}}]},
        {
            "role": "user",
            "content": [
                {"type": "tool_result", "tool_use_id": "toolu_1", "content": "noted", "is_error": True},
                {"type": "text", "text": "and now?"},
            ],
        },
    ]
    body = {"model": "mock", "messages": turns, "tools": [TOOL], "system": "Be brief."}
    counts = [claude(url).messages.count_tokens(**body).input_tokens for url in (pair.front.url, pair.servers[0].url)]
    assert counts[0] == counts[1] > 300


def test_refusals_of_an_upstream_keep_their_kind_and_are_not_taken_elsewhere(pair):
    too_long = {"max_tokens": 5000, "extra_body": {"stream": False}, "timeout": 60}
    with pytest.raises(anthropic.BadRequestError, match=r"exceed context limit: 22 \+ 5000 > 4096") as caught:
        ask(claude(pair.front.url), **too_long)
    assert caught.value.body["error"]["type"] == "invalid_request_error"
    with pytest.raises(openai.BadRequestError) as refused:
        chat(pair.front.url).chat.completions.create(model="mock", max_tokens=5000, messages=MESSAGES)
    assert refused.value.code == "context_length_exceeded"
    assert pair.stages("failover") == []
    assert pair.front.gateway.backends[0].health.rest_s == 0


def test_a_client_that_leaves_frees_the_blocks_of_the_upstream(pair):
    with claude(pair.front.url).messages.stream(model="mock", max_tokens=4000, messages=MESSAGES) as stream:
        next(iter(stream.text_stream))
        assert sum(lab.engine.pool.num_used for lab in pair.labs) > 0
    wait_for(lambda: not any(lab.engine.pool.num_used for lab in pair.labs))
    wait_for(lambda: not any(backend.load for backend in pair.front.gateway.backends))


# -- servers that go away -----------------------------------------------------------------------------------


def test_a_dead_upstream_is_tried_once_and_then_left_out(pair):
    client = claude(pair.front.url)
    first, second = (backend.name for backend in pair.front.gateway.backends)
    assert backends_of(client, 1) == [first]
    pair.servers[0].close()
    assert backends_of(client, 4) == [second] * 4
    refused = [stage for stage in pair.stages("upstream") if stage.outcome == "refused"]
    assert [stage.details["backend"] for stage in refused] == [first]
    (move,) = pair.stages("failover")
    assert (move.details["failed"], move.details["backend"]) == (first, second)
    assert "502" in move.reason
    assert f"{first} rests after a failure" in pair.stages("route")[-1].reason


def test_tokens_are_counted_by_whoever_is_left(pair):
    count = claude(pair.front.url).messages.count_tokens
    assert count(model="mock", messages=MESSAGES).input_tokens == 22
    pair.servers[0].close()
    assert [count(model="mock", messages=MESSAGES).input_tokens for _ in range(3)] == [22] * 3
    assert len(pair.stages("failover")) == 1


def test_when_all_are_dead_the_error_is_named_and_both_were_tried(pair):
    claude(pair.front.url).models.list()
    for server in pair.servers:
        server.close()
    with pytest.raises(anthropic.InternalServerError, match="cannot be reached") as caught:
        ask(claude(pair.front.url))
    assert caught.value.status_code == 502
    assert len(pair.stages("failover")) == 1
    with pytest.raises(anthropic.InternalServerError):
        ask(claude(pair.front.url))  # resting, all of them, and asked nevertheless
    assert "all its backends rest" in pair.stages("route")[-1].reason


def test_an_upstream_that_comes_back_is_used_again(labs):
    port = labs[0].serve(drain_s=0)
    with front_of(port.url) as front, port:
        client = claude(front.url)
        assert ask(client).status_code == 200
        address = port.port
        port.close()
        with pytest.raises(anthropic.InternalServerError):
            ask(client)
        assert front.gateway.backends[0].health.failures == 1
        with labs[0].serve(port=address, drain_s=0):
            assert ask(client).status_code == 200
        assert front.gateway.backends[0].health.failures == 0


def test_an_upstream_that_ends_its_stream_early_is_an_error_in_the_stream_and_rests(pair):
    client = claude(pair.front.url)
    with client.messages.stream(model="mock", max_tokens=4000, messages=MESSAGES) as stream:
        pieces = stream.text_stream
        next(pieces)
        pair.servers[0].close(0)
        with pytest.raises(anthropic.APIStatusError, match=r"upstream 127\.0\.0\.1"):
            list(pieces)
    assert pair.stages("upstream stream")[-1].outcome == "failed"
    assert backends_of(client, 1) == [pair.front.gateway.backends[1].name]


def test_a_full_upstream_passes_the_request_on_and_rests_as_long_as_it_said():
    full = [ApiError("overloaded_error", "full", retry_after=3)]
    gateway = gateway_of(ScriptedBackend("full", open_script=full), ScriptedBackend("free"), routing="round_robin")
    response = asyncio.run(_post(gateway))
    assert (response.status_code, response.headers["llmlab-backend"]) == (200, "free")
    stages = [stage for stage in recorded(gateway, Stage) if stage.name in ("failover", "open")]
    assert [(stage.name, stage.outcome) for stage in stages] == [("failover", "ok"), ("open", "ok")]
    health = Health(clock=lambda: 100.0)
    health.failed(full[0])
    assert health.rest_s == 3


@pytest.mark.parametrize("kind", ["invalid_request_error", "not_found_error", "timeout_error"])
def test_what_another_backend_would_repeat_is_not_taken_there(kind):
    other = ScriptedBackend("other")
    gateway = gateway_of(ScriptedBackend("first", open_script=[ApiError(kind, "no")]), other, routing="round_robin")
    assert asyncio.run(_post(gateway)).status_code in (400, 404, 504)
    assert other.calls == []


async def _post(gateway) -> httpx2.Response:
    transport = httpx2.ASGITransport(app=gateway.app)
    async with httpx2.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:
        return await client.post("/v1/messages", json=message_body())


async def test_an_upstream_that_never_tells_its_models_holds_nobody_up_for_long(monkeypatch):
    monkeypatch.setattr("llmlab.gateway.upstream.LIST_TIMEOUT_S", 0.1)
    silent = await asyncio.start_server(lambda *_: asyncio.sleep(30), "127.0.0.1", 0)
    backend = UpstreamBackend(f"http://127.0.0.1:{silent.sockets[0].getsockname()[1]}")
    with pytest.raises(ApiError, match="does not tell its models"):
        await backend.models()
    assert backend.health.rest_s > 0
    silent.close()
    await backend.aclose()


def test_rests_grow_with_failures_in_a_row_and_end_with_a_success():
    now = [0.0]
    health = Health(clock=lambda: now[0])
    rests = []
    for _ in range(7):
        for _ in range(5):  # requests that fail together count once
            health.failed(ApiError("api_error", "down", status=502, should_retry=True))
        rests.append(health.rest_s)
        now[0] += health.rest_s
    assert rests == [1, 2, 4, 8, 16, 30, 30]
    health.failed(ApiError("invalid_request_error", "too long"))
    assert (health.rest_s, health.failures) == (0, 0)
    for error in (ApiError("api_error", "a bug"), ApiError("api_error", "strange chunk", status=502)):
        health.failed(error)
        assert health.rest_s == 0


# -- routing ------------------------------------------------------------------------------------------------


def test_round_robin_shows_in_the_header_and_in_the_trace(labs):
    with fleet(labs, routing="round_robin") as found:
        names = [backend.name for backend in found.front.gateway.backends]
        assert backends_of(claude(found.front.url), 4) == names * 2
        assert [stage.details["backend"] for stage in found.stages("route")] == names * 2


def test_prefix_affine_keeps_a_conversation_where_its_prefix_is_cached(labs):
    with fleet(labs, routing="prefix_affine") as found:
        client, homes = claude(found.front.url), set()
        for topic in range(6):
            turns, cached, at = [{"role": "user", "content": f"topic {topic} " + "x" * 60}], [], set()
            for _ in range(3):
                response = ask(client, messages=turns)
                message = response.parse()
                at.add(response.headers["llmlab-backend"])
                cached.append(message.usage.cache_read_input_tokens)
                turns += [{"role": "assistant", "content": message.content}, {"role": "user", "content": "go on"}]
            assert len(at) == 1
            assert cached[0] < cached[1] < cached[2]
            homes |= at
    assert len(homes) == 2


@pytest.mark.parametrize("fallback", [True, False])
def test_an_unknown_model(labs, fallback):
    with fleet(labs, fallback_model=fallback) as found:
        if fallback:
            assert ask(claude(found.front.url), model="claude-x").parse().model == "mock"
        else:
            with pytest.raises(anthropic.NotFoundError, match="Available: mock"):
                ask(claude(found.front.url), model="claude-x")


# -- from a notebook ----------------------------------------------------------------------------------------


def test_a_lab_serves_its_own_engine_and_others_at_one_address(labs):
    own, other = labs
    with other.serve(drain_s=0) as upstream, own.serve(upstreams=[upstream.url], routing="round_robin") as server:
        name = upstream.url.removeprefix("http://")
        answers = [ask(claude(server.url)) for _ in range(2)]
        assert [answer.headers["llmlab-backend"] for answer in answers] == ["mock", name]
        assert answers[0].parse().content == answers[1].parse().content
        assert repr(server) == f"<Server {server.url}: mock, {name}>"
    assert repr(server) == f"<Server stopped: mock, {name}>"


def test_an_engine_goes_on_alone_when_its_upstream_is_gone(labs):
    with labs[0].serve(upstreams=["http://127.0.0.1:9"], routing="round_robin") as server:
        assert backends_of(claude(server.url), 3) == ["mock"] * 3


@pytest.mark.parametrize(
    ("upstreams", "says"),
    [("http://127.0.0.1:1", "put it into one"), (["nonsense"], "http://"), (["http://a:1", "http://a:1"], "different")],
)
def test_upstreams_that_cannot_be(labs, upstreams, says):
    with pytest.raises(InvalidParameter, match=says):
        labs[0].serve(upstreams=upstreams)


@pytest.mark.parametrize(
    "wrong",
    [
        {"routing": "random"},
        {"overflow": "explode"},
        {"cache_accounting": "none"},
        {"requests_per_minute": 0},
        {"port": 70_000},
        {"drain_s": -1},
        {"ping_s": 0},
        {"host": "0.0.0.0"},
    ],
)
def test_settings_that_cannot_be(wrong):
    with pytest.raises(InvalidParameter, match=next(iter(wrong))):
        Settings(**wrong)


async def test_a_server_is_used_from_a_cell_whose_event_loop_is_running(labs):
    server = labs[0].serve()
    try:
        async with httpx2.AsyncClient() as client:
            found = await client.get(f"{server.url}/health")
        assert found.json()["status"] == "ok"
        with pytest.raises(InvalidParameter, match="starts once"):
            server.start()
        with pytest.raises(LabError, match="the port is in use"):
            labs[0].serve(port=server.port)
    finally:
        server.close()
        server.close()
    assert not server.is_running


def test_closing_a_lab_closes_its_servers_once_more(labs):
    with llmlab.open("mock") as lab:
        server = lab.serve(upstreams=["http://127.0.0.1:9"])
        server.close()
    assert "stopped" in repr(server)


# -- the log ------------------------------------------------------------------------------------------------


def logged(lab, write) -> Server:
    settings = Settings(port=0, drain_s=0)
    return Server(Gateway([EngineBackend(lab, settings)], settings, lab.engine.recorder), log=write)


def test_a_client_that_left_has_its_line(labs):
    lines: list[str] = []
    with logged(labs[0], lines.append) as server:
        httpx2.get(f"{server.url}/metrics")
        with claude(server.url).messages.stream(model="mock", max_tokens=4000, messages=MESSAGES) as stream:
            next(iter(stream.text_stream))
        wait_for(lambda: bool(lines))
    (line,) = lines
    assert " anthropic mock 200 disconnected prompt=22 " in line
    assert " output=- ttft=0." in line
    assert " backend=mock req_" in line


def test_a_log_that_cannot_be_written_to_stops_nothing(labs):
    def write(_: str) -> None:
        raise BrokenPipeError

    with logged(labs[0], write) as server:
        assert ask(claude(server.url)).status_code == 200
