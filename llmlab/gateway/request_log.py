"""One line of text per finished request, for whoever runs a server. What was said in it is never part of the line."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from time import perf_counter_ns
from types import MappingProxyType

from llmlab.gateway.app import EXCHANGE, Gateway, Scope
from llmlab.gateway.disconnect import Receive
from llmlab.gateway.exchange import Exchange
from llmlab.gateway.metrics import RequestMetrics
from llmlab.gateway.reply import header_text
from llmlab.gateway.response import Send

POLLED = frozenset({"/metrics", "/health"})
ENDPOINTS: Mapping[str, str] = MappingProxyType(
    {
        "/v1/messages": "anthropic",
        "/messages": "anthropic",
        "/v1/messages/count_tokens": "count_tokens",
        "/v1/chat/completions": "openai",
        "/chat/completions": "openai",
    }
)


class RequestLog:
    """The gateway's application with a log: ``write`` gets a line for each request, polled endpoints left out."""

    def __init__(self, gateway: Gateway, write: Callable[[str], None]) -> None:
        self.gateway, self.write = gateway, write

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request; a log that cannot be written to does not stop it."""
        try:
            await self.gateway.app(scope, receive, send)
        finally:
            exchange = scope.get(EXCHANGE)
            if exchange is not None and exchange.path not in POLLED:
                with contextlib.suppress(OSError, ValueError):
                    self.write(self._line(exchange))

    def _line(self, exchange: Exchange) -> str:
        """``time endpoint model status outcome prompt= cached= output= ttft= total= backend= request id``.

        ``-`` stands for what is not known: tokens of a request that never began or whose upstream does not count.
        ``requested=`` precedes the id where another model than the one asked for served the request.
        """
        endpoint = ENDPOINTS.get(exchange.path, "models" if exchange.path.startswith("/v1/models") else "other")
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        total = (perf_counter_ns() - exchange.started_ns) / 1e9
        model, backend = self._served_by(exchange.metrics)
        status = exchange.writer.status or "-"
        counts = _counts(exchange.metrics)
        head = f"{now} {endpoint} {model} {status} {exchange.outcome}"
        requested = "" if exchange.requested_model is None else f"requested={_word(exchange.requested_model)} "
        return f"{head} {counts} total={total:.3f}s backend={backend} {requested}{exchange.wire_id}"

    def _served_by(self, metrics: RequestMetrics | None) -> tuple[str, str]:
        if metrics is None:
            return "-", "-"
        model, index = metrics.labels
        return _word(model), _word(self.gateway.backends[int(index)].name)


def _word(name: str) -> str:
    """A name without blanks or anything that a terminal would act on."""
    return header_text(name).replace(" ", "?")


def _counts(metrics: RequestMetrics | None) -> str:
    usage = None if metrics is None else metrics.usage
    prompt, cached = ("-", "-") if usage is None else (usage.prompt, usage.cache_read)
    output = usage.output if usage is not None and metrics.has_ended else "-"
    ttft = "-" if metrics is None or metrics.ttft_s is None else f"{metrics.ttft_s:.3f}s"
    return f"prompt={prompt} cached={cached} output={output} ttft={ttft}"
