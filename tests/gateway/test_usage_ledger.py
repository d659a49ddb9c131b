"""One ledger of tokens and times, whichever protocol looks at it and however many engine runs a reply took."""

from __future__ import annotations

import json

import httpx2
import pytest
from anthropic import Anthropic
from playback import playback_lab
from prometheus_client.parser import text_string_to_metric_families
from replies import ask, reply_to

import llmlab
from llmlab.gateway.engine_backend import EngineBackend
from llmlab.gateway.settings import Settings

COUNTS = ("input_tokens", "output_tokens", "cache_read_input_tokens", "cache_creation_input_tokens")
THINKING = {"type": "enabled", "budget_tokens": 50}
ANSWER, THOUGHT = "Rome it is.", "Let me think"


@pytest.fixture
def lab():
    with llmlab.open("mock") as lab:
        yield lab


@pytest.fixture
def thinker():
    with playback_lab(ANSWER, thought=THOUGHT) as lab:
        yield lab


def message(**changes) -> dict:
    return {"model": "m", "max_tokens": 100, "messages": [{"role": "user", "content": "hello"}]} | changes


def whole_prompt(usage: dict) -> int:
    return usage["input_tokens"] + usage["cache_read_input_tokens"] + usage["cache_creation_input_tokens"]


def post(server, path: str, body: dict, **options) -> dict:
    response = httpx2.post(f"{server.url}{path}", json=body, timeout=30, **options)
    assert response.status_code == 200, response.text
    return response.json()


def last_usage(server, body: dict, **options) -> dict:
    """Usage of a streamed message: the last delta's over the start's."""
    text = httpx2.post(f"{server.url}/v1/messages", json=body | {"stream": True}, timeout=30, **options).text
    frames = [json.loads(line[6:]) for line in text.splitlines() if line.startswith("data: ")]
    start = next(frame for frame in frames if frame["type"] == "message_start")
    delta = next(frame for frame in frames if frame["type"] == "message_delta")
    return start["message"]["usage"] | delta["usage"]


# -- iterations ---------------------------------------------------------------------------------------------

BETA = {"anthropic-beta": "interleaved-thinking-2025-05-14"}


def test_thinking_and_answering_are_two_iterations_that_sum_to_the_totals(thinker):
    with thinker.serve() as server:
        usage = post(server, "/v1/messages", message(thinking=THINKING), headers=BETA)["usage"]
    assert [item["type"] for item in usage["iterations"]] == ["message", "message"]
    assert [item["output_tokens"] for item in usage["iterations"]] == [
        usage["output_tokens_details"]["thinking_tokens"],
        len(ANSWER) + 1,
    ]
    for name in COUNTS:
        assert sum(item[name] for item in usage["iterations"]) == usage[name]


@pytest.mark.parametrize("changes", [{}, {"max_tokens": 0}])
def test_a_reply_of_one_run_is_one_iteration(lab, changes):
    with lab.serve() as server:
        usage = post(server, "/v1/messages", message(**changes), headers=BETA)["usage"]
    (only,) = usage["iterations"]
    assert {name: only[name] for name in COUNTS} == {name: usage[name] for name in COUNTS}


@pytest.mark.parametrize(
    ("options", "present"),
    [
        ({}, False),
        ({"headers": {"anthropic-beta": ""}}, False),
        ({"headers": BETA}, True),
        ({"params": {"beta": "true"}}, True),
        ({"params": {"beta": "false"}}, False),
    ],
)
def test_iterations_are_for_the_beta_surface_only(lab, options, present):
    with lab.serve() as server:
        assert ("iterations" in post(server, "/v1/messages", message(), **options)["usage"]) == present
        assert ("iterations" in last_usage(server, message(), **options)) == present


def test_the_strict_sdk_reads_iterations_on_its_beta_surface_and_misses_none_on_the_other(thinker):
    asked = {"model": "m", "max_tokens": 100, "messages": [{"role": "user", "content": "hello"}], "thinking": THINKING}
    with (
        thinker.serve() as server,
        Anthropic(base_url=server.url, api_key="x", max_retries=0, _strict_response_validation=True) as client,
    ):
        whole = client.beta.messages.create(**asked, betas=["b-2026-01-01"]).usage
        with client.beta.messages.stream(**asked, betas=["b-2026-01-01"]) as stream:
            streamed = stream.get_final_message().usage
        plain = client.messages.create(**asked).usage
    assert [item.type for item in whole.iterations] == ["message"] * 2
    assert [item.output_tokens for item in streamed.iterations] == [item.output_tokens for item in whole.iterations]
    assert (getattr(plain, "iterations", None), plain.output_tokens) == (None, whole.output_tokens)


# -- two protocols, one prompt ------------------------------------------------------------------------------

SYSTEM = "Rules. " * 60
TOOLS = [{"name": "look", "description": "Looks.", "input_schema": {"type": "object"}}]


@pytest.mark.parametrize("accounting", ["breakpoints", "engine"])
@pytest.mark.parametrize("warm", [False, True])
def test_both_views_of_one_conversation_add_up_with_and_without_cache(lab, warm, accounting):
    marked = [{"type": "text", "text": SYSTEM, "cache_control": {"type": "ephemeral"}}]
    body = message(max_tokens=7, system=marked, tools=TOOLS, tool_choice={"type": "none"})
    chat = {
        "model": "m",
        "max_tokens": 7,
        "messages": [{"role": "system", "content": SYSTEM}, *body["messages"]],
        "tools": [
            {
                "type": "function",
                "function": {"name": "look", "description": "Looks.", "parameters": TOOLS[0]["input_schema"]},
            }
        ],
        "tool_choice": "none",
    }
    with lab.serve(cache_accounting=accounting) as server:
        if warm:
            post(server, "/v1/messages", body)
        usage = post(server, "/v1/messages", body)["usage"]
        streamed = last_usage(server, body)
        counts = post(server, "/v1/chat/completions", chat)["usage"]
    assert whole_prompt(usage) == whole_prompt(streamed) == counts["prompt_tokens"]
    assert usage["output_tokens"] == streamed["output_tokens"] == counts["completion_tokens"] == 7
    assert counts["total_tokens"] == counts["prompt_tokens"] + 7
    assert (usage["cache_read_input_tokens"] > 400) == warm
    assert streamed["cache_read_input_tokens"] > 400
    assert counts["prompt_tokens_details"]["cached_tokens"] > 400


def test_thinking_is_counted_alike_in_both_protocols(thinker):
    chat = {"model": "m", "max_tokens": 100, "messages": message()["messages"], "reasoning_effort": "low"}
    with thinker.serve() as server:
        usage = post(server, "/v1/messages", message(thinking=THINKING))["usage"]
        counts = post(server, "/v1/chat/completions", chat)["usage"]
    assert whole_prompt(usage) == counts["prompt_tokens"]
    assert usage["output_tokens"] == counts["completion_tokens"]
    thought = usage["output_tokens_details"]["thinking_tokens"]
    assert thought == counts["completion_tokens_details"]["reasoning_tokens"] > 0


def test_a_marked_prefix_below_the_minimum_is_no_error_and_counts_nothing(lab):
    marked = [{"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}}]
    with lab.serve() as server:
        for _ in range(2):
            usage = post(server, "/v1/messages", message(max_tokens=3, system=marked))["usage"]
            assert (usage["cache_read_input_tokens"], usage["cache_creation_input_tokens"]) == (0, 0)
            assert usage["cache_creation"] == {"ephemeral_5m_input_tokens": 0, "ephemeral_1h_input_tokens": 0}


# -- times --------------------------------------------------------------------------------------------------


async def test_the_end_tells_where_the_time_went(thinker):
    backend = EngineBackend(thinker, Settings())
    ended = (await reply_to(backend, ask("hi")))[-1]
    assert min(ended.extra[name] for name in ("queue_s", "prefill_s", "decode_s")) >= 0
    run = thinker.submit("hi", max_tokens=5).wait()
    times = run.times
    assert times.submitted <= times.scheduled <= times.first_token <= times.last_token <= times.ended


async def test_a_prompt_that_was_only_computed_has_no_decoding_time(lab):
    backend = EngineBackend(lab, Settings())
    ended = (await reply_to(backend, ask("hi", max_tokens=0, prewarm=True)))[-1]
    assert ended.extra.keys() & {"queue_s", "prefill_s", "decode_s"} == {"queue_s"}


def test_the_dashboard_gets_the_engines_times_once_per_request(lab):
    with lab.serve() as server:
        post(server, "/v1/messages", message(max_tokens=5))
        post(server, "/v1/chat/completions", {"model": "m", "max_tokens": 5, "n": 3, "messages": message()["messages"]})
        text = httpx2.get(f"{server.url}/metrics").text
    found = {sample.name: sample.value for family in text_string_to_metric_families(text) for sample in family.samples}
    for name in ("queue", "prefill", "decode", "inference"):
        assert found[f"vllm:request_{name}_time_seconds_count"] == 2, name
    parts = found["vllm:request_prefill_time_seconds_sum"] + found["vllm:request_decode_time_seconds_sum"]
    assert found["vllm:request_inference_time_seconds_sum"] == pytest.approx(parts)
    assert parts <= found["vllm:e2e_request_latency_seconds_sum"]


def test_a_request_that_had_to_wait_says_so():
    with llmlab.open("mock", max_num_seqs=1) as lab:
        first = lab.submit("one", max_tokens=200)
        second = lab.submit("two", max_tokens=2)
        for run in (first, second):
            run.wait()
        assert second.times.scheduled > first.times.last_token
        assert second.times.submitted < first.times.last_token
