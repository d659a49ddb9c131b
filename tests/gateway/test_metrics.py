from __future__ import annotations

import httpx2
from prometheus_client.parser import text_string_to_metric_families
from scripted_backend import ScriptedBackend, chat_body, client_of, gateway_of, message_body, reply_events

from llmlab.api.errors import ApiError


class Measured(ScriptedBackend):
    """Knows some of its gauges."""

    def gauges(self) -> dict[str, float]:
        return {"running": 3, "kv_usage": 0.25, "preemptions": 7}


def samples(text: str) -> dict[str, dict]:
    """Values of a scrape by metric name, then by labels."""
    found: dict[str, dict] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            found.setdefault(sample.name, {})[tuple(sorted(sample.labels.items()))] = sample.value
    return found


async def scrape(client: httpx2.AsyncClient) -> dict[str, dict]:
    response = await client.get("/metrics")
    assert response.headers["content-type"].startswith("text/plain")
    return samples(response.text)


ONE = (("engine", "0"), ("model_name", "tiny"))


async def test_tokens_and_requests_add_up():
    gateway = gateway_of(ScriptedBackend(script=reply_events(["a ", "b ", "c"])))
    async with client_of(gateway) as client:
        await client.post("/v1/messages", json=message_body(stream=True, max_tokens=77))
        await client.post("/v1/chat/completions", json=chat_body())
        found = await scrape(client)
    assert found["vllm:prompt_tokens_total"][ONE] == 24
    assert found["vllm:generation_tokens_total"][ONE] == 6
    assert found["vllm:request_success_total"] == {(ONE[0], ("finished_reason", "stop"), ONE[1]): 2}
    assert found["vllm:time_to_first_token_seconds_count"][ONE] == 2
    assert found["vllm:inter_token_latency_seconds_count"][ONE] == 4
    assert found["vllm:e2e_request_latency_seconds_count"][ONE] == 2
    assert found["vllm:request_generation_tokens_sum"][ONE] == 6
    assert found["vllm:request_params_max_tokens_sum"][ONE] == 77
    assert found["vllm:request_params_n_sum"][ONE] == 2


async def test_only_what_a_backend_tells_becomes_a_gauge():
    async with client_of(gateway_of(ScriptedBackend("plain"), Measured("measured"))) as client:
        found = await scrape(client)
    label = (("engine", "1"), ("model_name", "measured"))
    assert found["vllm:num_requests_running"] == {label: 3}
    assert found["vllm:kv_cache_usage_perc"] == {label: 0.25}
    assert found["vllm:num_preemptions_total"] == {label: 7}
    assert "vllm:num_requests_waiting" not in found
    assert "vllm:prefix_cache_hits_total" not in found


async def test_replies_that_fail_count_as_errors_and_refusals_do_not():
    failing = ScriptedBackend(script=[*reply_events(["a"])[:3], ApiError("api_error", "broken")])
    async with client_of(gateway_of(failing)) as client:
        await client.post("/v1/messages", json=message_body(stream=True))
        failing.open_script = [ApiError("invalid_request_error", "too long")]
        await client.post("/v1/messages", json=message_body())
        found = await scrape(client)
    assert found["vllm:request_success_total"] == {(ONE[0], ("finished_reason", "error"), ONE[1]): 1}
    assert found["vllm:generation_tokens_total"][ONE] == 1


async def test_gateways_do_not_share_counters():
    first, second = gateway_of(), gateway_of()
    async with client_of(first) as client:
        await client.post("/v1/messages", json=message_body())
    async with client_of(second) as client:
        assert "vllm:prompt_tokens_total" not in await scrape(client)
