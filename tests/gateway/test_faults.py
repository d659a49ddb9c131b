from __future__ import annotations

import contextlib
import itertools
import socket
import time

import httpx2
import pytest
from scripted_backend import ScriptedBackend, chat_body, client_of, gateway_of, message_body, recorded, reply_events

from llmlab.api.errors import ApiError
from llmlab.gateway.faults import HEADER, Faults, Plan, parse_plan
from llmlab.gateway.server import Server
from llmlab.trace.events import WireEvent

STREAM = message_body(stream=True)


@contextlib.contextmanager
def serving(words=("one ", "two"), **settings):
    gateway = gateway_of(ScriptedBackend(script=reply_events(words)), port=0, drain_s=0, allow_faults=True, **settings)
    with Server(gateway) as server:
        yield server


def received(server: Server, fault: str, body: dict = STREAM) -> tuple[bytes, bool]:
    """The body that arrived, and whether the response was complete."""
    content = b""
    with httpx2.stream("POST", f"{server.url}/v1/messages", json=body, headers={HEADER: fault}, timeout=5) as response:
        try:
            for chunk in response.iter_raw():
                content += chunk
        except httpx2.RemoteProtocolError:
            return content, False
    return content, True


def test_a_plan_is_read_whole():
    text = "delay=0.5; status=529x2; drop=120; split=1; stall=3x1.5"
    assert parse_plan(text) == Plan(text, 0.5, 529, 2, 120, 1, 3, 1.5)


@pytest.mark.parametrize(
    "text",
    [
        "",
        ";",
        "delay",
        "delay=",
        "delay=-1",
        "delay=1e9",
        "delay=601",
        "delay=nan",
        "delay=1x2",
        "status=200",
        "status=529x0",
        "status=529x1.5",
        "status=529.5",
        "drop=1x2",
        "drop=1.5",
        "split=0",
        "stall=1x601",
        "stall=1.5",
        "crash=1",
        "delay=1, drop=2",
        "delay=1; delay=2",
        "delay=١",
        "drop=99999999",
    ],
)
def test_nonsense_is_refused_with_an_example(text):
    with pytest.raises(ApiError, match="for example") as caught:
        parse_plan(text)
    assert caught.value.status == 400


async def test_the_header_is_refused_where_faults_are_not_allowed():
    async with client_of(gateway_of()) as client:
        response = await client.post("/v1/messages", json=message_body(), headers={HEADER: "delay=0"})
    assert response.status_code == 400
    assert HEADER in response.json()["error"]["message"]


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (429, "rate_limit_error"),
        (500, "api_error"),
        (503, "api_error"),
        (504, "timeout_error"),
        (529, "overloaded_error"),
    ],
)
async def test_a_status_is_given_as_often_as_asked_then_the_request_is_served(status, kind):
    backend = ScriptedBackend()
    async with client_of(gateway_of(backend, allow_faults=True)) as client:
        headers = {HEADER: f"status={status}x2"}
        responses = [await client.post("/v1/messages", json=message_body(), headers=headers) for _ in range(4)]
    assert [response.status_code for response in responses] == [status, status, 200, status]
    assert responses[0].json()["error"]["type"] == kind
    assert ("retry-after" in responses[0].headers) == (status in (429, 529))
    assert len(backend.calls) == 1


def test_a_dropped_stream_breaks_off_at_the_byte():
    with serving() as server:
        content, complete = received(server, "drop=120")
        assert (len(content), complete) == (120, False)
        assert received(server, "drop=0") == (b"", False)
        whole, complete = received(server, "drop=1000000")
        assert complete
        assert whole[:70] == content[:70]
        events = [event for event in recorded(server.gateway, WireEvent) if event.kind == "fault"]
        assert [event.name for event in events][:2] == ["drop=120", "drop after 120 bytes"]


def test_an_answer_in_one_piece_can_be_dropped_too():
    with serving() as server:
        content, complete = received(server, "drop=50", message_body())
    assert (len(content), complete) == (50, False)


def test_dropping_a_connection_leaves_no_generation_open():
    with serving() as server:
        received(server, "drop=10")
        backend = server.gateway.backends[0]
        assert (backend.opened, backend.closed, server.gateway.admission.open) == (1, 1, 0)


def test_a_split_stream_arrives_byte_by_byte_and_is_the_same():
    with serving() as server, socket.create_connection(("127.0.0.1", server.port)) as connection:
        body = b'{"model":"tiny","max_tokens":9,"stream":true,"messages":[{"role":"user","content":"x"}]}'
        head = f"POST /v1/messages HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ncontent-length: {len(body)}\r\n"
        connection.sendall(head.encode() + b"llmlab-fault: split=1\r\n\r\n" + body)
        answer = b"".join(iter(lambda: connection.recv(65536), b""))
        sizes = [int(line, 16) for line in answer.partition(b"\r\n\r\n")[2].split(b"\r\n")[::2] if line]
        whole, _ = received(server, "split=1")
        plain, _ = received(server, "delay=0")
    assert sizes == [1] * (len(sizes) - 1) + [0]
    assert len(whole) == len(plain) == len(sizes) - 1


def test_a_delay_comes_before_the_head():
    with serving() as server:
        start = time.monotonic()
        content, complete = received(server, "delay=0.15")
    assert time.monotonic() - start >= 0.15
    assert complete
    assert b"message_stop" in content


def test_a_stalled_stream_is_silent_even_of_pings_until_it_goes_on():
    with serving(ping_s=0.02) as server:
        arrivals = []
        with httpx2.stream(
            "POST", f"{server.url}/v1/messages", json=STREAM, headers={HEADER: "stall=4x0.4"}, timeout=5
        ) as response:
            for chunk in response.iter_raw():
                arrivals.append((time.monotonic(), chunk))
    gaps = [(later - earlier, chunk) for (earlier, _), (later, chunk) in itertools.pairwise(arrivals)]
    assert max(gaps)[0] >= 0.35
    assert b"message_stop" in arrivals[-1][1]


def test_a_stall_without_an_end_ends_when_the_client_gives_up():
    with serving(ping_s=0.02) as server:
        with pytest.raises(httpx2.ReadTimeout):
            httpx2.post(f"{server.url}/v1/messages", json=STREAM, headers={HEADER: "stall=2"}, timeout=0.2)
        deadline = time.monotonic() + 5
        while server.gateway.admission.open and time.monotonic() < deadline:
            time.sleep(0.01)
        assert server.gateway.admission.open == 0
        assert server.gateway.backends[0].closed == 1


async def test_injected_plans_are_used_once_in_turn():
    gateway = gateway_of()
    gateway.faults.inject("status=529x2; delay=0.001")
    gateway.faults.inject("status=500")
    async with client_of(gateway) as client:
        posts = [await client.post("/v1/chat/completions", json=chat_body()) for _ in range(5)]
    assert [response.status_code for response in posts] == [529, 529, 200, 500, 200]
    gateway.faults.inject("status=500", requests=3)
    gateway.faults.clear()
    assert gateway.faults.plan_for("a", None) is None


def test_counts_of_refused_clients_are_bounded_and_apart():
    faults = Faults(True)
    assert faults.plan_for("a", "status=529").status == 529
    assert faults.plan_for("b", "status=529").status == 529
    assert faults.plan_for("a", "status=529").status is None
    for number in range(3000):
        faults.plan_for(f"client {number}", "status=529")
    assert len(faults._refused) <= 1024
