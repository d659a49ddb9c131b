"""The whole way on the engine itself, with the model that has no weights."""

from __future__ import annotations

import time

import httpx2
import pytest

import llmlab


@pytest.fixture
def lab():
    with llmlab.open("mock") as lab:
        yield lab


def body(**changes) -> dict:
    return {"model": "mock", "max_tokens": 12, "messages": [{"role": "user", "content": "hello"}]} | changes


def test_a_lab_serves_what_it_would_answer_itself_and_records_the_way_there(lab):
    with lab.serve() as server:
        found = httpx2.post(f"{server.url}/v1/messages", json=body()).json()
    prompt = [{"role": "user", "content": "hello"}]
    assert found["content"][0]["text"] == lab.ask(prompt, max_tokens=12).outputs[0].text
    assert found["usage"]["output_tokens"] == 12
    assert lab.trace.check() == []


def test_both_protocols_count_one_prompt_alike(lab):
    with lab.serve() as server:
        usage = httpx2.post(f"{server.url}/v1/messages", json=body()).json()["usage"]
        chat = httpx2.post(f"{server.url}/v1/chat/completions", json=body()).json()["usage"]
        counted = httpx2.post(
            f"{server.url}/v1/messages/count_tokens", json={name: body()[name] for name in ("model", "messages")}
        ).json()
    whole = usage["input_tokens"] + usage["cache_read_input_tokens"] + usage["cache_creation_input_tokens"]
    assert whole == chat["prompt_tokens"] == counted["input_tokens"]


def test_a_client_that_leaves_frees_the_engine_at_once(lab):
    with lab.serve() as server:
        with httpx2.stream("POST", f"{server.url}/v1/messages", json=body(stream=True, max_tokens=3000)) as response:
            next(response.iter_raw())
        deadline = time.monotonic() + 5
        while lab.engine.pool.num_used and time.monotonic() < deadline:
            time.sleep(0.005)
        assert lab.engine.pool.num_used == 0
    assert list(lab.trace.requests["stop_reason"]) == ["aborted"]


def test_closing_the_lab_stops_its_servers():
    lab = llmlab.open("mock")
    server = lab.serve()
    lab.close()
    assert not server.is_running


def test_settings_reach_the_gateway(lab):
    with lab.serve(fallback_model=False, max_open=0) as server:
        assert httpx2.post(f"{server.url}/v1/messages", json=body(model="other")).status_code == 404
        assert httpx2.post(f"{server.url}/v1/messages", json=body()).status_code == 529
