"""The client and the gateway together, on the model that has no weights."""

from __future__ import annotations

import pytest
from scripted_server import wait_until

import llmlab
from llmlab.client.client import Client
from llmlab.client.overflow import Healing, NoRoomLeft
from llmlab.client.retry import RetryPolicy
from llmlab.client.stream_errors import ConnectionLost, IdleTimeout, StreamIncomplete
from llmlab.client.timeouts import Timeouts
from llmlab.trace.events import WireEvent


@pytest.fixture(scope="module")
def lab():
    with llmlab.open("mock") as lab:
        yield lab


@pytest.fixture(scope="module")
def server(lab):
    with lab.serve(allow_faults=True) as server:
        yield server


@pytest.fixture
def client(lab, server):
    with Client(
        server.url, recorder=lab.engine.recorder, sleep=lambda s: None, healing=Healing(margin=16, floor=8)
    ) as client:
        yield client


def body(**changes) -> dict:
    return {"model": "mock", "max_tokens": 12, "messages": [{"role": "user", "content": "hello"}]} | changes


def test_answers_are_the_models(lab, client):
    message = client.send(body())
    prompt = [{"role": "user", "content": "hello"}]
    assert message.text == lab.ask(prompt, max_tokens=12).outputs[0].text
    assert (message.stop_reason, message.usage["output_tokens"], message.is_complete) == ("max_tokens", 12, True)
    assert message.request_id


def test_counts_agree_with_what_is_used(client):
    usage = client.send(body()).usage
    whole = usage["input_tokens"] + usage["cache_read_input_tokens"] + usage["cache_creation_input_tokens"]
    assert client.count_tokens(body()) == whole


def test_models_are_listed(client):
    assert [model["id"] for model in client.models()] == ["mock"]


def test_leaving_frees_the_engine(lab, client):
    with client.stream(body(max_tokens=3000)) as exchange:
        next(delta for delta in exchange if delta.kind == "text")
    assert wait_until(lambda: lab.engine.pool.num_used == 0)
    assert not exchange.message.is_complete


def test_overflow_is_repaired_with_the_servers_numbers(client):
    limit = client.models()[0]["max_input_tokens"]
    prompt = "x" * (limit - 200)
    message = client.send(body(max_tokens=1000, messages=[{"role": "user", "content": prompt}]))
    assert message.attempts == 2
    assert 0 < message.usage["output_tokens"] < 200


def test_overflow_without_room_keeps_the_numbers(client):
    limit = client.models()[0]["max_input_tokens"]
    num_around = client.count_tokens(body()) - len("hello")  # the mock's tokens are bytes
    prompt = "x" * (limit - num_around - 20)
    with pytest.raises(NoRoomLeft) as caught:
        client.send(body(max_tokens=1000, messages=[{"role": "user", "content": prompt}]))
    assert caught.value.input_tokens == limit - 20
    assert caught.value.room == caught.value.context - caught.value.input_tokens - 16 < 8


def test_overloads_are_waited_out(client):
    assert client.send(body(), headers={"llmlab-fault": "status=529x2"}).attempts == 3


def test_any_split_gives_the_same_answer(client):
    whole = client.send(body(max_tokens=60))
    assert client.send(body(max_tokens=60), headers={"llmlab-fault": "split=1"}).content == whole.content


def test_dropped_connections_are_told_apart_from_answers(server):
    client = Client(server.url, retries=RetryPolicy(max_retries=0))
    with client, pytest.raises((ConnectionLost, StreamIncomplete)) as caught:
        client.send(body(max_tokens=60), headers={"llmlab-fault": "drop=900"})
    assert not caught.value.partial.is_complete


def test_stalled_streams_are_left(lab, server):
    client = Client(server.url, retries=RetryPolicy(max_retries=0), timeouts=Timeouts(idle_s=0.3))
    with client, pytest.raises(IdleTimeout):
        client.send(body(max_tokens=60), headers={"llmlab-fault": "stall=5"})
    assert wait_until(lambda: lab.engine.pool.num_used == 0)


def test_both_sides_record_the_same_frames(lab, client):
    message = client.send(body())
    frames = [e for e in lab.engine.recorder.snapshot() if isinstance(e, WireEvent) and e.kind == "frame"]
    received = [(e.name, e.text) for e in frames if e.wire_id == message.client_request_id]
    sent = [(e.name, e.text) for e in frames if e.wire_id == message.request_id]
    assert len(received) > 5
    assert received == sent


def test_a_traced_exchange_is_consistent(lab, client):
    client.send(body())
    assert lab.trace.check() == []
