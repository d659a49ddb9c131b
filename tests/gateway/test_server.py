from __future__ import annotations

import socket
import threading
import time

import httpx2
import pytest
from scripted_backend import ScriptedBackend, gateway_of, message_body, reply_events

from llmlab.errors import InvalidParameter, LabError
from llmlab.gateway.http_protocol import BoundedHttp
from llmlab.gateway.server import Server

FOREVER = 3600.0


def server_of(*backends: ScriptedBackend, **settings) -> Server:
    return Server(gateway_of(*backends, **{"port": 0, "drain_s": 0} | settings))


def exchange(server: Server, data: bytes, timeout: float = 5.0) -> bytes:
    """What comes back on a connection until it is closed."""
    with socket.create_connection(("127.0.0.1", server.port), timeout=timeout) as connection:
        connection.sendall(data)
        return b"".join(iter(lambda: connection.recv(65536), b""))


def test_it_serves_in_the_background_and_stops():
    server = server_of()
    with server:
        assert server.url == f"http://127.0.0.1:{server.port}"
        assert httpx2.get(f"{server.url}/health").json()["status"] == "ok"
        assert not any(thread.name == "llmlab-gateway" and not thread.daemon for thread in threading.enumerate())
    assert not server.is_running
    with pytest.raises(httpx2.ConnectError):
        httpx2.get(f"{server.url}/health")
    server.close()


def test_a_taken_port_is_one_clear_line():
    with server_of() as first:
        second = server_of(port=first.port)
        with pytest.raises(LabError, match=rf"127.0.0.1:{first.port}: the port is in use") as caught:
            second.start()
        assert "\n" not in str(caught.value)


def test_the_port_is_free_again_after_closing():
    with server_of() as first:
        httpx2.get(f"{first.url}/health")
    with server_of(port=first.port) as second:
        assert second.port == first.port


def test_a_server_starts_once():
    server = server_of()
    with pytest.raises(InvalidParameter, match="has not started"):
        _ = server.url
    with server, pytest.raises(InvalidParameter, match="starts once"):
        server.start()
    with pytest.raises(InvalidParameter, match="starts once"):
        server.start()


def in_background(work) -> tuple[threading.Thread, list]:
    results: list = []
    thread = threading.Thread(target=lambda: results.append(work()))
    thread.start()
    return thread, results


def wait_for(condition) -> None:
    deadline = time.monotonic() + 5
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.005)
    assert condition()


def test_open_requests_finish_while_the_server_drains():
    backend = ScriptedBackend(script=[0.4, *reply_events(["done"])])
    server = server_of(backend, drain_s=5).start()
    thread, results = in_background(lambda: httpx2.post(f"{server.url}/v1/messages", json=message_body()))
    wait_for(lambda: backend.opened)
    start = time.monotonic()
    server.close()
    thread.join()
    assert results[0].json()["content"][0]["text"] == "done"
    assert time.monotonic() - start < 3


@pytest.mark.parametrize("stream", [True, False])
def test_what_outlasts_the_drain_is_told_so(stream):
    backend = ScriptedBackend(script=[*reply_events(["one "])[:3], FOREVER])
    server = server_of(backend, drain_s=0.2).start()
    body = message_body(stream=stream)
    thread, results = in_background(lambda: httpx2.post(f"{server.url}/v1/messages", json=body, timeout=5))
    wait_for(lambda: backend.opened)
    server.close()
    thread.join()
    response = results[0]
    assert backend.closed == 1
    assert response.status_code == (200 if stream else 529)
    assert "overloaded_error" in response.text
    if stream:
        assert response.text.rstrip().rpartition("\n\n")[2].startswith("event: error\n")


def test_a_draining_server_refuses_new_requests():
    backend = ScriptedBackend(script=[0.5, *reply_events(["done"])])
    server = server_of(backend, drain_s=5).start()
    server.gateway.stopping = True
    response = httpx2.post(f"{server.url}/v1/messages", json=message_body())
    assert (response.status_code, response.headers["x-should-retry"]) == (529, "true")
    assert httpx2.get(f"{server.url}/health").status_code == 503
    server.close()


def test_a_second_close_ends_a_drain_at_once():
    backend = ScriptedBackend(script=[FOREVER])
    server = server_of(backend, drain_s=60).start()
    body = message_body(stream=True)
    thread, _ = in_background(lambda: httpx2.post(f"{server.url}/v1/messages", json=body, timeout=5))
    wait_for(lambda: backend.opened)
    server.begin_close()
    assert not server.wait(0.3)
    server.close(0)
    thread.join()
    assert not server.is_running


def test_a_client_that_sends_no_more_cannot_hold_up_the_second_close():
    server = server_of(drain_s=60).start()
    with socket.create_connection(("127.0.0.1", server.port)) as connection:
        connection.sendall(b"POST /v1/messages HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-length: 100\r\n\r\n{")
        time.sleep(0.1)
        server.begin_close()
        time.sleep(0.3)
        start = time.monotonic()
        server.close(0)
    assert time.monotonic() - start < 10


@pytest.mark.parametrize(
    "head",
    [
        b"GET / HTTP/1.1\r\nhost: 127.0.0.1\r\nx: " + b"y" * 400_000 + b"\r\n\r\n",
        b"GET / HTTP/1.1\r\nhost: 127.0.0.1\r\n" + b"x: y\r\n" * 30_000 + b"\r\n",
        b"GET /" + b"x" * 400_000,
    ],
)
def test_a_head_without_end_is_refused(head):
    with server_of() as server:
        try:
            answer = exchange(server, head)
        except ConnectionError:  # closed while we were still sending
            answer = b"HTTP/1.1 431"
        assert answer.startswith((b"HTTP/1.1 431", b"HTTP/1.1 400"))
        assert httpx2.get(f"{server.url}/health").status_code == 200


def test_a_head_that_trickles_in_is_cut_off(monkeypatch):
    monkeypatch.setattr(BoundedHttp, "head_timeout_s", 0.2)
    with server_of() as server:
        assert exchange(server, b"GET /health HTTP/1.1\r\nhost: 127").startswith(b"HTTP/1.1 408")
        assert exchange(server, b"").startswith(b"HTTP/1.1 408")


def test_a_keep_alive_connection_outlives_the_time_for_a_head(monkeypatch):
    monkeypatch.setattr(BoundedHttp, "head_timeout_s", 0.2)
    backend = ScriptedBackend(script=[0.4, *reply_events(["slow"])])
    with server_of(backend) as server, httpx2.Client() as client:
        assert client.post(f"{server.url}/v1/messages", json=message_body()).status_code == 200
        time.sleep(0.3)
        assert client.post(f"{server.url}/v1/messages", json=message_body()).status_code == 200


def test_a_body_above_the_limit_gets_its_answer_and_the_connection_closes():
    with server_of(max_body_bytes=1000) as server:
        answer = exchange(server, b"POST /v1/messages HTTP/1.1\r\nhost: localhost\r\ncontent-length: 9999\r\n\r\n")
    assert answer.startswith(b"HTTP/1.1 413")
    assert b"connection: close" in answer


def test_nothing_is_logged_by_a_healthy_server(capfd):
    with server_of() as server:
        httpx2.post(f"{server.url}/v1/messages", json=message_body(stream=True))
        exchange(server, b"nonsense\r\n\r\n")
    assert capfd.readouterr() == ("", "")
