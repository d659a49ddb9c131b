"""What a server said about itself at one moment, under vLLM's names: counters and gauges, no events."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

RUNNING, WAITING = "vllm:num_requests_running", "vllm:num_requests_waiting"
KV_USAGE = "vllm:kv_cache_usage_perc"
QUERIES, HITS = "vllm:prefix_cache_queries_total", "vllm:prefix_cache_hits_total"
PROMPT_TOKENS, OUTPUT_TOKENS = "vllm:prompt_tokens_total", "vllm:generation_tokens_total"
PREEMPTIONS = "vllm:num_preemptions_total"
TTFT_BUCKET = "vllm:time_to_first_token_seconds_bucket"
SUMMED = (RUNNING, WAITING, QUERIES, HITS, PROMPT_TOKENS, OUTPUT_TOKENS, PREEMPTIONS)
"""Numbers that add up over the engines of a server; of ``KV_USAGE`` the fullest engine's counts."""


@dataclass(frozen=True, slots=True)
class Reading:
    """One scrape of ``/metrics`` at ``t_ns`` (``time.perf_counter_ns()`` of whoever asked).

    ``values`` has those of :data:`SUMMED` and ``KV_USAGE`` (0 to 1) that the server told, over all its engines.
    ``ttft`` are ``(seconds, requests whose first token came within them)``, ascending, the last one at infinity.
    """

    t_ns: int
    source: str
    values: Mapping[str, float]
    ttft: tuple[tuple[float, float], ...] = ()
