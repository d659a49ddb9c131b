"""Sending one response, in one piece or frame by frame."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from time import monotonic
from typing import Any

from llmlab.api.heads import head_text
from llmlab.gateway.recording import ExchangeLog

Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]


class ResponseWriter:
    """The one way out of an exchange: it knows whether the head is gone, and records what it sends.

    Writers from two tasks (frames and pings) take turns, so a frame is never broken by another.
    """

    def __init__(self, send: Send, log: ExchangeLog) -> None:
        self._send, self.log = send, log
        self.headers: dict[str, str] = {}  # sent with whatever response this becomes
        self.started = self.finished = False
        self.status = 0
        self.sent_bytes = self.sent_frames = 0
        self.last_write = monotonic()
        self._turn = asyncio.Lock()

    async def whole(self, status: int, headers: Mapping[str, str], body: bytes) -> None:
        """Send a response in one piece."""
        headers = {**headers, "content-length": str(len(body))}
        await self._start(status, headers, body.decode(errors="replace") if self.log.enabled else None, len(body))
        self.sent_bytes += len(body)
        self.finished = True
        await self._send({"type": "http.response.body", "body": body, "more_body": False})

    async def start(self, status: int, headers: Mapping[str, str]) -> None:
        """Send the head of a stream."""
        await self._start(status, headers, None, 0)

    async def write(self, frames: bytes) -> None:
        """Send whole frames, if there are any."""
        if not frames:
            return
        async with self._turn:
            self.log.frames(frames)
            self.sent_frames += frames.count(b"\n\n")
            self.last_write = monotonic()
            await self._body(frames)

    async def finish(self) -> None:
        """End the stream as the protocol wants it ended."""
        async with self._turn:
            self.finished = True
            await self._send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _body(self, data: bytes) -> None:
        self.sent_bytes += len(data)
        await self._send({"type": "http.response.body", "body": data, "more_body": True})

    async def _start(self, status: int, headers: Mapping[str, str], text: str | None, size: int) -> None:
        merged = {**self.headers, **headers}
        self.started, self.status = True, status
        if self.log.enabled:
            head = head_text(merged.items())
            full = head if text is None else f"{head}\n\n{text}"
            self.log.event("response", str(status), direction="sent", size=size, text=full)
        raw = [(name.encode("latin-1"), value.encode("latin-1", "replace")) for name, value in merged.items()]
        await self._send({"type": "http.response.start", "status": status, "headers": raw})
