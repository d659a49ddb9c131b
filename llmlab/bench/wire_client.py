"""A client that costs as little as possible: one connection, prepared bytes, a search for the end of the stream."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass
from time import perf_counter
from urllib.parse import urlsplit

from llmlab.bench.wire_server import MESSAGES
from llmlab.errors import BenchError

LAST_CHUNK = b"0\r\n\r\n"


@dataclass(frozen=True, slots=True)
class Target:
    """One of the two streaming endpoints: its path, what its body holds beside the messages, how its stream ends."""

    path: str
    limit: str
    end: bytes


ANTHROPIC = Target("/v1/messages", "max_tokens", b"event: message_stop")
OPENAI = Target("/v1/chat/completions", "max_completion_tokens", b"data: [DONE]")


async def stream(url: str, target: Target, streams: int, tokens: int, requests: int) -> list[float]:
    """Seconds of every request: ``streams`` connections at once, ``requests`` one after the other on each."""
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(_connection(url, target, tokens, requests)) for _ in range(streams)]
    return [seconds for task in tasks for seconds in task.result()]


async def _connection(url: str, target: Target, tokens: int, requests: int) -> list[float]:
    parts = urlsplit(url)
    reader, writer = await asyncio.open_connection(parts.hostname, parts.port)
    request = _request(parts.netloc, target, tokens)
    try:
        return [await _exchange(reader, writer, request, target) for _ in range(requests)]
    finally:
        writer.close()


def _request(host: str, target: Target, tokens: int) -> bytes:
    body = json.dumps({"model": "mock", "messages": MESSAGES, target.limit: tokens, "stream": True}).encode()
    head = (
        f"POST {target.path} HTTP/1.1\r\nhost: {host}\r\ncontent-type: application/json\r\n"
        f"content-length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


async def _exchange(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, request: bytes, target: Target
) -> float:
    start = perf_counter()
    writer.write(request)
    seen = b""
    while not seen.endswith(LAST_CHUNK):
        piece = await reader.read(65536)
        if not piece:
            raise BenchError(f"the server closed the connection: {seen[-200:]!r}")
        seen += piece
    if target.end not in seen:
        raise BenchError(f"the stream did not end as it should: {seen[-200:]!r}")
    return perf_counter() - start
