"""The unmodified ``anthropic`` package, with its strict response validation, against a running server."""

import json
import time

import anthropic
import pytest
from anthropic import Anthropic, AsyncAnthropic

from tests.conformance.conftest import TOOL_SCHEMA

HELLO = [{"role": "user", "content": "hello"}]
WEATHER = {"name": "weather", "description": "The weather of a city.", "input_schema": TOOL_SCHEMA}
CHOICE = {"type": "tool", "name": "weather", "disable_parallel_tool_use": True}


@pytest.fixture
def client(server):
    """A client that validates every response, and does not hide failures behind retries."""
    with Anthropic(base_url=server.url, api_key="x", max_retries=0, _strict_response_validation=True) as client:
        yield client


def ask(client, **params):
    return client.messages.create(**({"model": "mock", "max_tokens": 12, "messages": HELLO} | params))


def total_input(usage):
    return usage.input_tokens + usage.cache_read_input_tokens + usage.cache_creation_input_tokens


def is_idle(lab, within_s=2.0):
    end = time.monotonic() + within_s
    while lab.engine.pool.num_used and time.monotonic() < end:
        time.sleep(0.01)
    return lab.engine.pool.num_used == 0


def test_text_in_one_piece(client, idle_lab):
    message = ask(client)
    assert (message.type, message.role, message.stop_reason) == ("message", "assistant", "max_tokens")
    assert message.usage.output_tokens == 12
    assert len(message.content[0].text) == 12
    assert message._request_id.startswith("req_")
    counted = client.messages.count_tokens(model="mock", messages=HELLO)
    assert counted.input_tokens == total_input(message.usage)


def test_streamed_text_equals_text_in_one_piece(client, idle_lab):
    whole = ask(client).content[0].text
    with client.messages.stream(model="mock", max_tokens=12, messages=HELLO) as stream:
        text = "".join(stream.text_stream)
        final = stream.get_final_message()
    assert text == whole == final.content[0].text
    assert final.usage.output_tokens == 12


def test_raw_events_come_in_order(client, idle_lab):
    events = [event.type for event in ask(client, stream=True)]
    assert events[:2] == ["message_start", "content_block_start"]
    assert set(events[2:-3]) == {"content_block_delta"}
    assert events[-3:] == ["content_block_stop", "message_delta", "message_stop"]


def test_a_tool_is_called_answered_and_called_again(client, idle_lab):
    first = ask(client, max_tokens=300, tools=[WEATHER], tool_choice=CHOICE)
    call = first.content[-1]
    assert (first.stop_reason, call.type, call.name) == ("tool_use", "tool_use", "weather")
    assert set(call.input) == {"city", "unit"}
    answer = {"type": "tool_result", "tool_use_id": call.id, "content": "21 degrees"}
    second = ask(
        client,
        tools=[WEATHER],
        messages=[*HELLO, {"role": "assistant", "content": first.content}, {"role": "user", "content": [answer]}],
    )
    assert second.usage.output_tokens == 12


def test_streamed_arguments_are_the_json_of_the_call(client, idle_lab):
    fragments = []
    with client.messages.stream(
        model="mock", max_tokens=300, messages=HELLO, tools=[WEATHER], tool_choice=CHOICE
    ) as stream:
        for event in stream:
            if event.type == "content_block_delta" and event.delta.type == "input_json_delta":
                fragments.append(event.delta.partial_json)
        final = stream.get_final_message()
    assert fragments[0] == ""
    assert json.loads("".join(fragments)) == final.content[-1].input


def test_thinking_is_streamed_signed_counted_and_taken_back(client, idle_lab):
    params = {"max_tokens": 60, "thinking": {"type": "enabled", "budget_tokens": 20}}
    with client.messages.stream(model="mock", messages=HELLO, **params) as stream:
        first = stream.get_final_message()
    thinking = first.content[0]
    assert thinking.type == "thinking"
    assert thinking.signature
    assert 0 < first.usage.output_tokens_details.thinking_tokens <= 20 < first.usage.output_tokens
    turns = [*HELLO, {"role": "assistant", "content": first.content}, {"role": "user", "content": "go on"}]
    assert ask(client, messages=turns).stop_reason == "max_tokens"
    changed = [{**thinking.model_dump(), "thinking": "something else"}, first.content[-1]]
    turns[1] = {"role": "assistant", "content": changed}
    with pytest.raises(anthropic.BadRequestError, match="cannot be modified"):
        ask(client, messages=turns)


def test_omitted_thinking_sends_the_signature_alone(client, idle_lab):
    message = ask(
        client, max_tokens=60, thinking={"type": "enabled", "budget_tokens": 20, "display": "omitted"}, stream=False
    )
    assert message.content[0].thinking == ""
    assert message.content[0].signature


def test_json_output_follows_its_schema(client, idle_lab):
    output = {"format": {"type": "json_schema", "schema": TOOL_SCHEMA}}
    message = ask(client, max_tokens=200, output_config=output)
    assert set(json.loads(message.content[0].text)) == {"city", "unit"}


def test_a_marked_prefix_is_written_then_read(client, idle_lab):
    system = [{"type": "text", "text": "Rules. " * 60, "cache_control": {"type": "ephemeral"}}]
    first, second = (ask(client, system=system) for _ in range(2))
    assert first.usage.cache_creation_input_tokens > 400
    assert first.usage.cache_read_input_tokens == 0
    assert second.usage.cache_read_input_tokens > 400
    assert total_input(first.usage) == total_input(second.usage)


def test_sampling_is_gated_on_the_version(client, idle_lab):
    body = {"temperature": 0.7, "top_k": 5}
    with pytest.raises(anthropic.BadRequestError, match="Extra inputs are not permitted"):
        ask(client, extra_body=body)
    old = {"anthropic-version": "2023-06-01"}
    assert ask(client, extra_body=body, extra_headers=old).stop_reason == "max_tokens"


def test_prewarming_generates_nothing(client, idle_lab):
    message = ask(client, max_tokens=0)
    assert (message.content, message.stop_reason, message.usage.output_tokens) == ([], "max_tokens", 0)


def test_a_stop_sequence_is_named_and_not_shown(client, idle_lab):
    text = ask(client).content[0].text
    stop = text[4:6]
    message = ask(client, stop_sequences=[stop])
    assert (message.stop_reason, message.stop_sequence) == ("stop_sequence", stop)
    assert message.content[0].text == text[: text.index(stop)]


@pytest.mark.parametrize(
    ("params", "error", "wording"),
    [
        ({"messages": []}, anthropic.BadRequestError, "at least one message"),
        ({"max_tokens": -1}, anthropic.BadRequestError, "max_tokens"),
        ({"extra_body": {"nonsense": 1}}, anthropic.BadRequestError, "nonsense: Extra inputs are not permitted"),
        ({"max_tokens": 20_000}, anthropic.BadRequestError, r"exceed context limit: \d+ \+ 20000 > \d+"),
        ({"messages": [{"role": "user", "content": "x" * 9000}]}, anthropic.BadRequestError, "prompt is too long"),
        ({"extra_headers": {"llmlab-fault": "status=529x1000"}}, anthropic.OverloadedError, "injected"),
        ({"extra_headers": {"llmlab-fault": "status=429x1000"}}, anthropic.RateLimitError, "injected"),
        ({"extra_headers": {"llmlab-fault": "status=500x1000"}}, anthropic.InternalServerError, "injected"),
    ],
)
def test_failures_arrive_as_the_packages_own_errors(client, idle_lab, params, error, wording):
    with pytest.raises(error, match=wording) as caught:
        ask(client, **params)
    assert caught.value.request_id.startswith("req_")


def test_the_package_retries_what_is_worth_it(server, idle_lab):
    with Anthropic(base_url=server.url, api_key="x", max_retries=2) as client:
        message = ask(client, extra_headers={"llmlab-fault": "status=529x2", "x-client-request-id": "retry-me"})
    assert message.usage.output_tokens == 12


def test_a_stream_that_is_cut_is_an_error(client, idle_lab):
    stream = ask(client, stream=True, max_tokens=200, extra_headers={"llmlab-fault": "drop=900"})
    with pytest.raises(Exception, match=r"(?i)incomplete|peer closed|disconnect"):
        list(stream)


def test_leaving_a_stream_early_frees_the_engine(client, idle_lab):
    with client.messages.stream(model="mock", max_tokens=3000, messages=HELLO) as stream:
        next(iter(stream.text_stream))
    assert is_idle(idle_lab)


def test_closing_the_connection_frees_the_engine(client, idle_lab):
    stream = ask(client, stream=True, max_tokens=3000)
    next(iter(stream))
    stream.close()
    assert is_idle(idle_lab)


async def test_async_stream_and_cancellation(server, idle_lab):
    async with AsyncAnthropic(
        base_url=server.url, api_key="x", max_retries=0, _strict_response_validation=True
    ) as client:
        message = await client.messages.create(model="mock", max_tokens=12, messages=HELLO)
        async with client.messages.stream(model="mock", max_tokens=12, messages=HELLO) as stream:
            text = "".join([piece async for piece in stream.text_stream])
        assert text == message.content[0].text
        async with client.messages.stream(model="mock", max_tokens=3000, messages=HELLO) as stream:
            async for _ in stream.text_stream:
                break
    assert is_idle(idle_lab)


def test_the_beta_surface(client, idle_lab):
    message = client.beta.messages.create(
        model="mock",
        max_tokens=12,
        messages=HELLO,
        betas=["context-management-2025-06-27"],
        context_management={"edits": [{"type": "clear_tool_uses_20250919"}]},
    )
    assert message.context_management.applied_edits == []


def test_the_packages_tool_loop(client, idle_lab):
    seen = []

    @anthropic.beta_tool
    def weather(city: str) -> str:
        """The weather of a city.

        Args:
            city: name of the city
        """
        seen.append(city)
        return "21 degrees"

    runner = client.beta.messages.tool_runner(
        model="mock",
        max_tokens=400,
        messages=HELLO,
        tools=[weather],
        tool_choice={"type": "any", "disable_parallel_tool_use": True},
        max_iterations=2,
    )
    turns = [message.stop_reason for message in runner]
    assert len(turns) == 2
    assert len(seen) == turns.count("tool_use")


def test_models_are_listed_and_described(client, idle_lab):
    listed = list(client.models.list())
    assert [model.id for model in listed] == ["mock"]
    assert client.models.retrieve("mock").max_input_tokens == 4095
    with pytest.raises(anthropic.NotFoundError):
        client.models.retrieve("none-such")


def test_a_base_url_that_ends_in_v1_is_explained(server):
    with (
        Anthropic(base_url=server.url + "/v1", api_key="x", max_retries=0) as client,
        pytest.raises(anthropic.NotFoundError, match="base_url"),
    ):
        ask(client)
