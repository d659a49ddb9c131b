"""Two hundred streams at once for a minute, leaving and failing at random: nothing is lost, nothing leaks."""

import asyncio
import gc
import json
import random
import threading
import time
from collections import Counter

import httpx2

import llmlab
from llmlab.api.sse_parser import SseParser
from llmlab.client.chunk_lifecycle import ChunkLifecycle
from llmlab.client.lifecycle import Lifecycle

STREAMS, SECONDS = 200, 60
FAULTS = ("drop=400", "drop=0", "split=7", "delay=0.05", "status=529", "status=500", "stall=2x0.2")


class Visitor:
    """One client after the other on one connection pool; counts how each request ended."""

    def __init__(self, http, seed):
        self.http, self.random = http, random.Random(seed)
        self.outcomes = Counter()

    async def visit_until(self, end):
        while time.monotonic() < end:
            self.outcomes[await self.visit()] += 1

    async def visit(self):
        anthropic = self.random.random() < 0.5
        fault = self.random.choice(FAULTS) if self.random.random() < 0.3 else None
        leave_after = self.random.randrange(1, 20) if self.random.random() < 0.2 else None
        path, limit = ("/v1/messages", "max_tokens") if anthropic else ("/v1/chat/completions", "max_completion_tokens")
        text = "x" * self.random.randrange(1, 200)
        body = {"model": "mock", "messages": [{"role": "user", "content": text}], "stream": True}
        body[limit] = self.random.randrange(1, 40)
        headers = {"llmlab-fault": fault} if fault else {}
        reader = AnthropicReader() if anthropic else OpenAIReader()
        try:
            return await self.read(path, body, headers, reader, leave_after)
        except (httpx2.RemoteProtocolError, httpx2.ReadError):
            assert fault is not None, "the server dropped a connection that no fault was put on"
            assert fault.startswith("drop"), fault
            return "dropped on purpose"

    async def read(self, path, body, headers, reader, leave_after):
        async with self.http.stream("POST", path, json=body, headers=headers) as response:
            if response.status_code != 200:
                error = json.loads(await response.aread())["error"]
                assert response.status_code in (500, 529)
                assert error["message"]
                return f"refused {response.status_code}"
            async for piece in response.aiter_raw():
                reader.feed(piece)
                if leave_after is not None and reader.num_frames >= leave_after:
                    return "left"
        return reader.ending()


class AnthropicReader:
    """Checks every frame; ``ending`` tells how the stream ended."""

    def __init__(self):
        self.parser, self.lifecycle = SseParser(), Lifecycle()
        self.num_frames, self.error = 0, None

    def feed(self, piece):
        for event in self.parser.feed(piece):
            self.num_frames += 1
            data = json.loads(event.data)
            assert data["type"] == event.name
            self.lifecycle.check(data)
            if event.name == "error":
                self.error = data["error"]["type"]

    def ending(self):
        assert not self.parser.close()
        assert self.lifecycle.is_complete or self.error, "a stream ended without a final event or a named error"
        return self.error or "complete"


class OpenAIReader:
    """The same for chunks."""

    def __init__(self):
        self.parser, self.lifecycle = SseParser(), ChunkLifecycle()
        self.num_frames, self.error = 0, None

    def feed(self, piece):
        for event in self.parser.feed(piece):
            self.num_frames += 1
            data = event.data if event.data == "[DONE]" else json.loads(event.data)
            if "error" in data:
                self.error = data["error"]["type"]
            else:
                self.lifecycle.check(data)

    def ending(self):
        assert not self.parser.close()
        assert self.lifecycle.is_complete or self.error, "a stream ended without a final event or a named error"
        return self.error or "complete"


async def crowd(url):
    """All visitors' outcomes."""
    limits = httpx2.Limits(max_connections=STREAMS, max_keepalive_connections=STREAMS)
    async with httpx2.AsyncClient(base_url=url, limits=limits, timeout=30) as http:
        visitors = [Visitor(http, seed) for seed in range(STREAMS)]
        end = time.monotonic() + SECONDS
        async with asyncio.TaskGroup() as group:
            for visitor in visitors:
                group.create_task(visitor.visit_until(end))
    return sum((visitor.outcomes for visitor in visitors), Counter())


def test_two_hundred_streams_leave_nothing_behind():
    threads = threading.active_count()
    with llmlab.open("mock", num_blocks=1024, max_num_seqs=16) as lab:
        with lab.serve(port=0, max_open=180, allow_faults=True) as server:
            outcomes = asyncio.run(crowd(server.url))
            metrics = httpx2.get(server.url + "/metrics").text
        engine = lab.engine
        end = time.monotonic() + 5
        while engine.scheduler.has_work and time.monotonic() < end:
            time.sleep(0.01)
        engine.check_integrity()
        assert engine.pool.num_used == 0
        assert not engine._sequences
        assert not engine._open_ids
        assert lab.ask("still there?", max_tokens=4).stop_reason == "length"
    gc.collect()
    assert threading.active_count() <= threads
    assert outcomes["complete"] > 500
    assert outcomes["left"] > 50
    assert outcomes["dropped on purpose"] > 20
    assert outcomes["refused 529"] > 0
    assert outcomes["refused 500"] > 0
    assert set(outcomes) <= {"complete", "left", "dropped on purpose", "refused 529", "refused 500"}
    assert "vllm:num_requests_running{" in metrics
