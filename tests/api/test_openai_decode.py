"""Reading chat completion requests: what they become, and every way in which they are refused."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llmlab.api.conversation import (
    Conversation,
    OutputFormat,
    Text,
    ThinkingMode,
    ToolChoice,
    ToolResult,
    ToolUse,
    Turn,
)
from llmlab.api.errors import ApiError
from llmlab.api.openai import OpenAICodec
from llmlab.api.openai.decode import REASONING_BUDGETS
from llmlab.api.rules import Rules
from llmlab.engine.params import SamplingParams

USER = {"role": "user", "content": "Hello"}
WEATHER = {"type": "object", "properties": {"city": {"type": "string"}}}
TOOLS = [{"type": "function", "function": {"name": name, "parameters": WEATHER}} for name in ("weather", "clock")]
CALL = {"id": "call_1", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Rome"}'}}
ASKED = {"role": "assistant", "content": None, "tool_calls": [CALL]}
ANSWER = {"role": "tool", "tool_call_id": "call_1", "content": "sunny"}


def decode(*messages: dict, rules: Rules | None = None, **fields) -> Conversation:
    body = {"model": "m", "messages": list(messages) or [USER]} | fields
    return OpenAICodec().decode(body, {}, rules or Rules())


def refusal(*messages: dict, rules: Rules | None = None, **fields) -> ApiError:
    with pytest.raises(ApiError) as caught:
        decode(*messages, rules=rules, **fields)
    assert caught.value.status == 400
    return caught.value


def test_smallest_request():
    assert decode() == Conversation(
        protocol="openai", model="m", turns=(Turn("user", (Text("Hello"),)),), sampling={"max_tokens": None}
    )


def test_leading_system_messages_are_the_system_prompt_and_later_ones_are_turns():
    found = decode(
        {"role": "system", "content": "A"},
        {"role": "developer", "content": [{"type": "text", "text": "B"}]},
        USER,
        {"role": "system", "content": "C"},
    )
    assert found.system == (Text("A"), Text("B"))
    assert found.turns == (Turn("user", (Text("Hello"),)), Turn("system", (Text("C"),)))


def test_neighbours_of_one_role_are_one_turn():
    parts = {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}
    assert decode(USER, parts).turns == (Turn("user", (Text("Hello"), Text("a"), Text("b"))),)


def test_tool_messages_become_results_at_the_start_of_the_user_turn():
    found = decode(USER, ASKED, ANSWER, {"role": "user", "content": "And?"})
    assert found.turns[1] == Turn("assistant", (ToolUse("call_1", "weather", {"city": "Rome"}),))
    assert found.turns[2] == Turn("user", (ToolResult("call_1", (Text("sunny"),)), Text("And?")))


def test_text_and_refusal_and_calls_of_one_assistant_message_keep_their_order():
    asked = ASKED | {"content": "Let me see."}
    assert decode(USER, asked, ANSWER).turns[1].blocks[0] == Text("Let me see.")
    refused = Turn("assistant", (Text("No."),))
    assert decode(USER, {"role": "assistant", "refusal": "No."}).turns[1] == refused
    part = {"type": "refusal", "refusal": "No."}
    assert decode(USER, {"role": "assistant", "content": [part]}).turns[1] == refused


def test_arguments_keep_key_order_and_empty_ones_are_an_empty_object():
    call = CALL | {"function": {"name": "weather", "arguments": '{"b": 1, "a": {"d": 1, "c": 2}}'}}
    use = decode(USER, ASKED | {"tool_calls": [call]}, ANSWER).turns[1].blocks[0]
    assert json.dumps(use.input) == '{"b": 1, "a": {"d": 1, "c": 2}}'
    call = CALL | {"function": {"name": "weather", "arguments": ""}}
    assert decode(USER, ASKED | {"tool_calls": [call]}, ANSWER).turns[1].blocks[0].input == {}


def test_a_reply_that_an_sdk_dumped_can_be_sent_back():
    echoed = ASKED | {
        "refusal": None,
        "annotations": [],
        "audio": None,
        "function_call": None,
        "reasoning_content": "h",
    }
    found = decode(USER, echoed, ANSWER)
    assert found.turns[1].blocks == (ToolUse("call_1", "weather", {"city": "Rome"}),)
    assert found.ignored == ("messages[1].reasoning_content",)


@pytest.mark.parametrize(
    ("choice", "expected"),
    [
        (None, ToolChoice("auto")),
        ("auto", ToolChoice("auto")),
        ("none", ToolChoice("none")),
        ("required", ToolChoice("any")),
        ({"type": "function", "function": {"name": "clock"}}, ToolChoice("tool", "clock")),
    ],
)
def test_tool_choice(choice, expected):
    found = decode(tools=TOOLS, tool_choice=choice)
    assert found.tool_choice == expected
    assert [tool.name for tool in found.tools] == ["weather", "clock"]
    assert found.tools[0].input_schema == WEATHER


def test_allowed_tools_narrow_the_list():
    reference = {"type": "function", "function": {"name": "clock"}}
    choice = {"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": [reference]}}
    found = decode(tools=TOOLS, tool_choice=choice, parallel_tool_calls=False)
    assert [tool.name for tool in found.tools] == ["clock"]
    assert found.tool_choice == ToolChoice("any", parallel=False)


def test_a_tool_without_parameters_takes_an_object():
    found = decode(tools=[{"type": "function", "function": {"name": "f", "strict": True}}])
    assert found.tools[0].input_schema == {"type": "object"}
    assert found.tools[0].strict


@pytest.mark.parametrize(
    ("wanted", "expected"),
    [
        ({"type": "text"}, None),
        ({"type": "json_object"}, OutputFormat(None)),
        (
            {"type": "json_schema", "json_schema": {"name": "w", "schema": WEATHER, "strict": True}},
            OutputFormat(WEATHER),
        ),
        ({"type": "json_schema", "json_schema": {"name": "w"}}, OutputFormat(None)),
    ],
)
def test_response_format(wanted, expected):
    assert decode(response_format=wanted).format == expected


def test_sampling_fields_are_arguments_of_the_engine():
    found = decode(
        max_tokens=5,
        max_completion_tokens=9,
        temperature=0.5,
        top_p=0.9,
        n=2,
        stop="end",
        seed=-3,
        presence_penalty=1,
        frequency_penalty=-1,
        logit_bias={"17": -100},
        logprobs=True,
        top_logprobs=3,
        top_k=-1,
        min_p=0.1,
        repetition_penalty=1.1,
        min_tokens=1,
        ignore_eos=True,
        stop_token_ids=[4],
        include_stop_str_in_output=True,
    ).sampling
    params = SamplingParams.from_kwargs(**found)
    assert (params.max_tokens, params.stop, params.logprobs, params.include_stop) == (9, ("end",), 3, True)
    assert (params.logit_bias, params.seed, params.n, params.stop_token_ids) == ({17: -100.0}, -3, 2, (4,))


def test_null_is_the_same_as_absent():
    names = ("stop", "temperature", "n", "tools", "stream", "stream_options", "logprobs", "metadata", "response_format")
    assert decode(**dict.fromkeys(names)) == decode()


def test_logprobs_without_top_logprobs_report_the_chosen_token_only():
    assert decode(logprobs=True).sampling["logprobs"] == 0
    assert "logprobs" not in decode(logprobs=False).sampling


@pytest.mark.parametrize("effort", ["none", "minimal", "low", "medium", "high", "xhigh", "max"])
def test_reasoning_effort_sets_the_thinking_budget(effort):
    budget = REASONING_BUDGETS.get(effort)
    assert decode(reasoning_effort=effort).thinking == (None if budget is None else ThinkingMode(budget))
    assert (budget is None) == (effort in ("none", "minimal"))


def test_stream_and_identity_fields():
    found = decode(
        stream=True,
        stream_options={"include_usage": True},
        user="u",
        safety_identifier="s",
        prompt_cache_key="k",
        cache_salt="salt",
        service_tier="flex",
        return_token_ids=True,
    )
    assert (found.stream, found.include_usage, found.user, found.cache_key) == (True, True, "s", "k")
    assert (found.cache_salt, found.service_tier, found.return_token_ids) == ("salt", "flex", True)


def test_fields_without_effect_are_accepted_and_listed():
    found = decode(
        USER | {"name": "Ann"},
        store=True,
        metadata={"a": "b"},
        modalities=["text"],
        verbosity="low",
        web_search_options={},
        prediction={"type": "content", "content": "x"},
        prompt_logprobs=1,
        stream=True,
        stream_options={"include_obfuscation": True},
    )
    assert set(found.ignored) == {
        "store",
        "metadata",
        "modalities",
        "verbosity",
        "web_search_options",
        "prediction",
        "prompt_logprobs",
        "stream_options.include_obfuscation",
        "messages[0].name",
    }
    assert "prompt_logprobs" not in found.sampling


def test_final_assistant_message_is_continued_only_when_asked():
    begun = {"role": "assistant", "content": "Once"}
    assert not decode(USER, begun).continue_last
    assert decode(USER, begun, continue_final_message=True, add_generation_prompt=False).continue_last
    error = refusal(USER, begun, continue_final_message=True, rules=Rules(allow_prefill=False))
    assert error.param == "continue_final_message"


def test_output_limit_of_the_server():
    assert decode(rules=Rules(max_output_tokens=7)).sampling["max_tokens"] == 7
    error = refusal(max_tokens=8, rules=Rules(max_output_tokens=7))
    assert (error.param, "at most 7" in error.message) == ("max_tokens", True)


NO_ARGUMENTS = CALL | {"function": {"name": "weather", "arguments": "{"}}
LIST_ARGUMENTS = CALL | {"function": {"name": "weather", "arguments": "[1]"}}
NAN_ARGUMENTS = CALL | {"function": {"name": "weather", "arguments": '{"a": NaN}'}}
DEEP_ARGUMENTS = CALL | {"function": {"name": "weather", "arguments": "[" * 100_000}}
IMAGE = {"type": "image_url", "image_url": {"url": "data:"}}

REFUSED_MESSAGES = [
    ([], "messages", "at least 1 item"),
    ([{"role": "wizard", "content": "x"}], "messages[0]", "role is system"),
    ([{"role": "function", "name": "f", "content": "x"}], "messages[0]", "role is system"),
    (["x"], "messages[0]", "role is system"),
    ([{"role": "user"}], "messages[0].content", "Missing required parameter"),
    ([{"role": "user", "content": None}], "messages[0].content", "expected a string or an array, but got null"),
    ([{"role": "user", "content": []}], "messages[0].content", "at least 1 item"),
    ([USER | {"extra": 1}], "messages[0].extra", "Unknown parameter: 'messages[0].extra'."),
    ([USER | {"content": [IMAGE]}], "messages[0].content[0].type", "text only"),
    ([USER | {"content": [{"type": "refusal", "refusal": "x"}]}], "messages[0].content[0].type", "text only"),
    ([USER | {"content": [{"type": "text"}]}], "messages[0].content[0].text", "must be a string"),
    ([USER | {"content": [{"type": "text", "text": "x", "y": 1}]}], "messages[0].content[0]", "unknown key 'y'"),
    ([USER | {"content": "\ud800"}], None, "surrogate"),
    ([USER, {"role": "assistant"}], "messages[1].content", "needs content"),
    (
        [USER, ASKED | {"function_call": {"name": "f", "arguments": ""}}, ANSWER],
        "messages[1].function_call",
        "tool_calls",
    ),
    ([USER, ASKED], "messages[1].tool_calls", "missing for call_1"),
    ([USER, ASKED, USER, ANSWER], "messages[1].tool_calls", "missing for call_1"),
    ([USER, ANSWER], "messages[1].tool_call_id", "answers no open call"),
    ([USER, ASKED, ANSWER, ANSWER], "messages[3].tool_call_id", "answers no open call"),
    ([USER, ASKED | {"tool_calls": [CALL, CALL]}, ANSWER], "messages[1].tool_calls", "same id"),
    (
        [USER, ASKED | {"tool_calls": [NO_ARGUMENTS]}, ANSWER],
        "messages[1].tool_calls[0].function.arguments",
        "valid JSON",
    ),
    ([USER, ASKED | {"tool_calls": [DEEP_ARGUMENTS]}, ANSWER], "messages[1].tool_calls[0].function.arguments", "valid"),
    (
        [USER, ASKED | {"tool_calls": [LIST_ARGUMENTS]}, ANSWER],
        "messages[1].tool_calls[0].function.arguments",
        "object",
    ),
    ([USER, ASKED | {"tool_calls": [NAN_ARGUMENTS]}, ANSWER], "messages[1].tool_calls[0].function.arguments", "finite"),
]


@pytest.mark.parametrize(("messages", "param", "words"), REFUSED_MESSAGES)
def test_refused_messages(messages, param, words):
    with pytest.raises(ApiError) as caught:
        OpenAICodec().decode({"model": "m", "messages": messages}, {}, Rules())
    assert caught.value.param == param
    assert words in caught.value.message
    assert caught.value.openai()["error"]["type"] == "invalid_request_error"


CUSTOM = [{"type": "custom", "custom": {"name": "f"}}]
BROKEN_SCHEMA = [{"type": "function", "function": {"name": "f", "parameters": {"properties": {"a": 1}}}}]
STRING_SCHEMA = [{"type": "function", "function": {"name": "f", "parameters": {"type": "string"}}}]
BROKEN_FORMAT = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "thing"}}}

REFUSED_FIELDS = [
    ({"colour": 1}, "colour", "Unrecognized request argument supplied: colour"),
    ({"model": ""}, "model", "at least 1 character"),
    ({"temperature": 2.1}, "temperature", "less than or equal to 2"),
    ({"temperature": "1"}, "temperature", "expected a number, but got a string"),
    ({"temperature": float("nan")}, None, "finite"),
    ({"top_p": 0}, "top_p", "greater than 0"),
    ({"n": 0}, "n", "greater than or equal to 1"),
    ({"n": True}, "n", "expected an integer, but got a boolean"),
    ({"max_tokens": 0}, "max_tokens", "greater than or equal to 1"),
    ({"max_tokens": 3, "min_tokens": 4}, "min_tokens", "limit of 3"),
    ({"stop": ["a"] * 5}, "stop", "at most 4"),
    ({"stop": ""}, "stop", "at least 1 character"),
    ({"seed": 2**63}, "seed", "less than or equal"),
    ({"seed": 10**100}, None, "77 digits"),
    ({"logit_bias": {"x": 1}}, "logit_bias", "token ids"),
    ({"logit_bias": {"1": 1, "01": 1}}, "logit_bias", "twice"),
    ({"logit_bias": {"1": 101}}, "logit_bias.1", "less than or equal to 100"),
    ({"top_logprobs": 2}, "top_logprobs", "logprobs to be true"),
    ({"logprobs": True, "top_logprobs": 21}, "top_logprobs", "less than or equal to 20"),
    ({"stream_options": {"include_usage": True}}, "stream_options", "stream is true"),
    ({"tools": []}, "tools", "at least 1 item"),
    ({"tools": CUSTOM}, "tools[0].type", "should be 'function'"),
    ({"tools": TOOLS + TOOLS[:1]}, "tools[2].function.name", "called 'weather'"),
    ({"tools": BROKEN_SCHEMA}, "tools[0].function.parameters", "not a JSON Schema"),
    ({"tools": STRING_SCHEMA}, "tools[0].function.parameters", "'object'"),
    ({"tool_choice": "auto"}, "tool_choice", "together with tools"),
    ({"parallel_tool_calls": True}, "parallel_tool_calls", "together with tools"),
    ({"tools": TOOLS, "tool_choice": "any"}, "tool_choice", "'required'"),
    (
        {"tools": TOOLS, "tool_choice": {"type": "function", "function": {"name": "f"}}},
        "tool_choice.function.name",
        "no tool 'f'",
    ),
    ({"functions": [{"name": "f"}]}, "functions", "use tools"),
    ({"function_call": "auto"}, "function_call", "use tool_choice"),
    ({"response_format": {"type": "json_schema"}}, "response_format.json_schema", "needed"),
    ({"response_format": BROKEN_FORMAT}, "response_format.json_schema.schema", "not a JSON Schema"),
    ({"continue_final_message": True}, "continue_final_message", "assistant message"),
    ({"add_generation_prompt": False}, "add_generation_prompt", "continue_final_message"),
    ({"service_tier": "gold"}, "service_tier", "'default'"),
]


@pytest.mark.parametrize(("fields", "param", "words"), REFUSED_FIELDS)
def test_refused_fields(fields, param, words):
    error = refusal(**fields)
    assert error.param == param
    assert words in error.message


@pytest.mark.parametrize("body", [None, 1, "x", [], True])
def test_a_body_that_is_no_object_is_refused(body):
    with pytest.raises(ApiError, match="must be a JSON object"):
        OpenAICodec().decode(body, {}, Rules())


def test_deep_nesting_is_refused_anywhere():
    deep: dict = {}
    for _ in range(5000):
        deep = {"type": "object", "properties": {"a": deep}}
    error = refusal(tools=[{"type": "function", "function": {"name": "f", "parameters": deep}}])
    assert "levels deep" in error.message


def test_error_messages_repeat_little_of_a_hostile_body():
    error = refusal(**{"x" * 10_000: 1})
    assert len(error.message) < 200


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(10**40), 10**40)
    | st.floats()
    | st.text(st.characters(), max_size=5)
    | st.sampled_from(["user", "assistant", "tool", "text", "function", "call_1", "{}", "auto", "json_schema"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                ["role", "content", "type", "text", "function", "name", "tool_calls", "id", "schema", "\ud800"]
            ),
            inner,
            max_size=4,
        )
    ),
    max_leaves=12,
)
FULL = {
    "model": "m",
    "messages": [{"role": "system", "content": "s"}, USER, ASKED, ANSWER],
    "tools": TOOLS,
    "tool_choice": {"type": "function", "function": {"name": "clock"}},
    "response_format": {"type": "json_schema", "json_schema": {"name": "w", "schema": WEATHER}},
    "stop": ["a"],
    "logit_bias": {"1": 2},
    "stream": True,
    "stream_options": {"include_usage": True},
}


def places(value, path=()):
    yield path
    children = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, child in children:
        yield from places(child, (*path, key))


def replaced(value, path, new):
    if not path:
        return new
    copy = value.copy()
    copy[path[0]] = replaced(value[path[0]], path[1:], new)
    return copy


@settings(max_examples=300, deadline=None)
@given(path=st.sampled_from(list(places(FULL))), new=JSON)
def test_any_json_anywhere_is_read_or_refused_by_an_api_error(path, new):
    try:
        found = OpenAICodec().decode(replaced(FULL, path, new), {}, Rules())
    except ApiError as error:
        outcome = (error.status, error.openai()["error"]["type"])
    else:
        SamplingParams.from_kwargs(**found.sampling)
        outcome = None
    assert outcome in (None, (400, "invalid_request_error"))


def test_the_unmodified_example_of_the_fuzz_test_is_valid():
    assert OpenAICodec().decode(FULL, {}, Rules()).tool_choice.name == "clock"


def test_request_schema_is_json():
    assert "messages" in json.loads(json.dumps(OpenAICodec().request_schema()))["required"]
