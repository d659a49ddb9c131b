"""What another server says about itself at its ``/metrics``, where it uses vLLM's names."""

from __future__ import annotations

import math
from collections.abc import Mapping
from types import MappingProxyType

from prometheus_client.parser import text_string_to_metric_families

SUMMED: Mapping[str, str] = MappingProxyType(
    {
        "vllm:num_requests_running": "running",
        "vllm:num_requests_waiting": "waiting",
        "vllm:num_preemptions_total": "preemptions",
        "vllm:prefix_cache_queries_total": "queries",
        "vllm:prefix_cache_hits_total": "hits",
        "vllm:spec_decode_num_drafts_total": "drafts",
        "vllm:spec_decode_num_draft_tokens_total": "draft_tokens",
        "vllm:spec_decode_num_accepted_tokens_total": "accepted_tokens",
    }
)
"""Samples that add up over the engines of a server, and the names that ``Backend.gauges()`` has for them."""
FULLEST = "vllm:kv_cache_usage_perc"


def read_gauges(text: str) -> dict[str, float]:
    """The gauges in Prometheus' text format; none where the text is something else or knows none of the names.

    Several engines are added up, and of their K/V usage the fullest counts.
    """
    found: dict[str, float] = {}
    try:
        samples = [sample for family in text_string_to_metric_families(text) for sample in family.samples]
    except (ValueError, KeyError, IndexError, AttributeError, TypeError, OverflowError):
        return {}
    for sample in samples:
        if not math.isfinite(sample.value):
            continue
        if (name := SUMMED.get(sample.name)) is not None:
            found[name] = found.get(name, 0.0) + sample.value
        elif sample.name == FULLEST:
            found["kv_usage"] = max(found.get("kv_usage", 0.0), sample.value)
    return found
