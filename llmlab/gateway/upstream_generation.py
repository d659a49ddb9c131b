"""A reply that another server streams."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable

import httpx2

from llmlab.api.errors import ApiError
from llmlab.api.reply import ReplyEvent
from llmlab.api.sse_parser import EventTooLarge, SseParser
from llmlab.gateway.upstream_errors import bad_gateway, from_exception
from llmlab.gateway.upstream_reader import ChunkReader


class UpstreamGeneration:
    """Implements :class:`llmlab.gateway.backend.Generation` over an open response.

    ``on_close(outcome, bytes read, error that ended it)`` is called once. The connection is closed with the generation,
    which is how the upstream learns that nobody reads any more.
    """

    def __init__(
        self,
        response: httpx2.Response,
        reader: ChunkReader,
        max_bytes: int,
        on_close: Callable[[str, int, ApiError | None], None],
    ) -> None:
        self._response, self._reader, self._max_bytes = response, reader, max_bytes
        self._on_close = on_close
        self._parser = SseParser()
        self._bytes = 0
        self._outcome = "stopped"
        self._error: ApiError | None = None
        self._closed = False

    async def __aiter__(self) -> AsyncIterator[ReplyEvent]:
        """The reply's events. Raises ``ApiError`` for whatever goes wrong at the upstream."""
        try:
            async for event in self._events():
                yield event
            self._outcome = "ok"
        except ApiError as error:
            self._outcome, self._error = "failed", error
            raise
        finally:
            await self.aclose()

    async def aclose(self) -> None:
        """Close the upstream's connection; harmless after the end."""
        if not self._closed:
            self._closed = True
            self._on_close(self._outcome, self._bytes, self._error)
            await self._response.aclose()

    async def _events(self) -> AsyncIterator[ReplyEvent]:
        async for piece in self._pieces():
            for event in self._feed(piece):
                for reply_event in self._reader.feed(event.data):
                    yield reply_event
            if self._reader.is_done:
                break
        if not self._closed:
            yield self._reader.finish()

    def _feed(self, piece: bytes) -> list:
        self._bytes += len(piece)
        if self._bytes > self._max_bytes:
            raise bad_gateway(f"upstream {self._reader.name} sent more than {self._max_bytes:,} bytes")
        try:
            return self._parser.feed(piece)
        except EventTooLarge as error:
            raise bad_gateway(f"upstream {self._reader.name} sent an event that is too long") from error

    async def _pieces(self) -> AsyncIterator[bytes]:
        """Bytes as they arrive. An error after ``aclose`` is only its echo."""
        try:
            async for piece in self._response.aiter_raw():
                yield piece
        except (httpx2.HTTPError, httpx2.StreamError) as error:
            if not self._closed:
                raise from_exception(self._reader.name, error) from error
