"""One HTTP request and its response, from the first header to the last byte."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Mapping
from time import perf_counter_ns
from typing import Any

from llmlab.api.errors import ApiError
from llmlab.api.heads import head_text
from llmlab.api.ids import request_id
from llmlab.api.sse import to_json
from llmlab.errors import InvalidParameter, LabError
from llmlab.gateway.disconnect import Receive, T, guarded
from llmlab.gateway.faults import FaultyWriter, Plan
from llmlab.gateway.metrics import RequestMetrics
from llmlab.gateway.recording import ExchangeLog
from llmlab.gateway.response import ResponseWriter, Send
from llmlab.trace.recorder import Recorder

JSON = "application/json"


class Exchange:
    """State of one exchange; ``headers`` have lower-case names, the first of several equal ones counts.

    ``stream_error`` makes the frames that end a stream after a failure, once one has begun.
    """

    def __init__(self, scope: Mapping[str, Any], receive: Receive, send: Send, recorder: Recorder) -> None:
        self.scope, self.receive, self._send = scope, receive, send
        self.method, self.path = scope["method"], scope["path"]
        self.raw_headers = [
            (name.decode("latin-1").lower(), value.decode("latin-1")) for name, value in scope["headers"]
        ]
        self.headers = dict(reversed(self.raw_headers))
        self.wire_id = request_id()
        self.log = ExchangeLog(recorder, self.wire_id)
        self.writer: ResponseWriter = ResponseWriter(send, self.log)
        self.writer.headers |= {"request-id": self.wire_id, "x-request-id": self.wire_id}
        self.stream_error: Callable[[ApiError], bytes] | None = None
        self.outcome = "ok"
        self.metrics: RequestMetrics | None = None  # of a request that has reached a backend
        self.requested_model: str | None = None  # where another one serves the request
        self.body_bytes = 0
        self.started_ns = perf_counter_ns()
        self._recorded = False
        if client_id := self.headers.get("x-client-request-id"):
            self.log.link("client", client_id)

    @property
    def is_anthropic(self) -> bool:
        """Whose error envelope this exchange gets: by path, and on the shared paths by a header."""
        if self.path.startswith(("/v1/messages", "/v1/v1/messages", "/messages")):
            return True
        return not self.path.endswith("/chat/completions") and "anthropic-version" in self.headers

    @property
    def asks_for_beta(self) -> bool:
        """Whether the query says ``beta=true``, as some clients do in place of a header."""
        return b"beta=true" in self.scope.get("query_string", b"").split(b"&")

    def record_request(self, body: bytes | None = None) -> None:
        """Record head and body, once; the query string is left out, for it may hold credentials."""
        if self._recorded:
            return
        self._recorded = True
        if self.log.enabled:
            head = head_text(self.raw_headers)
            text = head if body is None else f"{head}\n\n{body.decode(errors='replace')}"
            name = f"{self.method} {self.path}"
            self.log.event(
                "request", name, direction="received", size=len(body or b""), text=text, t_ns=self.started_ns
            )

    async def guarded(self, work: Coroutine[Any, Any, T], stop: asyncio.Event) -> T:
        """:func:`~llmlab.gateway.disconnect.guarded` for this exchange, whose body has been read."""
        return await guarded(work, self.receive, stop, lambda: self.writer.finished)

    def break_with(self, plan: Plan) -> None:
        """Have the rest of ``plan`` carried out on the response."""
        headers = self.writer.headers
        self.writer = FaultyWriter(self._send, self.log, plan)
        self.writer.headers = headers

    async def json(self, value: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> None:
        """Answer with JSON in one piece."""
        await self.writer.whole(status, {"content-type": JSON, **(headers or {})}, to_json(value).encode())

    async def fail(self, error: ApiError) -> None:
        """Tell the client of a failure, as JSON with a status or, in a stream, by its last frames."""
        self.outcome = error.kind
        self.log.event("error", error.kind, text=error.message)
        if self.writer.finished:
            return
        if not self.writer.started:
            body = error.anthropic(self.wire_id) if self.is_anthropic else error.openai()
            await self.json(body, error.status, error.headers)
        elif self.stream_error is not None:
            await self.writer.write(self.stream_error(error))
            await self.writer.finish()

    def end(self) -> None:
        """Record the end; the size is that of the response's body."""
        self.record_request()
        self.log.event("end", self.outcome, size=self.writer.sent_bytes)


def as_api_error(error: Exception) -> ApiError:
    """Any failure as one that can be sent; what it says of our own mistakes goes to the log only."""
    if isinstance(error, ApiError):
        return error
    if isinstance(error, InvalidParameter):
        return ApiError("invalid_request_error", str(error))
    if isinstance(error, LabError):
        return ApiError("api_error", str(error))
    logging.getLogger(__name__).error("a request failed unexpectedly", exc_info=error)
    return ApiError("api_error", "internal server error")
