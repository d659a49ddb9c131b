"""What goes out with every request, and the calls that are not streamed."""

from __future__ import annotations

import httpx2
import pytest
from scripted_server import HELLO, ScriptedServer, chunked, frames, refusal, reply

import llmlab
from llmlab.client.client import Client
from llmlab.client.retry import RetryPolicy
from llmlab.client.stream_errors import NotFound, ProtocolViolation, TotalTimeout
from llmlab.client.timeouts import Timeouts
from llmlab.errors import InvalidParameter

REQUEST = {"model": "m", "max_tokens": 9, "messages": [{"role": "user", "content": "hi"}]}
GOOD = chunked(frames(*HELLO))


def headers_of(**options) -> dict[str, str]:
    with ScriptedServer(GOOD) as server, Client(server.url, **options) as client:
        client.send(REQUEST)
        return server.requests[0].headers


def test_headers_without_options():
    found = headers_of()
    assert found["accept"] == "text/event-stream"
    assert found["content-type"] == "application/json"
    assert found["anthropic-version"] == "2023-06-01"
    assert found["user-agent"] == f"llmlab/{llmlab.__version__}"
    assert {"authorization", "x-api-key", "anthropic-beta", "x-llmlab-session-id", "cookie"}.isdisjoint(found)


def test_key_goes_where_it_is_asked_to():
    assert headers_of(api_key="k")["x-api-key"] == "k"
    found = headers_of(api_key="k", auth="bearer")
    assert (found["authorization"], "x-api-key" in found) == ("Bearer k", False)


def test_key_is_not_taken_from_the_environment(monkeypatch):
    monkeypatch.setenv("ANTHROPIC_API_KEY", "secret")
    monkeypatch.setenv("ANTHROPIC_AUTH_TOKEN", "secret")
    assert "secret" not in str(headers_of())


def test_key_is_in_no_repr():
    assert "secret" not in repr(Client("http://127.0.0.1:1", api_key="secret").wire.identity)


def test_betas_and_session():
    found = headers_of(betas=("a-1", "b-2"), session_id="s1", version="2026-10-21")
    sent = (found["anthropic-beta"], found["x-llmlab-session-id"], found["anthropic-version"])
    assert sent == ("a-1,b-2", "s1", "2026-10-21")


def test_a_request_can_have_headers_of_its_own():
    own = {"Anthropic-Beta": "a,b", "anthropic-version": "2026-10-21"}
    with ScriptedServer(GOOD) as server, Client(server.url, betas=("a",)) as client:
        client.send(REQUEST, headers=own)
        client.send(REQUEST)
    assert [r.headers["anthropic-beta"] for r in server.requests] == ["a,b", "a"]
    assert [r.headers["anthropic-version"] for r in server.requests] == ["2026-10-21", "2023-06-01"]


@pytest.mark.parametrize("headers", [{"x": "a\nb"}, {"x\n": "a"}, {"x": 5}])
def test_headers_that_are_none_are_refused(headers):
    with pytest.raises(InvalidParameter, match="header"):
        Client("http://127.0.0.1:1").count_tokens(REQUEST, headers=headers)


def test_proxies_of_the_environment_do_not_come_between_on_this_machine(monkeypatch):
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    monkeypatch.delenv("NO_PROXY", raising=False)
    assert headers_of()["host"].startswith("127.0.0.1")


@pytest.mark.parametrize("suffix", ["", "/", "/v1", "/v1/"])
def test_urls_may_end_as_people_write_them(suffix):
    with ScriptedServer(GOOD) as server, Client(server.url + suffix) as client:
        client.send(REQUEST)
        assert server.requests[0].path == "/v1/messages"


@pytest.mark.parametrize(
    "url", ["", "localhost:8000", "ftp://a", "http://", "http://a:x", "http://u:p@a", "http://a?b", None]
)
def test_other_urls_are_refused(url):
    with pytest.raises(InvalidParameter, match="url must be like"):
        Client(url)


@pytest.mark.parametrize(
    "bad",
    [
        {"api_key": "a\r\nx: y"},
        {"api_key": ""},
        {"betas": ["ü"]},
        {"betas": "a"},
        {"session_id": "a\n"},
        {"auth": "basic"},
    ],
)
def test_values_that_are_no_headers_are_refused(bad):
    with pytest.raises(InvalidParameter, match=next(iter(bad))):
        Client("http://127.0.0.1:1", **bad)


@pytest.mark.parametrize("value", [float("nan"), {1, 2}])
def test_request_that_is_no_json_is_refused(value):
    with pytest.raises(InvalidParameter, match="JSON"):
        Client("http://127.0.0.1:1").send(REQUEST | {"metadata": value})


def test_lone_surrogates_can_be_sent():
    with ScriptedServer(GOOD) as server, Client(server.url) as client:
        client.send(REQUEST | {"system": "\ud83d"})
        assert server.requests[0].body["system"] == "\ud83d"


def test_own_http_client_is_used_and_left_open():
    with ScriptedServer(GOOD) as server, httpx2.Client(headers={"x-mine": "1"}) as http:
        with Client(server.url, http=http) as client:
            assert client.send(REQUEST).text == "Hello"
        assert not http.is_closed
        assert server.requests[0].headers["x-mine"] == "1"


def test_connections_are_left_when_many_are_idle():
    with ScriptedServer(GOOD) as server, Client(server.url) as client:
        open_ = [client.wire.open("POST", "/v1/messages", b"{}", 0, "x") for _ in range(6)]
        for attempt in open_:
            attempt.head()
            assert list(attempt.pieces())
            client.wire.release(attempt)
            client.wire.release(attempt)
        assert len({id(lane) for lane in client.wire._idle}) == len(client.wire._idle) == 4


# -- calls that are not streamed ---------------------------------------------------------------------------------


def test_counting_sends_what_makes_the_input_and_nothing_else():
    request = REQUEST | {"tools": [], "system": "s", "stream": True, "temperature": 1, "metadata": {}}
    with ScriptedServer(reply(200, {"input_tokens": 5})) as server, Client(server.url) as client:
        assert client.count_tokens(request) == 5
        sent = server.requests[0]
    assert (sent.method, sent.path) == ("POST", "/v1/messages/count_tokens")
    assert sent.headers["accept"] == "application/json"
    assert set(sent.body) == {"model", "messages", "tools", "system"}


@pytest.mark.parametrize("answer", [{}, {"input_tokens": "5"}, {"input_tokens": -1}, [], 5])
def test_counts_that_are_none_are_violations(answer):
    with ScriptedServer(reply(200, answer)) as server, Client(server.url) as client, pytest.raises(ProtocolViolation):
        client.count_tokens(REQUEST)


def test_answer_that_is_no_json_is_a_violation():
    answer = reply(200, "<html>", content_type="text/html")
    with ScriptedServer(answer) as server, Client(server.url) as client, pytest.raises(ProtocolViolation, match="html"):
        client.models()


def test_models_are_read_page_by_page():
    pages = [{"data": [{"id": "a"}], "has_more": True, "last_id": "a/&"}, {"data": [{"id": "b"}], "has_more": False}]
    with ScriptedServer(*(reply(200, page) for page in pages)) as server, Client(server.url) as client:
        assert [model["id"] for model in client.models()] == ["a", "b"]
        assert [r.path for r in server.requests] == [
            "/v1/models?limit=1000",
            "/v1/models?limit=1000&after_id=a%2F%26",
        ]
        assert "content-type" not in server.requests[0].headers


def test_models_without_end_are_a_violation():
    page = reply(200, {"data": [], "has_more": True, "last_id": "a"})
    with ScriptedServer(page) as server, Client(server.url) as client, pytest.raises(ProtocolViolation, match="pages"):
        client.models()


def test_calls_are_retried_as_streams_are():
    waits, busy = [], refusal(529, "overloaded_error", retry_after="3")
    answers = busy, reply(200, {"input_tokens": 5})
    with ScriptedServer(*answers) as server, Client(server.url, sleep=waits.append) as client:
        assert client.count_tokens(REQUEST) == 5
    assert waits == [3]


def test_calls_are_refused_as_streams_are():
    refused = refusal(404, "not_found_error")
    with ScriptedServer(refused) as server, Client(server.url) as client, pytest.raises(NotFound) as caught:
        client.models()
    assert (caught.value.request_id, caught.value.attempts) == ("req_1", 1)


def test_calls_fall_back_to_the_other_model():
    busy = refusal(529, "overloaded_error")
    with ScriptedServer(busy, busy, busy, reply(200, {"input_tokens": 5})) as server:
        with Client(server.url, fallback_model="small", sleep=lambda s: None, retries=RetryPolicy()) as client:
            client.count_tokens(REQUEST)
        assert server.requests[-1].body["model"] == "small"


def test_calls_have_the_total_timeout():
    limits = Timeouts(total_s=0.2)
    with ScriptedServer([1.0]) as server, Client(server.url, timeouts=limits) as client, pytest.raises(TotalTimeout):
        client.models()
