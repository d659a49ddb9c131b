"""What the protocols promise, asked of the whole server over a real socket."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor

import pytest
from gated import Gated, lab_on, until
from playback import playback_lab
from wire_requests import CHAT, HELLO, MESSAGES, answer, count, frames_of, post, prompt_of

import llmlab
from llmlab.engine.mock_runner import MockModel


@pytest.fixture(scope="module")
def lab():
    with llmlab.open("mock") as lab:
        yield lab


@pytest.fixture(scope="module")
def server(lab):
    with lab.serve() as server:
        yield server


# -- context management -------------------------------------------------------------------------------------


def tool_loop(uses: int) -> dict:
    """A conversation that used a tool, whose results are 300 characters each."""
    messages = [*HELLO]
    for i in range(uses):
        use = {"type": "tool_use", "id": f"toolu_{i}", "name": "look", "input": {"at": "y" * 50}}
        result = {"type": "tool_result", "tool_use_id": f"toolu_{i}", "content": "x" * 300}
        messages += [{"role": "assistant", "content": [use]}, {"role": "user", "content": [result]}]
    return {"messages": messages, "tools": [{"name": "look", "input_schema": {"type": "object"}}]}


@pytest.mark.parametrize(("inputs", "least"), [(False, 2 * 240), (True, 2 * 300)])
@pytest.mark.parametrize("stream", [False, True])
def test_cleared_tool_results_really_leave_the_prompt_and_are_counted(server, stream, inputs, least):
    trigger = {"type": "tool_uses", "value": 2}
    edit = {
        "type": "clear_tool_uses_20250919",
        "trigger": trigger,
        "keep": {"type": "tool_uses", "value": 1},
        "clear_tool_inputs": inputs,
    }
    edits = {"context_management": {"edits": [edit]}}
    plain, counted = count(server, **tool_loop(3)), count(server, **tool_loop(3), **edits)
    assert counted["context_management"] == {"original_input_tokens": plain["input_tokens"]}
    assert counted["input_tokens"] <= plain["input_tokens"] - least
    if stream:
        start, *_, delta, _ = frames_of(post(server, MESSAGES, stream=True, **tool_loop(3), **edits).text)
        usage, management = start["message"]["usage"], delta["context_management"]
    else:
        found = answer(server, MESSAGES, **tool_loop(3), **edits)
        usage, management = found["usage"], found["context_management"]
    assert prompt_of(usage) == counted["input_tokens"]
    assert management["applied_edits"] == [
        {
            "type": "clear_tool_uses_20250919",
            "cleared_input_tokens": plain["input_tokens"] - counted["input_tokens"],
            "cleared_tool_uses": 2,
        }
    ]


def test_cleared_thinking_really_leaves_a_running_tool_loop():
    thinking = {"thinking": {"type": "enabled", "budget_tokens": 60}, "max_tokens": 200}
    call = '<tool_call>\n{"name": "look", "arguments": {}}\n</tool_call>'
    tools = [{"name": "look", "input_schema": {"type": "object"}}]
    with playback_lab(call, thought="a thought of some length") as lab, lab.serve() as server:
        messages = [*HELLO]
        for _ in range(2):
            content = answer(server, MESSAGES, messages=messages, tools=tools, **thinking)["content"]
            assert [block["type"] for block in content] == ["thinking", "tool_use"]
            result = {"type": "tool_result", "tool_use_id": content[1]["id"], "content": "found"}
            messages = [*messages, {"role": "assistant", "content": content}, {"role": "user", "content": [result]}]
        asked = {"messages": messages, "tools": tools, **thinking}
        edits = {"context_management": {"edits": [{"type": "clear_thinking_20251015"}]}}
        plain, edited = answer(server, MESSAGES, **asked), answer(server, MESSAGES, **asked, **edits)
    (applied,) = edited["context_management"]["applied_edits"]
    assert (applied["type"], applied["cleared_thinking_turns"]) == ("clear_thinking_20251015", 1)
    assert applied["cleared_input_tokens"] == prompt_of(plain["usage"]) - prompt_of(edited["usage"])
    assert applied["cleared_input_tokens"] > len("a thought of some length")


# -- sampling -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("stream", [False, True])
def test_samples_penalties_bias_seed_and_logprobs_are_those_of_the_lab_itself(lab, server, stream):
    same = {
        "n": 3,
        "seed": 11,
        "temperature": 1.3,
        "top_p": 0.9,
        "presence_penalty": 0.7,
        "frequency_penalty": 0.4,
        "max_tokens": 12,
    }
    sent = same | {"logit_bias": {"65": 3.5, "66": -100}, "logprobs": True, "top_logprobs": 2}
    ids = [*b"user: hello\nassistant:"]
    run = lab.submit(ids, **same, logit_bias={65: 3.5, 66: -100}, logprobs=2).wait()
    choices = chat_choices(server, stream, return_token_ids=True, **sent)
    assert len({choice["text"] for choice in choices}) == 3
    for choice, output in zip(choices, run.outputs, strict=True):
        assert choice["token_ids"] == output.token_ids
        assert choice["text"] == output.text
        shown = [i for i, token in enumerate(output.token_ids) if token != 257]
        assert [item["logprob"] for item in choice["logprobs"]] == pytest.approx([output.logprobs[i] for i in shown])
        assert [len(item["top_logprobs"]) for item in choice["logprobs"]] == [2] * len(shown)


def chat_choices(server, stream: bool, **fields) -> list[dict]:
    """Text, token ids and log-probabilities of every choice, streamed or not."""
    found = [{"text": "", "token_ids": [], "logprobs": []} for _ in range(fields["n"])]
    if stream:
        parts = [c for chunk in frames_of(post(server, CHAT, stream=True, **fields).text) for c in chunk["choices"]]
    else:
        parts = answer(server, CHAT, **fields)["choices"]
    for part in parts:
        choice = found[part["index"]]
        choice["text"] += part.get("message", part.get("delta")).get("content") or ""
        choice["token_ids"] += part.get("token_ids") or []
        choice["logprobs"] += (part["logprobs"] or {}).get("content") or []
    return found


def test_a_seed_repeats_the_samples_and_another_changes_them(server):
    def texts(seed: int) -> list[str]:
        return [c["text"] for c in chat_choices(server, False, n=2, seed=seed, temperature=1.5, max_tokens=12)]

    assert texts(1) == texts(1) != texts(2)


# -- overflow -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("stream", [False, True])
def test_overflow_is_refused_with_numbers_or_served_to_the_contexts_end(lab, server, stream):
    asked = {"max_tokens": 5000, "messages": [{"role": "user", "content": "x" * 4050}]}
    refused = post(server, MESSAGES, stream=stream, **asked)
    assert refused.status_code == 400
    prompt = 4050 + len("user: \nassistant:")
    assert refused.json()["error"] == {
        "type": "invalid_request_error",
        "message": f"input length and `max_tokens` exceed context limit: {prompt} + 5000 > 4096, "
        "decrease input length or `max_tokens` and try again",
    }
    assert post(server, CHAT, stream=stream, **asked).json()["error"]["code"] == "context_length_exceeded"
    with lab.serve(overflow="stop") as other:
        if stream:
            *_, delta, _ = frames_of(post(other, MESSAGES, stream=True, **asked).text)
            stop, usage = delta["delta"]["stop_reason"], delta["usage"]
            *_, last = frames_of(post(other, CHAT, stream=True, **asked).text)
            finish = last["choices"][0]["finish_reason"]
        else:
            found = answer(other, MESSAGES, **asked)
            stop, usage = found["stop_reason"], found["usage"]
            finish = answer(other, CHAT, **asked)["choices"][0]["finish_reason"]
        assert (stop, finish) == ("model_context_window_exceeded", "length")
        assert usage["output_tokens"] == 4096 - prompt
        too_long = post(other, MESSAGES, messages=[{"role": "user", "content": "x" * 4096}])
        assert (too_long.status_code, too_long.json()["error"]["message"][:18]) == (400, "prompt is too long")


# -- conversations ------------------------------------------------------------------------------------------


def rendered(server, **fields) -> str:
    """The prompt as text; the mock model's tokens are bytes."""
    found = answer(server, CHAT, return_token_ids=True, **fields)
    return bytes(found["prompt_token_ids"]).decode()


def test_a_system_turn_is_rendered_where_it_stands_in_both_protocols(server):
    turns = [
        {"role": "user", "content": "hi"},
        {"role": "system", "content": "Be kind."},
        {"role": "assistant", "content": "ok"},
        {"role": "user", "content": "go on"},
    ]
    text = rendered(server, messages=turns)
    assert text == "user: hi\nsystem: Be kind.\nassistant: ok\nuser: go on\nassistant:"
    assert count(server, messages=turns)["input_tokens"] == len(text)
    assert prompt_of(answer(server, MESSAGES, messages=turns)["usage"]) == len(text)


def test_neighbours_of_one_role_count_as_their_merged_message(server):
    apart = [{"role": "user", "content": "a"}, {"role": "user", "content": "b"}]
    parts = [{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}]
    assert count(server, messages=apart) == count(server, messages=parts)
    one, other = (answer(server, MESSAGES, messages=messages) for messages in (apart, parts))
    assert one["content"] == other["content"]
    assert prompt_of(one["usage"]) == prompt_of(other["usage"])


def test_a_thousand_turns_are_served_and_counted_alike():
    roles = ("user", "assistant")
    turns = [{"role": roles[i % 2], "content": f"{i % 10}"} for i in range(1001)]
    with lab_on(MockModel(), budget=4096) as small, small.serve() as server:
        counted = count(server, messages=turns)["input_tokens"]
        assert counted == 501 * len("user: 1\n") + 500 * len("assistant: 1\n") + len("assistant:")
        found = post(server, MESSAGES, messages=turns)
        assert found.status_code == 400
        assert f"prompt is too long: {counted} tokens" in found.json()["error"]["message"]
    with lab_on(MockModel(1024, 16, 16_000), budget=4096) as large, large.serve() as server:
        usage = answer(server, MESSAGES, messages=turns)["usage"]
        assert prompt_of(usage) == answer(server, CHAT, messages=turns)["usage"]["prompt_tokens"] == counted


# -- the prompt cache, two at once --------------------------------------------------------------------------


def test_an_identical_request_reads_nothing_until_the_first_has_begun():
    gated = Gated()
    marked = [{"type": "text", "text": "x" * 300, "cache_control": {"type": "ephemeral"}}]
    body = {"system": marked, "max_tokens": 3}
    with lab_on(gated, budget=2048) as lab, lab.serve() as server, ThreadPoolExecutor(2) as pool:
        backend = server.gateway.router.backends[0]
        both = []
        for number in (1, 2):
            both.append(pool.submit(answer, server, MESSAGES, **body))
            until(lambda number=number: backend.load == number)
        gated.let(1000)
        usages = [future.result()["usage"] for future in both]
        third = answer(server, MESSAGES, **body)["usage"]
    assert [usage["cache_read_input_tokens"] for usage in usages] == [0, 0]
    assert [usage["cache_creation_input_tokens"] for usage in usages] == [third["cache_read_input_tokens"]] * 2
    assert third["cache_read_input_tokens"] > 300


def test_a_tool_serialised_again_is_a_hit_and_shuffled_keys_are_named(server):
    def ask(schema: dict, previous: str | None) -> dict:
        tools = [{"name": "look", "input_schema": schema, "cache_control": {"type": "ephemeral"}}]
        return answer(
            server, MESSAGES, tools=tools, tool_choice={"type": "none"}, diagnostics={"previous_message_id": previous}
        )

    schema = {"type": "object", "properties": {"where": {"type": "string"}, "when": {"type": "string"}}}
    first = ask(schema, None)
    again = ask(json.loads(json.dumps(schema, indent=2)), first["id"])
    shuffled = ask(dict(reversed(schema.items())), again["id"])
    assert first["usage"]["cache_creation_input_tokens"] > 64
    assert (again["diagnostics"], again["usage"]["cache_read_input_tokens"] > 64) == (None, True)
    assert shuffled["diagnostics"]["cache_miss_reason"]["type"] == "tools_changed"
    assert shuffled["usage"]["cache_read_input_tokens"] == 0
