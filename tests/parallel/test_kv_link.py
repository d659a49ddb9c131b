"""Frames between two processes: nothing is taken from somebody who has not shown the secret, and nothing breaks."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator

import pytest

from llmlab.parallel.kv_link import LENGTHS, Channel
from llmlab.parallel.prefill_process import _admitted


@pytest.fixture
def ends() -> Iterator[tuple[socket.socket, socket.socket]]:
    with socket.create_server(("127.0.0.1", 0)) as door, socket.create_connection(door.getsockname()) as caller:
        connection, _ = door.accept()
        with connection:
            yield caller, connection


def frame(header: bytes, payload: int = 0) -> bytes:
    return LENGTHS.pack(len(header), payload) + header


def test_a_frame_arrives_with_its_payload(ends):
    caller, connection = ends
    Channel(caller).send({"type": "done"}, b"blocks")
    assert Channel(connection).receive() == ({"type": "done"}, bytearray(b"blocks"))


@pytest.mark.parametrize(
    "sent",
    [
        frame(b'{"secret": "wrong"}'),
        frame(b'{"secret": "right"}', payload=2**62),
        LENGTHS.pack(2**25, 0),
        frame(b"[" * 4000),
        frame(b'["right"]'),
        b"GET / HTTP/1.1\r\n\r\n",
    ],
    ids=["wrong", "huge payload", "huge header", "deep", "no object", "another protocol"],
)
def test_who_does_not_know_the_secret_is_not_admitted(ends, sent):
    caller, connection = ends
    caller.sendall(sent)
    caller.shutdown(socket.SHUT_WR)
    assert _admitted(connection, "right") is None


def test_who_knows_it_is(ends):
    caller, connection = ends
    caller.sendall(frame(json.dumps({"type": "hello", "secret": "right"}).encode()))
    assert _admitted(connection, "right") is not None
