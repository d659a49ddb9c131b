"""The unmodified ``openai`` package, with its strict response validation, against a running server."""

import json
import time

import openai
import pytest
from openai import AsyncOpenAI, OpenAI
from pydantic import BaseModel

from tests.conformance.conftest import TOOL_SCHEMA

HELLO = [{"role": "user", "content": "hello"}]
WEATHER = {"type": "function", "function": {"name": "weather", "description": "Weather.", "parameters": TOOL_SCHEMA}}


@pytest.fixture
def client(server):
    """A client that validates every response, and does not hide failures behind retries."""
    with OpenAI(base_url=server.url + "/v1", api_key="x", max_retries=0, _strict_response_validation=True) as client:
        yield client


def ask(client, **params):
    defaults = {"model": "mock", "max_completion_tokens": 12, "messages": HELLO}
    return client.chat.completions.create(**(defaults | params))


def is_idle(lab, within_s=2.0):
    end = time.monotonic() + within_s
    while lab.engine.pool.num_used and time.monotonic() < end:
        time.sleep(0.01)
    return lab.engine.pool.num_used == 0


def test_text_in_one_piece(client, idle_lab):
    completion = ask(client)
    choice = completion.choices[0]
    assert (completion.object, choice.finish_reason, choice.message.role) == ("chat.completion", "length", "assistant")
    assert len(choice.message.content) == completion.usage.completion_tokens == 12
    assert completion.usage.total_tokens == completion.usage.prompt_tokens + 12
    assert completion._request_id.startswith("req_")


def test_streamed_text_equals_text_in_one_piece(client, idle_lab):
    whole = ask(client).choices[0].message.content
    chunks = list(ask(client, stream=True, stream_options={"include_usage": True}))
    assert "".join(c.choices[0].delta.content or "" for c in chunks if c.choices) == whole
    assert [c.choices[0].delta.role for c in chunks if c.choices].count("assistant") == 1
    assert [c.choices[0].finish_reason for c in chunks if c.choices][-1] == "length"
    assert [c.usage is None for c in chunks] == [True] * (len(chunks) - 1) + [False]
    assert chunks[-1].choices == []


def test_usage_is_left_out_unless_asked_for(client, idle_lab):
    assert all(chunk.usage is None for chunk in ask(client, stream=True))


def test_the_streaming_helper(client, idle_lab):
    whole = ask(client).choices[0].message.content
    stop = whole[6:8]
    with client.chat.completions.stream(model="mock", messages=HELLO, stop=stop) as stream:
        for _ in stream:
            pass
        final = stream.get_final_completion()
    assert final.choices[0].finish_reason == "stop"
    assert final.choices[0].message.content == whole[: whole.index(stop)]


def test_several_samples(client, idle_lab):
    params = {"n": 3, "temperature": 1.5, "seed": 3}
    completion = ask(client, **params)
    texts = [choice.message.content for choice in completion.choices]
    assert [choice.index for choice in completion.choices] == [0, 1, 2]
    assert len(set(texts)) == 3
    streamed = ["", "", ""]
    chunks = list(ask(client, stream=True, **params))
    assert chunks[0].choices[0].index == 0
    for chunk in chunks:
        streamed[chunk.choices[0].index] += chunk.choices[0].delta.content or ""
    assert streamed == texts


def test_log_probabilities(client, idle_lab):
    content = ask(client, logprobs=True, top_logprobs=3).choices[0].logprobs.content
    assert len(content) == 12
    assert all(len(item.top_logprobs) == 3 for item in content)
    assert all(item.logprob == pytest.approx(item.top_logprobs[0].logprob) for item in content)
    assert bytes(content[0].bytes).decode() == content[0].token


def test_a_tool_is_called_and_answered(client, idle_lab):
    first = ask(client, max_completion_tokens=300, tools=[WEATHER], tool_choice="required", parallel_tool_calls=False)
    choice = first.choices[0]
    call = choice.message.tool_calls[0]
    assert (choice.finish_reason, call.function.name) == ("tool_calls", "weather")
    assert set(json.loads(call.function.arguments)) == {"city", "unit"}
    answer = {"role": "tool", "tool_call_id": call.id, "content": "21 degrees"}
    second = ask(client, tools=[WEATHER], messages=[*HELLO, choice.message.to_dict(), answer])
    assert second.usage.completion_tokens == 12


def test_streamed_arguments_name_the_call_once(client, idle_lab):
    params = {"tools": [WEATHER], "tool_choice": "required", "parallel_tool_calls": False}
    with client.chat.completions.stream(model="mock", max_completion_tokens=300, messages=HELLO, **params) as stream:
        chunks = [event.chunk for event in stream if event.type == "chunk"]
        final = stream.get_final_completion().choices[0].message.tool_calls[0]
    fragments = [f for c in chunks for f in (c.choices[0].delta.tool_calls or []) if c.choices]
    assert [f.function.name for f in fragments if f.function.name] == ["weather"]
    assert "".join(f.function.arguments or "" for f in fragments) == final.function.arguments
    assert set(json.loads(final.function.arguments)) == {"city", "unit"}


def test_structured_output_is_parsed_by_the_package(client, idle_lab):
    class Place(BaseModel):
        ok: bool
        size: int

    completion = client.chat.completions.parse(
        model="mock", max_completion_tokens=200, messages=HELLO, response_format=Place
    )
    assert completion.choices[0].finish_reason == "stop"
    assert isinstance(completion.choices[0].message.parsed, Place)


def test_json_mode(client, idle_lab):
    schema = {"type": "json_schema", "json_schema": {"name": "place", "schema": TOOL_SCHEMA, "strict": True}}
    content = ask(client, max_completion_tokens=200, response_format=schema).choices[0].message.content
    assert set(json.loads(content)) == {"city", "unit"}


def test_both_protocols_views_of_one_prompt_add_up(client, server, idle_lab):
    from anthropic import Anthropic

    with Anthropic(base_url=server.url, api_key="x") as other:
        theirs = other.messages.create(model="mock", max_tokens=1, messages=HELLO).usage
    ours = ask(client, max_completion_tokens=1).usage
    total = theirs.input_tokens + theirs.cache_read_input_tokens + theirs.cache_creation_input_tokens
    assert total == ours.prompt_tokens


@pytest.mark.parametrize(
    ("params", "error", "param"),
    [
        ({"messages": []}, openai.BadRequestError, "messages"),
        ({"temperature": 9}, openai.BadRequestError, "temperature"),
        ({"extra_body": {"nonsense": 1}}, openai.BadRequestError, "nonsense"),
        ({"top_logprobs": 3}, openai.BadRequestError, "top_logprobs"),
        ({"extra_headers": {"llmlab-fault": "status=429x1000"}}, openai.RateLimitError, None),
        ({"extra_headers": {"llmlab-fault": "status=529x1000"}}, openai.InternalServerError, None),
    ],
)
def test_failures_arrive_as_the_packages_own_errors(client, idle_lab, params, error, param):
    with pytest.raises(error) as caught:
        ask(client, **params)
    assert set(caught.value.body) == {"message", "type", "param", "code"}
    if param:
        assert param in f"{caught.value.body['param']} {caught.value.body['message']}"


def test_leaving_a_stream_early_frees_the_engine(client, idle_lab):
    stream = ask(client, stream=True, max_completion_tokens=3000)
    next(iter(stream))
    stream.close()
    assert is_idle(idle_lab)


async def test_async_stream(server, idle_lab):
    async with AsyncOpenAI(
        base_url=server.url + "/v1", api_key="x", max_retries=0, _strict_response_validation=True
    ) as client:
        whole = (await ask(client)).choices[0].message.content
        stream = await ask(client, stream=True)
        assert "".join([chunk.choices[0].delta.content or "" async for chunk in stream]) == whole
        stream = await ask(client, stream=True, max_completion_tokens=3000)
        async for _ in stream:
            break
        await stream.close()
    assert is_idle(idle_lab)


def test_models_are_listed_and_described(client, idle_lab):
    assert [model.id for model in client.models.list()] == ["mock"]
    assert client.models.retrieve("mock").object == "model"
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("none-such")


def test_a_base_url_without_v1_works(server, idle_lab):
    with OpenAI(base_url=server.url, api_key="x", max_retries=0) as client:
        assert ask(client).choices[0].finish_reason == "length"
