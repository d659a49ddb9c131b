"""Clients that leave: whatever they were waiting for stops at once."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import struct
import time

import httpx2
import pytest
from scripted_backend import ScriptedBackend, client_of, gateway_of, message_body, recorded, reply_events

from llmlab.gateway.disconnect import ClientLeft, guarded
from llmlab.gateway.http_protocol import GuardedTransport
from llmlab.gateway.server import Server
from llmlab.trace.events import Stage, WireEvent

WAIT_S = 5.0
FOREVER = 3600.0


def until(condition, timeout: float = WAIT_S) -> bool:
    """Whether ``condition`` came true in time."""
    deadline = time.monotonic() + timeout
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.005)
    return bool(condition())


def endless() -> list:
    """A reply that starts and then says nothing more."""
    return [*reply_events(["one "])[:3], FOREVER]


@contextlib.contextmanager
def serving(backend: ScriptedBackend, **settings):
    gateway = gateway_of(backend, port=0, drain_s=0, **settings)
    with Server(gateway) as server:
        yield server


def raw_request(server: Server, **changes) -> socket.socket:
    """A connection on which a request has been sent."""
    body = json.dumps(message_body(**changes)).encode()
    connection = socket.create_connection(("127.0.0.1", server.port))
    head = f"POST /v1/messages HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-length: {len(body)}\r\n\r\n".encode()
    connection.sendall(head + body)
    return connection


def assert_left(server: Server, backend: ScriptedBackend) -> None:
    gateway = server.gateway
    assert until(lambda: gateway.admission.open == 0)
    assert backend.closed == backend.opened
    assert until(lambda: any(event.kind == "end" for event in recorded(gateway, WireEvent)))
    kinds = [event.kind for event in recorded(gateway, WireEvent)]
    assert kinds.count("disconnect") == 1
    assert kinds[-1] == "end"


def test_leaving_in_the_middle_of_a_stream_closes_the_generation():
    backend = ScriptedBackend(script=endless())
    with serving(backend) as server:
        body = message_body(stream=True)
        with httpx2.stream("POST", f"{server.url}/v1/messages", json=body, timeout=WAIT_S) as response:
            assert b"message_start" in next(response.iter_raw())
            assert backend.opened == 1
        assert_left(server, backend)
        stream = next(stage for stage in recorded(server.gateway, Stage) if stage.name == "stream")
        assert stream.outcome == "cancelled"


def test_leaving_before_the_first_frame_closes_the_generation():
    backend = ScriptedBackend(script=[FOREVER])
    with serving(backend) as server:
        connection = raw_request(server, stream=True)
        assert until(lambda: backend.opened == 1)
        connection.close()
        assert_left(server, backend)


def test_a_reset_connection_closes_the_generation():
    backend = ScriptedBackend(script=endless())
    with serving(backend) as server:
        connection = raw_request(server, stream=True)
        assert connection.recv(10)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        connection.close()
        assert_left(server, backend)


def test_leaving_while_the_backend_decides_cancels_the_decision():
    backend = ScriptedBackend(open_script=[FOREVER])
    with serving(backend) as server:
        connection = raw_request(server)
        assert until(lambda: len(backend.calls) == 1)
        connection.close()
        assert until(lambda: backend.cancelled_opens == 1)
        assert_left(server, backend)


def test_leaving_an_answer_in_one_piece_closes_the_generation():
    backend = ScriptedBackend(script=endless())
    with serving(backend) as server:
        connection = raw_request(server)
        assert until(lambda: backend.opened == 1)
        connection.close()
        assert_left(server, backend)


def test_a_client_whose_task_is_cancelled_has_left():
    backend = ScriptedBackend(script=endless())

    async def leave(url: str) -> None:
        async with httpx2.AsyncClient(timeout=WAIT_S) as client:
            task = asyncio.create_task(client.post(url, json=message_body()))
            while not backend.opened:
                await asyncio.sleep(0.005)
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task

    with serving(backend) as server:
        asyncio.run(leave(f"{server.url}/v1/messages"))
        assert_left(server, backend)


def test_a_client_that_does_not_read_is_let_go_when_it_leaves():
    backend = ScriptedBackend(script=reply_events(["x" * 100_000] * 400))
    with serving(backend) as server:
        connection = raw_request(server, stream=True)
        assert until(lambda: backend.opened == 1)
        time.sleep(0.2)  # the socket's buffers fill up
        assert backend.closed == 0
        connection.close()
        assert_left(server, backend)


def test_leaving_with_half_a_body_sent_reaches_no_backend():
    backend = ScriptedBackend()
    with serving(backend) as server:
        connection = socket.create_connection(("127.0.0.1", server.port))
        connection.sendall(b"POST /v1/messages HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-length: 100\r\n\r\n{")
        assert until(lambda: recorded(server.gateway, Stage))
        connection.close()
        assert_left(server, backend)
        assert not backend.calls


def test_a_finished_reply_is_no_disconnect_even_when_closing_it_takes_long():
    class Slow(ScriptedBackend):
        async def open(self, call):
            generation = await super().open(call)
            close = generation.aclose

            async def slowly() -> None:
                await asyncio.sleep(0.1)
                await close()

            generation.aclose = slowly
            return generation

    backend = Slow()
    with serving(backend) as server:
        for stream in (True, False):
            assert httpx2.post(f"{server.url}/v1/messages", json=message_body(stream=stream)).status_code == 200
        assert until(lambda: backend.closed == 2)
        ends = [event.name for event in recorded(server.gateway, WireEvent) if event.kind == "end"]
        assert until(lambda: len([e for e in recorded(server.gateway, WireEvent) if e.kind == "end"]) == 2), ends
        assert not [event for event in recorded(server.gateway, WireEvent) if event.kind == "disconnect"]


async def test_a_cancelled_server_task_closes_the_generation():
    backend = ScriptedBackend(script=endless())
    gateway = gateway_of(backend)
    async with client_of(gateway) as client:
        task = asyncio.create_task(client.post("/v1/messages", json=message_body(stream=True)))
        while not backend.opened:
            await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    assert backend.closed == 1
    assert [event.name for event in recorded(gateway, WireEvent) if event.kind == "end"] == ["disconnected"]


async def test_guarded_work_has_cleaned_up_before_anybody_hears_of_the_loss():
    steps = []

    async def work() -> None:
        try:
            await asyncio.sleep(FOREVER)
        finally:
            await asyncio.sleep(0.01)
            steps.append("cleaned up")

    async def receive() -> dict:
        return {"type": "http.disconnect"}

    with pytest.raises(ClientLeft):
        await guarded(work(), receive, asyncio.Event(), lambda: False)
    assert steps == ["cleaned up"]


def test_an_event_of_another_event_loop_is_a_mistake_that_shows():
    stop = asyncio.Event()

    async def connected() -> dict:
        await asyncio.sleep(FOREVER)
        return {}

    async def quick() -> int:
        await asyncio.sleep(0.02)
        return 1

    assert asyncio.run(guarded(quick(), connected, stop, lambda: False)) == 1
    with pytest.raises(RuntimeError, match="different event loop"):
        asyncio.run(guarded(quick(), connected, stop, lambda: False))


async def test_nothing_is_written_to_a_connection_that_is_lost():
    class Transport:
        def __init__(self):
            self.written, self.lost = [], False

        def is_closing(self) -> bool:
            return self.lost

        def write(self, data: bytes) -> None:
            self.written.append(data)

    transport = Transport()
    guarded = GuardedTransport(transport)
    guarded.write(b"before")
    transport.lost = True
    guarded.write(b"after")
    assert transport.written == [b"before"]
    assert guarded.is_closing()
