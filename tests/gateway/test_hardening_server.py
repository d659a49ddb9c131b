"""Clients that do not read, on real sockets."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Callable

import pytest
from scripted_backend import ScriptedBackend, gateway_of, message_body, reply_events

from llmlab.gateway.http_protocol import BoundedHttp
from llmlab.gateway.server import Server

MUCH = ["x" * 100_000] * 100
"""More than the buffers of a socket hold."""


@pytest.fixture
def backend(monkeypatch) -> ScriptedBackend:
    monkeypatch.setattr(BoundedHttp, "write_timeout_s", 0.4)
    return ScriptedBackend(script=reply_events(MUCH))


def ask(server: Server) -> socket.socket:
    """A connection on which a stream has been asked for."""
    connection = socket.create_connection(("127.0.0.1", server.port), timeout=10)
    body = json.dumps(message_body(stream=True)).encode()
    head = f"POST /v1/messages HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-length: {len(body)}\r\n\r\n"
    connection.sendall(head.encode() + body)
    return connection


def wait_until(is_true: Callable[[], bool]) -> bool:
    deadline = time.monotonic() + 10
    while not is_true() and time.monotonic() < deadline:
        time.sleep(0.01)
    return is_true()


def test_a_client_that_does_not_read_loses_its_place(backend):
    gateway = gateway_of(backend, port=0, drain_s=0, max_open=1)
    with Server(gateway) as server, ask(server):
        assert wait_until(lambda: backend.closed == 1)
        assert wait_until(lambda: gateway.admission.open == 0)


def test_a_client_that_reads_slowly_keeps_it(backend, monkeypatch):
    monkeypatch.setattr(BoundedHttp, "write_timeout_s", 1.0)
    began = time.monotonic()
    with Server(gateway_of(backend, port=0, drain_s=0)) as server, ask(server) as connection:
        received = bytearray()
        while not received.endswith(b"\r\n0\r\n\r\n"):
            piece = connection.recv(65_536)
            assert piece, "the connection was cut"
            received += piece
            time.sleep(0.015)
    assert time.monotonic() - began > 1.5  # longer in all than a client may pause
    assert b"message_stop" in received
    assert backend.closed == 1
