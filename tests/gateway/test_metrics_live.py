"""A scrape after known traffic, compared with what the replies themselves said."""

from __future__ import annotations

from collections import Counter

import httpx2
import pytest
from fleet import MESSAGES, ask, chat, claude, fleet, front_of, two_labs, wait_for
from prometheus_client.parser import text_string_to_metric_families

import llmlab

VLLM = {
    "num_requests_running": "gauge",
    "num_requests_waiting": "gauge",
    "kv_cache_usage_perc": "gauge",
    "num_preemptions": "counter",
    "prefix_cache_queries": "counter",
    "prefix_cache_hits": "counter",
    "prompt_tokens": "counter",
    "generation_tokens": "counter",
    "request_success": "counter",
    "time_to_first_token_seconds": "histogram",
    "inter_token_latency_seconds": "histogram",
    "e2e_request_latency_seconds": "histogram",
    "request_queue_time_seconds": "histogram",
    "request_prefill_time_seconds": "histogram",
    "request_decode_time_seconds": "histogram",
    "request_inference_time_seconds": "histogram",
    "request_prompt_tokens": "histogram",
    "request_generation_tokens": "histogram",
    "request_params_n": "histogram",
    "request_params_max_tokens": "histogram",
}
"""Names and types as vLLM exports them."""
GAUGES = {
    "num_requests_running",
    "num_requests_waiting",
    "kv_cache_usage_perc",
    "num_preemptions",
    "prefix_cache_queries",
    "prefix_cache_hits",
}
"""What an upstream tells at its own ``/metrics``, and we pass on."""
ONLY_AN_ENGINE_TELLS = {
    "request_queue_time_seconds",
    "request_prefill_time_seconds",
    "request_decode_time_seconds",
    "request_inference_time_seconds",
}


@pytest.fixture
def labs():
    with two_labs() as found:
        yield found


def families(url: str) -> dict:
    """By name; the times at which series were created, which the Prometheus library adds, are left out."""
    text = httpx2.get(f"{url}/metrics").text
    found = {family.name: family for family in text_string_to_metric_families(text)}
    return {name: family for name, family in found.items() if not name.endswith("_created")}


def values(url: str, name: str) -> dict[tuple[str, ...], float]:
    """Values of one sample name by backend index, and by finished reason where there is one."""
    return {
        tuple(sample.labels[label] for label in ("engine", "finished_reason") if label in sample.labels): sample.value
        for family in families(url).values()
        for sample in family.samples
        if sample.name == f"vllm:{name}"
    }


def test_token_counters_are_the_sums_of_the_usages_of_each_backend(labs):
    prompt, output, requests = Counter(), Counter(), Counter()
    with labs[1].serve(drain_s=0) as other, labs[0].serve(upstreams=[other.url], routing="round_robin") as server:
        for number in range(6):
            response = ask(claude(server.url), max_tokens=5 + number)
            index = "0" if response.headers["llmlab-backend"] == "mock" else "1"
            usage = response.parse().usage
            written = usage.cache_creation_input_tokens
            prompt[index] += usage.input_tokens + usage.cache_read_input_tokens + written
            output[index] += usage.output_tokens
            requests[index] += 1
        for _ in range(2):
            raw = chat(server.url).chat.completions.with_raw_response.create(
                model="mock", max_tokens=9, messages=MESSAGES, n=2, temperature=1.0
            )
            index = "0" if raw.headers["llmlab-backend"] == "mock" else "1"
            usage = raw.parse().usage
            prompt[index] += usage.prompt_tokens
            output[index] += usage.completion_tokens
            requests[index] += 1
        for name, sums in (("prompt_tokens", prompt), ("generation_tokens", output)):
            assert values(server.url, f"{name}_total") == {(index,): total for index, total in sums.items()}
            assert values(server.url, f"request_{name}_sum") == {(index,): total for index, total in sums.items()}
        for name in ("time_to_first_token_seconds", "e2e_request_latency_seconds", "request_prompt_tokens"):
            assert values(server.url, f"{name}_count") == {(index,): total for index, total in requests.items()}
        assert values(server.url, "prefix_cache_queries_total")["0",] >= prompt["0"]
        assert 0 < values(server.url, "prefix_cache_hits_total")["0",] < prompt["0"]


def test_every_name_type_and_label_is_one_of_vllms(labs):
    with labs[0].serve() as server:
        ask(claude(server.url))
        found = families(server.url)
    assert {name.removeprefix("vllm:"): family.type for name, family in found.items()} == VLLM
    for name, family in found.items():
        extra = {"finished_reason"} if name == "vllm:request_success" else set()
        for sample in family.samples:
            assert set(sample.labels) - {"le"} == {"model_name", "engine"} | extra
            assert (sample.labels["model_name"], sample.labels["engine"]) == ("mock", "0")


def test_what_an_upstream_cannot_tell_has_no_value(labs):
    with fleet(labs[:1]) as found:
        ask(claude(found.front.url))
        scraped, own = families(found.front.url), families(found.servers[0].url)
    told = {name.removeprefix("vllm:") for name, family in scraped.items() if family.samples}
    assert told == set(VLLM) - ONLY_AN_ENGINE_TELLS
    for name in GAUGES:
        ours, theirs = ({s.value for s in each[f"vllm:{name}"].samples} for each in (scraped, own))
        assert ours == theirs


def test_an_upstream_that_tells_nothing_about_itself_has_no_gauges():
    with front_of("http://127.0.0.1:9") as front:
        told = {name.removeprefix("vllm:") for name, family in families(front.url).items() if family.samples}
    assert told == set()


def test_requests_end_for_vllms_reasons(labs):
    with labs[0].serve() as server:
        client = claude(server.url)
        ask(client, max_tokens=3)
        ask(client, stop_sequences=["DG"], max_tokens=40)
        with client.messages.stream(model="mock", max_tokens=4000, messages=MESSAGES) as stream:
            next(iter(stream.text_stream))
        wait_for(lambda: ("0", "abort") in values(server.url, "request_success_total"))
        assert values(server.url, "request_success_total") == {
            ("0", "length"): 1,
            ("0", "stop"): 1,
            ("0", "abort"): 1,
        }
        assert values(server.url, "num_requests_running") == {("0",): 0}
        assert values(server.url, "kv_cache_usage_perc") == {("0",): 0}


def test_a_request_that_moved_is_counted_where_it_was_served(labs):
    with fleet(labs) as found:
        client = claude(found.front.url)
        client.models.list()
        found.servers[0].close()
        ask(client)
        assert values(found.front.url, "request_success_total") == {("1", "length"): 1}


def test_with_speculation_drafts_are_counted_as_the_trace_has_them():
    with llmlab.open("mock", speculative=llmlab.Speculation("ngram", adaptive=False)) as lab, lab.serve() as server:
        ask(claude(server.url))
        lab.ask([1, 2, 3] * 4, max_tokens=30)
        drafts = lab.trace.drafts
        found = {
            name: values(server.url, f"spec_decode_num_{name}_total")["0",]
            for name in ("drafts", "draft_tokens", "accepted_tokens")
        }
    whole = drafts.drop_duplicates(["request_id", "number"])
    assert found["drafts"] == len(whole) > 0
    assert found["draft_tokens"] == whole.num_drafted.sum()
    assert found["accepted_tokens"] == drafts.num_accepted.sum()
