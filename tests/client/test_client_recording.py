"""The client's side of an exchange in a trace: whole, in order, without the key."""

from __future__ import annotations

import time

import pytest
from scripted_server import (
    HELLO,
    OPEN_HEAD,
    ScriptedServer,
    chunked,
    frames,
    pause,
    refusal,
    reply,
)

from llmlab.client.client import Client
from llmlab.client.recording import MAX_TEXT, Log
from llmlab.client.stream_errors import AuthenticationFailed, IdleTimeout
from llmlab.client.timeouts import Timeouts
from llmlab.trace.events import Stage, WireEvent
from llmlab.trace.recorder import Recorder

REQUEST = {"model": "m", "max_tokens": 9, "messages": [{"role": "user", "content": "hi"}]}
GOOD = chunked(frames(*HELLO))


def record(*answers, act=None, **options) -> Recorder:
    recorder = Recorder()
    options = {"sleep": lambda seconds: None} | options
    with ScriptedServer(*answers) as server, Client(server.url, recorder=recorder, **options) as client:
        (act or (lambda c: c.send(REQUEST)))(client)
    return recorder


def wire(recorder: Recorder) -> list[WireEvent]:
    return [event for event in recorder.snapshot() if isinstance(event, WireEvent)]


def stages(recorder: Recorder) -> list[Stage]:
    return [event for event in recorder.snapshot() if isinstance(event, Stage)]


def test_a_streamed_exchange():
    events = wire(record(GOOD))
    assert {(event.side, event.wire_id) for event in events} == {("client", events[0].wire_id)}
    kinds = [event.kind for event in events]
    assert (kinds[:3], kinds[-1]) == (["request", "response", "bytes"], "end")
    assert [event.name for event in events if event.kind == "frame"] == [event["type"] for event in HELLO]
    assert [(event.name, event.text) for event in events if event.kind == "delta"] == [("text", "Hel"), ("text", "lo")]
    assert sum(event.size for event in events if event.kind == "bytes") == len(frames(*HELLO))
    head, body = events[0].text.split("\n\n")
    assert body == '{"model":"m","max_tokens":9,"messages":[{"role":"user","content":"hi"}],"stream":true}'
    assert events[0].size == len(body)
    assert {"content-type: application/json", f"x-client-request-id: {events[0].wire_id}"} < set(head.split("\n"))


def test_stages_follow_each_other():
    send, wait = stages(record(GOOD))
    assert (send.name, wait.name, send.details) == ("send", "wait", {"attempt": 1, "new_connection": True})
    assert send.t_ns < send.end_ns == wait.t_ns < wait.end_ns


def test_a_retry_says_why_and_how_long():
    recorder = record(refusal(529, "overloaded_error", retry_after="3"), GOOD)
    retry = next(stage for stage in stages(recorder) if stage.name == "retry")
    assert (retry.outcome, retry.reason, retry.details["wait_s"], retry.details["wait_reason"]) == (
        "retried",
        "status 529",
        3,
        "retry-after",
    )
    first, second = dict.fromkeys(event.wire_id for event in wire(recorder))
    assert [e.kind for e in wire(recorder) if e.wire_id == first][-2:] == ["error", "retry"]
    assert retry.wire_id == first != second
    assert [s.details.get("new_connection") for s in stages(recorder) if s.name == "send"] == [True, False]
    assert retry.details["next_id"] == second


def test_silences_are_reported():
    limits = Timeouts(warn_s=0.1, stall_s=0.1)
    recorder = record([OPEN_HEAD, frames(*HELLO[:4]), 0.4, frames(*HELLO[4:])], timeouts=limits)
    assert [event.name for event in wire(recorder) if event.kind == "warning"] == ["idle", "stall"]


def test_a_slow_reader_is_not_reported_as_a_silence():
    def act(client):
        with client.stream(REQUEST) as exchange:
            for _ in exchange:
                time.sleep(0.12)

    recorder = record(GOOD, act=act, timeouts=Timeouts(stall_s=0.1))
    assert [event for event in wire(recorder) if event.kind == "warning"] == []


def test_giving_up_is_an_error_then_a_disconnect():
    def act(client):
        with pytest.raises(IdleTimeout):
            client.send(REQUEST)

    answer = [OPEN_HEAD, frames(*HELLO[:4]), pause(3)]
    events = wire(record(answer, act=act, timeouts=Timeouts(idle_s=0.1)))
    assert {event.kind for event in events[-2:]} == {"error", "disconnect"}


def test_leaving_is_one_disconnect():
    def act(client):
        with client.stream(REQUEST) as exchange:
            next(iter(exchange))

    events = wire(record([OPEN_HEAD, frames(*HELLO[:4]), pause(3)], act=act))
    assert [event.kind for event in events].count("disconnect") == 1


@pytest.mark.parametrize("auth", ["x-api-key", "bearer"])
def test_the_key_is_never_recorded_even_when_the_server_repeats_it(auth):
    def act(client):
        with pytest.raises(AuthenticationFailed):
            client.send(REQUEST | {"system": "my key is sk-secret"})

    answer = refusal(401, "authentication_error", "bad key sk-secret", x_echo="sk-secret", set_cookie="session=abc")
    recorder = record(answer, act=act, api_key="sk-secret", auth=auth)
    assert wire(recorder)
    assert "sk-secret" not in str(recorder.snapshot())
    assert "[key]" in str(recorder.snapshot())
    assert ("authorization: [removed]" if auth == "bearer" else "x-api-key: [removed]") in wire(recorder)[0].text
    assert "session=abc" not in str(recorder.snapshot())


def test_long_texts_are_cut():
    recorder = Recorder()
    Log(recorder, "id").event("frame", "x", text="a" * (MAX_TEXT + 5))
    assert wire(recorder)[0].text == "a" * MAX_TEXT + "... (5 characters cut)"


def test_a_recorder_that_is_off_gets_nothing():
    recorder = Recorder(enabled=False)
    with ScriptedServer(GOOD) as server, Client(server.url, recorder=recorder) as client:
        assert client.send(REQUEST).text == "Hello"
    assert len(recorder) == 0


def test_a_call_in_one_piece():
    events = wire(record(reply(200, {"input_tokens": 3}), act=lambda client: client.count_tokens(REQUEST)))
    assert [event.kind for event in events] == ["request", "response", "bytes", "end"]
    assert events[2].text == '{"input_tokens": 3}'
