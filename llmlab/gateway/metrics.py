"""Counters for ``/metrics``, under the names of vLLM's own, so that a dashboard made for it reads this server too.

A name of vLLM's appears only where its meaning is met here; what a backend cannot tell is left out: an upstream has no
queue, prefill and decode times, gauges only if its own ``/metrics`` has them (they are then about all its clients'
requests), and adds no token counts when it does not count. Left out of vLLM's list are also what this engine does not
have (LoRA, sleep, external prefix caches, lifetimes of K/V blocks) and what it does not measure
(``iteration_tokens_total``, ``request_time_per_output_token_seconds``).
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from llmlab.api.conversation import Conversation
from llmlab.api.reply import BlockDelta, Ended, ReplyEvent, SampleEnd, Started
from llmlab.api.usage import Usage
from llmlab.gateway.backend import Backend
from llmlab.gateway.routing import Choice

CONTENT_TYPE = CONTENT_TYPE_LATEST
LABELS = ("model_name", "engine")
TTFT_S = (
    0.001,
    0.005,
    0.01,
    0.02,
    0.04,
    0.06,
    0.08,
    0.1,
    0.25,
    0.5,
    0.75,
    1,
    2.5,
    5,
    7.5,
    10,
    20,
    40,
    80,
    160,
    640,
    2560,
)
ITL_S = (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80)
REQUEST_S = (0.3, 0.5, 0.8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60, 120, 240, 480, 960, 1920, 7680)
TOKENS = tuple(digit * 10**power for power in range(6) for digit in (1, 2, 5))
SAMPLES = (1, 2, 5, 10, 20)
FINISHED = {"end_turn": "stop", "stop_sequence": "stop", "tool_use": "stop", "refusal": "stop"}
"""vLLM's ``finished_reason`` of our stops; the others are ``length``, a client that left makes ``abort``."""

GAUGES = {
    "running": (GaugeMetricFamily, "vllm:num_requests_running", "Requests in the batch."),
    "waiting": (GaugeMetricFamily, "vllm:num_requests_waiting", "Requests waiting for a place in the batch."),
    "kv_usage": (GaugeMetricFamily, "vllm:kv_cache_usage_perc", "Part of the K/V blocks in use, 0 to 1."),
    "preemptions": (CounterMetricFamily, "vllm:num_preemptions", "Requests preempted to make room."),
    "queries": (CounterMetricFamily, "vllm:prefix_cache_queries", "Prompt tokens looked up in the prefix cache."),
    "hits": (CounterMetricFamily, "vllm:prefix_cache_hits", "Prompt tokens found in the prefix cache."),
    "drafts": (CounterMetricFamily, "vllm:spec_decode_num_drafts", "Drafts made."),
    "draft_tokens": (CounterMetricFamily, "vllm:spec_decode_num_draft_tokens", "Tokens of those drafts."),
    "accepted_tokens": (CounterMetricFamily, "vllm:spec_decode_num_accepted_tokens", "Draft tokens accepted."),
}
"""What ``Backend.gauges()`` may return, and its metric."""


class BackendGauges:
    """Asks the backends that can tell how they are, at the moment of a scrape."""

    def __init__(self, backends: Sequence[Backend]) -> None:
        self.backends = backends

    async def ask(self) -> None:
        """Let the backends that are elsewhere say anew how they are, all at once."""
        asks = (getattr(backend, "ask_for_gauges", None) for backend in self.backends)
        await asyncio.gather(*(ask() for ask in asks if ask is not None))

    def collect(self) -> Iterator[Metric]:
        """One family per name that some backend knows."""
        states = [(backend, getattr(backend, "gauges", dict)()) for backend in self.backends]
        for name, (family, metric, text) in GAUGES.items():
            known = [(index, backend, state[name]) for index, (backend, state) in enumerate(states) if name in state]
            if known:
                found = family(metric, text, labels=LABELS)
                for index, backend, value in known:
                    found.add_metric([backend.name, str(index)], value)
                yield found


class Metrics:
    """One gateway's metrics, in a registry of its own. Times are in seconds, seen from the gateway except for
    ``stages`` and ``inference``, which only a backend can tell.
    """

    def __init__(self, backends: Sequence[Backend]) -> None:
        self.registry = CollectorRegistry()
        self._gauges = BackendGauges(backends)
        self.registry.register(self._gauges)
        self.prompt_tokens = self._counter("prompt_tokens", "Prompt tokens.")
        self.generation_tokens = self._counter("generation_tokens", "Output tokens.")
        self.success = self._counter("request_success", "Requests that ended.", "finished_reason")
        self.ttft = self._histogram("time_to_first_token_seconds", "Arrival to first token.", TTFT_S)
        self.itl = self._histogram("inter_token_latency_seconds", "Between pieces of output of a sample.", ITL_S)
        self.e2e = self._histogram("e2e_request_latency_seconds", "Arrival to end.", REQUEST_S)
        self.stages = {
            "queue_s": self._histogram("request_queue_time_seconds", "Waiting for the first step.", REQUEST_S),
            "prefill_s": self._histogram("request_prefill_time_seconds", "First step to first token.", REQUEST_S),
            "decode_s": self._histogram("request_decode_time_seconds", "First token to last token.", REQUEST_S),
        }
        self.inference = self._histogram("request_inference_time_seconds", "First step to last token.", REQUEST_S)
        self.prompt_size = self._histogram("request_prompt_tokens", "Prompt tokens of a request.", TOKENS)
        self.output_size = self._histogram("request_generation_tokens", "Output tokens of a request.", TOKENS)
        self.n = self._histogram("request_params_n", "Samples asked for.", SAMPLES)
        self.max_tokens = self._histogram("request_params_max_tokens", "Output tokens asked for at most.", TOKENS)

    def _counter(self, name: str, text: str, *labels: str) -> Counter:
        return Counter(f"vllm:{name}", text, (*LABELS, *labels), registry=self.registry)

    def _histogram(self, name: str, text: str, buckets: Iterable[float]) -> Histogram:
        return Histogram(f"vllm:{name}", text, LABELS, registry=self.registry, buckets=buckets)

    def follow(self, model: str, index: int, conversation: Conversation) -> RequestMetrics:
        """Start counting one request at backend ``index``."""
        return RequestMetrics(self, (model, str(index)), conversation.sampling)

    async def ask_backends(self) -> None:
        """Ask backends that are elsewhere for their gauges, before :meth:`text`."""
        await self._gauges.ask()

    def text(self) -> bytes:
        """The exposition format, :data:`CONTENT_TYPE`."""
        return generate_latest(self.registry)


@dataclass(slots=True)
class RequestMetrics:
    """Counts one request from its events. ``labels`` are the model's name and the backend's index.

    ``usage`` is the ledger as far as it is known, ``None`` before the first token and where an upstream counts nothing.
    """

    metrics: Metrics
    labels: tuple[str, str]
    sampling: Any
    arrived: float = field(default_factory=perf_counter)
    last: dict[int, float] = field(default_factory=dict)  # time of the last output by sample
    reasons: list[str] = field(default_factory=list)
    output: int = 0
    has_started: bool = False
    has_ended: bool = False
    usage: Usage | None = None
    ttft_s: float | None = None

    def move(self, choice: Choice) -> None:
        """Another backend has it now."""
        self.labels = (choice.model, str(choice.index))

    def add(self, event: ReplyEvent) -> None:
        """Take the next event of the reply."""
        if isinstance(event, BlockDelta):
            self._output(event)
        elif isinstance(event, Started):
            self._started(event)
        elif isinstance(event, SampleEnd):
            self.reasons.append(FINISHED.get(event.stop, "length"))
        elif isinstance(event, Ended):
            self._ended(event)

    def _started(self, event: Started) -> None:
        self.has_started = True
        self.ttft_s = perf_counter() - self.arrived
        self.metrics.ttft.labels(*self.labels).observe(self.ttft_s)
        self._prompt(event.usage)

    def _prompt(self, usage: Usage) -> None:
        """Count the prompt as soon as it is known: most upstreams tell its size only at the end, and 0 before."""
        known = 0 if self.usage is None else self.usage.prompt
        self.metrics.prompt_tokens.labels(*self.labels).inc(max(0, usage.prompt - known))
        self.usage = usage if usage.prompt else None

    def _output(self, event: BlockDelta) -> None:
        if not (event.text or event.token_ids):
            return
        now = perf_counter()
        if event.sample in self.last:
            self.metrics.itl.labels(*self.labels).observe(now - self.last[event.sample])
        self.last[event.sample] = now
        self._generated(len(event.token_ids))

    def _generated(self, tokens: int) -> None:
        self.output += tokens
        self.metrics.generation_tokens.labels(*self.labels).inc(tokens)

    def _ended(self, event: Ended) -> None:
        metrics = self.metrics
        self.has_ended = True
        metrics.e2e.labels(*self.labels).observe(perf_counter() - self.arrived)
        if not event.extra.get("usage_unknown"):
            self._prompt(event.usage)
            self._generated(max(0, event.usage.output - self.output))
            metrics.prompt_size.labels(*self.labels).observe(event.usage.prompt)
            metrics.output_size.labels(*self.labels).observe(event.usage.output)
        metrics.n.labels(*self.labels).observe(self.sampling.get("n", 1))
        if (most := self.sampling.get("max_tokens")) is not None:
            metrics.max_tokens.labels(*self.labels).observe(most)
        self._stages(event.extra)
        for reason in self.reasons:
            metrics.success.labels(*self.labels, reason).inc()

    def _stages(self, extra: Mapping[str, Any]) -> None:
        for name, histogram in self.metrics.stages.items():
            if (seconds := extra.get(name)) is not None:
                histogram.labels(*self.labels).observe(seconds)
        if {"prefill_s", "decode_s"} <= extra.keys():
            self.metrics.inference.labels(*self.labels).observe(extra["prefill_s"] + extra["decode_s"])

    def break_off(self, reason: str) -> None:
        """The request ended early: ``abort`` for a client that left, ``error``. A refusal is no request that ended."""
        if self.has_started or reason == "abort":
            self.metrics.success.labels(*self.labels, reason).inc()
