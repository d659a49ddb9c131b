"""Asking a server of any make that uses vLLM's metric names how it is."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator
from time import monotonic, perf_counter_ns
from urllib.parse import urlsplit

import httpx2
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from llmlab.client.stream_errors import ApiFailure, ProtocolViolation, ServerUnreachable, TotalTimeout
from llmlab.client.wire import is_loopback
from llmlab.errors import InvalidParameter
from llmlab.trace.readings import KV_USAGE, SUMMED, TTFT_BUCKET, Reading

MAX_BYTES = 4_000_000
TIMEOUT_S = 5.0


def scrape(url: str, *, timeout_s: float = TIMEOUT_S, max_bytes: int = MAX_BYTES) -> Reading:
    """Read ``url`` once: a server's address, to which ``/metrics`` is added, or the whole address of its metrics.

    At most ``max_bytes`` are read, within ``timeout_s``. Raises ``InvalidParameter`` for what is no http address,
    ``ServerUnreachable``, ``TotalTimeout``, ``ApiFailure`` for a status other than 200 and ``ProtocolViolation`` for an
    answer that is too long or holds no metrics.
    """
    address = _address(url)
    text = _fetch(address, timeout_s, max_bytes)
    return parse(text, address)


def parse(text: str, source: str) -> Reading:
    """A reading of Prometheus' text format, made now. Raises ``ProtocolViolation`` for what is not that format."""
    now = perf_counter_ns()
    try:
        samples = [sample for sample in _samples(text) if math.isfinite(sample.value)]
        ttft = _buckets(samples)
    except (ValueError, KeyError, IndexError, AttributeError, TypeError, OverflowError) as error:
        raise ProtocolViolation(f"{source} answers with what are no metrics: {str(error)[:200]}") from None
    values: dict[str, float] = {}
    for sample in samples:
        if sample.name in SUMMED:
            values[sample.name] = values.get(sample.name, 0.0) + sample.value
        elif sample.name == KV_USAGE:
            values[KV_USAGE] = max(values.get(KV_USAGE, 0.0), sample.value)
    return Reading(now, source, values, ttft)


def _samples(text: str) -> Iterator[Sample]:
    for family in text_string_to_metric_families(text):
        yield from family.samples


def _buckets(samples: list[Sample]) -> tuple[tuple[float, float], ...]:
    counts: dict[float, float] = defaultdict(float)
    for sample in samples:
        if sample.name == TTFT_BUCKET:
            counts[float(sample.labels["le"])] += sample.value
    return tuple(sorted(counts.items()))


def _address(url: str) -> str:
    try:
        parts = urlsplit(url)
        is_web = parts.scheme in ("http", "https") and bool(parts.hostname)
    except (ValueError, AttributeError, TypeError):
        is_web = False
    if not is_web:
        raise InvalidParameter(f"url={url!r} is no address: give one like http://127.0.0.1:8000")
    return url if parts.path.rstrip("/").endswith("/metrics") else f"{url.rstrip('/')}/metrics"


def _fetch(address: str, timeout_s: float, max_bytes: int) -> str:
    try:
        with (
            httpx2.Client(timeout=timeout_s, trust_env=not is_loopback(address), follow_redirects=False) as http,
            http.stream("GET", address, headers={"accept-encoding": "identity"}) as response,
        ):
            if (status := response.status_code) != 200:
                raise ApiFailure(f"{address} answers with status {status}: it has no metrics there", status=status)
            if "content-encoding" in response.headers:
                raise ProtocolViolation(f"{address} answers compressed though it was asked not to")
            return _body(response, address, monotonic() + timeout_s, max_bytes)
    except httpx2.InvalidURL as error:
        raise InvalidParameter(f"url={address!r} is no address: {error}") from None
    except httpx2.TimeoutException:
        raise TotalTimeout(f"{address} did not answer within {timeout_s:g} s") from None
    except httpx2.HTTPError as error:
        raise ServerUnreachable(f"{address} cannot be reached: {error}; is the server running?") from None


def _body(response: httpx2.Response, address: str, deadline: float, max_bytes: int) -> str:
    held = bytearray()
    for piece in response.iter_raw():
        held += piece
        if len(held) > max_bytes:
            raise ProtocolViolation(f"{address} answers with more than {max_bytes:,} bytes: give a larger max_bytes")
        if monotonic() > deadline:
            raise TotalTimeout(f"{address} was still answering at the end of its time")
    return held.decode("utf-8", errors="replace")
