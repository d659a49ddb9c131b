"""Our gateway, client and counters before a real server of another make: vLLM, or any that speaks Chat Completions.

``LLMLAB_BRIDGE_URL`` is its address; it should serve SmolLM2-135M-Instruct in float32, and nobody else should use it.
"""

from __future__ import annotations

import json
import os
import time
from concurrent.futures import ThreadPoolExecutor

import anthropic
import httpx2
import openai
import pytest

import llmlab
from llmlab.client.metrics import scrape
from llmlab.gateway.app import Gateway
from llmlab.gateway.server import Server
from llmlab.gateway.settings import Settings
from llmlab.gateway.upstream import upstream_backends
from llmlab.trace.readings import HITS, KV_USAGE, OUTPUT_TOKENS, PROMPT_TOKENS, QUERIES, RUNNING
from llmlab.trace.recorder import Recorder
from llmlab.views.server_metrics import server_metrics

URL = os.environ.get("LLMLAB_BRIDGE_URL", "")
pytestmark = pytest.mark.skipif(not URL, reason="LLMLAB_BRIDGE_URL names no server: .ci/bridge starts one")

PROMPTS = (
    "Name the capital of France.",
    "Repeat this text: 你好，世界 🦊",
    "Write a Python function that adds two numbers.",
    "List three colours.",
    "Translate to French: The cat sleeps.",
)
QUESTION = [{"role": "user", "content": PROMPTS[0]}]
CITY = {
    "type": "object",
    "properties": {"city": {"type": "string", "enum": ["Paris", "Oslo"]}},
    "required": ["city"],
    "additionalProperties": False,
}
WEATHER = {"name": "weather", "description": "The weather of a city.", "input_schema": CITY}


@pytest.fixture(scope="module")
def front():
    """A gateway before it."""
    recorder = Recorder()
    with Server(Gateway(upstream_backends([URL], recorder), Settings.from_kwargs(port=0), recorder)) as server:
        yield server


@pytest.fixture(scope="module")
def client(front):
    with llmlab.connect(front.url) as found:
        yield found


@pytest.fixture(scope="module")
def model(client) -> str:
    return client.models()[0]["id"]


def body(model: str, prompt: str = PROMPTS[0], **changes) -> dict:
    talk = [{"role": "user", "content": prompt}]
    return {"model": model, "max_tokens": 24, "temperature": 0, "messages": talk} | changes


def prompt_of(usage: dict) -> int:
    return usage["input_tokens"] + usage["cache_creation_input_tokens"] + usage["cache_read_input_tokens"]


def chat(front, body: dict) -> httpx2.Response:
    return httpx2.post(f"{front.url}/v1/chat/completions", json=body, timeout=120)


def test_both_protocols_streamed_and_whole_say_and_count_the_same(front, client, model):
    message = client.send(body(model))
    whole = chat(front, body(model)).json()
    frames = [line[6:] for line in chat(front, body(model, stream=True)).text.splitlines() if line.startswith("data: ")]
    deltas = [choice["delta"] for frame in frames[:-1] for choice in json.loads(frame)["choices"]]
    assert message.text == whole["choices"][0]["message"]["content"] == "".join(d.get("content") or "" for d in deltas)
    assert message.stop_reason == "end_turn"
    assert whole["choices"][0]["finish_reason"] == "stop"
    assert prompt_of(message.usage) == whole["usage"]["prompt_tokens"] == client.count_tokens(body(model))
    assert message.usage["output_tokens"] == whole["usage"]["completion_tokens"]


def test_both_public_packages_accept_it_in_strict_mode(front, model):
    options = {"api_key": "none", "max_retries": 0, "_strict_response_validation": True}
    claude = anthropic.Anthropic(base_url=front.url, **options)
    with claude.messages.stream(model=model, max_tokens=8, messages=QUESTION) as stream:
        assert stream.get_final_message().usage.output_tokens > 0
    oai = openai.OpenAI(base_url=f"{front.url}/v1", **options)
    stream_options = {"include_usage": True}
    chunks = list(
        oai.chat.completions.create(
            model=model, max_tokens=8, messages=QUESTION, stream=True, stream_options=stream_options
        )
    )
    assert chunks[-1].usage.completion_tokens > 0


def test_a_limit_and_a_stop_string_end_a_reply_by_their_names(client, model):
    assert client.send(body(model, max_tokens=3)).stop_reason == "max_tokens"
    stopped = client.send(body(model, stop_sequences=["Paris"]))
    assert (stopped.stop_reason, stopped.stop_sequence) == ("stop_sequence", "Paris")
    assert "Paris" not in stopped.text


def test_log_probabilities_come_through(front, model):
    answer = chat(front, body(model, max_tokens=3, logprobs=True, top_logprobs=2)).json()
    found = answer["choices"][0]["logprobs"]["content"]
    assert "".join(item["token"] for item in found) == answer["choices"][0]["message"]["content"]
    assert all(item["logprob"] == item["top_logprobs"][0]["logprob"] <= 0 for item in found)


@pytest.mark.parametrize("choice", [{"type": "tool", "name": "weather"}, {"type": "any"}], ids=["tool", "any"])
def test_a_forced_call_has_arguments_of_its_schema(client, model, choice):
    message = client.send(body(model, max_tokens=120, tools=[WEATHER], tool_choice=choice))
    assert message.stop_reason == "tool_use"
    (use,) = message.tool_uses
    assert use["name"] == "weather"
    assert use["input"]["city"] in ("Paris", "Oslo")


def test_what_it_cannot_do_is_named(front, model):
    thinking = {"thinking": {"type": "enabled", "budget_tokens": 1024}, "max_tokens": 1100, "temperature": 1}
    answer = httpx2.post(f"{front.url}/v1/messages", json=body(model, **thinking), timeout=300)
    assert answer.headers["llmlab-ignored"] == "thinking"


def test_its_refusals_keep_their_status_and_reason(front, client, model):
    window = client.models()[0]["max_input_tokens"]
    answer = chat(front, body(model, max_tokens=window + 1))
    assert answer.status_code == 400
    assert str(window) in answer.json()["error"]["message"]
    assert "upstream" in answer.json()["error"]["message"]


def test_a_second_time_the_prompt_is_read_from_its_cache(client, model):
    request = body(model, f"{time.time()} " + "word " * 100, max_tokens=1)
    first, second = client.send(request), client.send(request)
    assert first.usage["cache_read_input_tokens"] < second.usage["cache_read_input_tokens"]
    assert prompt_of(first.usage) == prompt_of(second.usage)


def test_its_counters_add_up_to_our_ledger_and_fill_the_view(client, model):
    readings = [scrape(URL)]
    sent = [client.send(body(model, prompt, max_tokens=5)) for prompt in PROMPTS[:3]]
    time.sleep(1)
    readings.append(scrape(URL))
    grew = {name: readings[1].values[name] - readings[0].values[name] for name in (PROMPT_TOKENS, OUTPUT_TOKENS)}
    assert grew[PROMPT_TOKENS] == sum(prompt_of(message.usage) for message in sent)
    assert grew[OUTPUT_TOKENS] == sum(message.usage["output_tokens"] for message in sent)
    hits = readings[1].values[HITS] - readings[0].values[HITS]
    assert hits == sum(message.usage["cache_read_input_tokens"] for message in sent)
    assert readings[1].values[QUERIES] - readings[0].values[QUERIES] == grew[PROMPT_TOKENS]
    view = server_metrics(readings)
    assert "not told by the server" not in view.text
    assert f"first tokens: {len(sent)} in" in view.text


def test_the_gateway_passes_on_what_it_says_about_itself(front, client, model):
    client.send(body(model, max_tokens=2))
    time.sleep(1)
    ours, theirs = scrape(front.url).values, scrape(URL).values
    assert {name: ours[name] for name in (QUERIES, HITS, KV_USAGE)} == {
        name: theirs[name] for name in (QUERIES, HITS, KV_USAGE)
    }


def test_leaving_ends_the_work_there(client, model):
    before = scrape(URL).values[OUTPUT_TOKENS]
    with client.stream(body(model, "Tell me a long story.", max_tokens=1500, temperature=1)) as exchange:
        for number, _ in enumerate(exchange):
            if number == 2:
                break
    end = time.monotonic() + 30
    while scrape(URL).values[RUNNING] and time.monotonic() < end:
        time.sleep(0.2)
    found = scrape(URL).values
    assert found[RUNNING] == 0
    assert found[OUTPUT_TOKENS] - before < 1000


def test_several_at_once_keep_apart(client, model):
    prompts = PROMPTS[:4]
    alone = [client.send(body(model, prompt, max_tokens=8)).text for prompt in prompts]
    with ThreadPoolExecutor(4) as pool:
        together = list(pool.map(lambda prompt: client.send(body(model, prompt, max_tokens=8)).text, prompts))
    assert together == alone


def test_what_the_front_desk_refuses_never_reaches_it(model, tmp_path):
    keys = tmp_path / "keys"
    keys.write_text("alices-key alice\n")
    keys.chmod(0o600)
    recorder = Recorder()
    settings = Settings.from_kwargs(port=0, keys_file=keys, requests_per_minute=1, fallback_model=False)
    before = scrape(URL).values[PROMPT_TOKENS]
    with Server(Gateway(upstream_backends([URL], recorder), settings, recorder)) as desk:

        def post(key: str, **changes) -> int:
            request = body(model, max_tokens=1) | changes
            return httpx2.post(f"{desk.url}/v1/messages", json=request, headers={"x-api-key": key}).status_code

        refused = [post("wrong"), post("alices-key", messages=[]), post("alices-key", model="gpt-9")]
        assert refused == [401, 400, 404]
        assert post("alices-key") == 429
    time.sleep(1)
    assert scrape(URL).values[PROMPT_TOKENS] == before


@pytest.mark.model
def test_it_chooses_the_same_tokens_as_our_engine_in_float32(client, model, model_path):
    theirs = [client.send(body(model, prompt)) for prompt in PROMPTS]
    with llmlab.open(model_path, dtype="float32", num_blocks=64) as lab:
        ours = [lab.ask(prompt, max_tokens=24) for prompt in PROMPTS]
    assert [prompt_of(message.usage) for message in theirs] == [run.usage["prompt_tokens"] for run in ours]
    assert [message.text for message in theirs] == [run.text for run in ours]
    assert [message.usage["output_tokens"] for message in theirs] == [run.usage["output_tokens"] for run in ours]
