"""Whoever leaves, and however, costs the engine no more than the step that is being computed."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import struct
from collections.abc import Iterator

import httpx2
import pytest
from gated import WAIT_S, Gated, lab_on, until

PATHS = ["/v1/messages", "/v1/chat/completions"]
PROMPT_STEPS = 4
"""Steps the prompt of :func:`body` takes at 64 tokens a step."""


def body(stream: bool) -> dict:
    prompt = "x" * (64 * PROMPT_STEPS - len("user: \nassistant:"))
    return {"model": "m", "max_tokens": 500, "stream": stream, "messages": [{"role": "user", "content": prompt}]}


@contextlib.contextmanager
def connected(port: int, path: str, stream: bool, reset: bool) -> Iterator[socket.socket]:
    """A connection on which a request was sent, closed (or reset) at the end."""
    data = json.dumps(body(stream)).encode()
    with socket.create_connection(("127.0.0.1", port), timeout=WAIT_S) as connection:
        head = f"POST {path} HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-length: {len(data)}\r\n\r\n"
        connection.sendall(head.encode() + data)
        yield connection
        if reset:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


async def cancelled(url: str, stream: bool, ready) -> None:
    """A client whose task is cancelled once ``ready()``."""

    async def work() -> None:
        async with httpx2.AsyncClient(timeout=WAIT_S) as client, client.stream("POST", url, json=body(stream)) as reply:
            async for _ in reply.aiter_raw():
                pass

    task = asyncio.create_task(work())
    while not ready():
        await asyncio.sleep(0.002)
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task


@pytest.mark.parametrize("steps", [PROMPT_STEPS - 2, PROMPT_STEPS + 3], ids=["prefill", "decode"])
@pytest.mark.parametrize("way", ["close", "reset", "cancel"])
@pytest.mark.parametrize("stream", [True, False], ids=["stream", "whole"])
@pytest.mark.parametrize("path", PATHS)
def test_leaving_ends_with_the_step_under_way(path, stream, way, steps):
    runner = Gated()
    with lab_on(runner) as lab, lab.serve(drain_s=0) as server:
        backend = server.gateway.router.backends[0]
        runner.let(steps)

        def in_the_middle() -> bool:
            return lab.engine.journal.step == steps and runner.waiting.is_set()

        if way == "cancel":
            asyncio.run(cancelled(f"{server.url}{path}", stream, in_the_middle))
        else:
            with connected(server.port, path, stream, reset=way == "reset"):
                until(in_the_middle)
                assert backend.load == 1
        until(lambda: backend.load == 0)  # the gateway has noticed, while the engine is still in its step
        assert lab.engine.journal.step == steps
        assert lab.engine.pool.num_used > 0
        runner.let(1000)
        until(lambda: not lab.engine.scheduler.has_work)
        assert lab.engine.journal.step <= steps + 1
        assert lab.engine.pool.num_used == 0
        lab.engine.check_integrity()
    assert list(lab.trace.requests["stop_reason"]) == ["aborted"]


def test_the_others_go_on_when_one_leaves():
    runner = Gated()
    with lab_on(runner, budget=2048) as lab, lab.serve(drain_s=0) as server:
        stays = lab.submit("someone else", max_tokens=20)
        with connected(server.port, PATHS[0], stream=True, reset=False):
            until(lambda: len(lab.engine.scheduler.running) == 2 or runner.let(1), WAIT_S)
        until(lambda: server.gateway.router.backends[0].load == 0)
        runner.let(1000)
        assert len(stays.wait(WAIT_S).token_ids) == 20
        assert lab.engine.pool.num_used == 0
