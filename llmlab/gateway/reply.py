"""Sending a backend's reply: as a stream of server-sent events, or in one piece."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from time import monotonic
from typing import Protocol

from llmlab.api.codec import Codec, StreamEncoder
from llmlab.api.reply import Ended, ReplyEvent
from llmlab.api.sse import HEADERS
from llmlab.gateway.backend import Call, Generation
from llmlab.gateway.disconnect import end_tasks
from llmlab.gateway.exchange import Exchange
from llmlab.gateway.failover import Failover
from llmlab.gateway.recording import StageTimer
from llmlab.gateway.response import ResponseWriter

MAX_HEADER = 512
_UNSAFE = re.compile(r"[^A-Za-z0-9_.,:/\[\]@ -]")


class Observer(Protocol):
    """Something that counts what replies hold: metrics, rate limits."""

    def add(self, event: ReplyEvent) -> None:
        """Take the next event."""


@dataclass(frozen=True, slots=True)
class Reply:
    """One call at one backend, on its way to the client of one exchange."""

    exchange: Exchange
    codec: Codec
    backend: Failover
    call: Call
    observers: Sequence[Observer]
    limit_headers: Callable[[], dict[str, str]]
    ping_s: float

    async def send(self) -> None:
        """Open the call and send what it gives; whatever happens, the generation is closed at the end.

        A refusal by the backend is an error response with a status of its own. The head of a stream leaves as soon as
        the backend has admitted the request, so a later failure, also one before the first frame, ends the stream with
        an error frame.
        """
        with self.exchange.log.stage("open") as stage:
            generation = await self.backend.open(self.call)
            stage.note("admitted by the backend", load=self.backend.load)
        try:
            await (self._stream(generation) if self.call.conversation.stream else self._collect(generation))
        finally:
            await generation.aclose()

    async def _stream(self, generation: Generation) -> None:
        writer = self.exchange.writer
        encoder = self.codec.stream(self.call.info, self.call.conversation)
        with self.exchange.log.stage("stream") as stage:
            self.exchange.stream_error = encoder.error
            await writer.start(200, {**HEADERS, **self._headers()})
            async with _pinging(writer, encoder, self.ping_s):
                async for event in generation:
                    self._observe(event)
                    await writer.write(encoder.encode(event))
                    self._note_end(event, stage)
            await writer.finish()
            stage.details |= {"frames": writer.sent_frames, "bytes": writer.sent_bytes}

    async def _collect(self, generation: Generation) -> None:
        collector = self.codec.collect(self.call.info, self.call.conversation)
        with self.exchange.log.stage("collect") as stage:
            async for event in generation:
                self._observe(event)
                collector.add(event)
                self._note_end(event, stage)
        await self.exchange.json(collector.body(), headers=self._headers())

    def _observe(self, event: ReplyEvent) -> None:
        for observer in self.observers:
            observer.add(event)

    def _note_end(self, event: ReplyEvent, stage: StageTimer) -> None:
        if isinstance(event, Ended):
            stage.note(
                "the backend ended the reply", output_tokens=event.usage.output, prompt_tokens=event.usage.prompt
            )

    def _headers(self) -> dict[str, str]:
        """Who serves it and, where the client may expect something else, what it does not get."""
        conversation, served = self.call.conversation, self.call.info.model
        found = {"llmlab-backend": header_text(self.backend.name), "llmlab-model": header_text(served)}
        if conversation.model != served:
            found["llmlab-requested-model"] = header_text(conversation.model)
        if ignored := dict.fromkeys((*conversation.ignored, *self.backend.ignores(conversation))):
            found["llmlab-ignored"] = header_text(", ".join(ignored))
        return found | self.limit_headers()


def header_text(text: str) -> str:
    """``text`` as a header's value: a bounded number of harmless characters."""
    return _UNSAFE.sub("?", text)[:MAX_HEADER]


@asynccontextmanager
async def _pinging(writer: ResponseWriter, encoder: StreamEncoder, ping_s: float):
    """Send a ping whenever ``ping_s`` seconds have passed without a frame, while the body of the ``with`` runs."""
    task = asyncio.create_task(_ping_forever(writer, encoder, ping_s))
    try:
        yield
    finally:
        await end_tasks(task)


async def _ping_forever(writer: ResponseWriter, encoder: StreamEncoder, ping_s: float) -> None:
    while True:
        silence = monotonic() - writer.last_write
        if silence >= ping_s:
            await writer.write(encoder.ping())
        else:
            await asyncio.sleep(ping_s - silence)
