"""Requests written to hurt: each of them made the gateway fail, or kept it from everything else."""

from __future__ import annotations

import asyncio
import threading
from base64 import b64encode

import pytest
from playback import playback_lab
from pydantic import ValidationError
from replies import ask, call
from scripted_backend import ScriptedBackend, client_of, gateway_of

from llmlab.api.anthropic.codec import AnthropicCodec
from llmlab.api.anthropic.schema import MessageRequest
from llmlab.api.conversation import Text, Thinking, Tool, ToolUse, Turn
from llmlab.api.errors import ApiError
from llmlab.api.heads import MAX_HEAD, head_text
from llmlab.api.openai.codec import OpenAICodec
from llmlab.api.openai.schema import ChatRequest
from llmlab.api.rules import Rules
from llmlab.errors import LabError
from llmlab.gateway.auth import KeyRing, check_local
from llmlab.gateway.body import MAX_SEPARATORS, parse_json
from llmlab.gateway.engine_backend import EngineBackend
from llmlab.gateway.failures import to_api_error
from llmlab.gateway.preparation import is_quick
from llmlab.gateway.rendering import Renderer
from llmlab.gateway.settings import Settings
from llmlab.gateway.signatures import Signer
from llmlab.gateway.upstream_reader import ChunkReader

USER = [{"role": "user", "content": "hello"}]


def refusal(codec: AnthropicCodec | OpenAICodec, **fields) -> ApiError:
    body = {"model": "m", "max_tokens": 8, "messages": USER} | fields
    with pytest.raises(ApiError) as caught:
        codec.decode(body, {}, Rules())
    assert caught.value.status == 400
    return caught.value


def function(parameters: dict) -> dict:
    return {"type": "function", "function": {"name": "f", "parameters": parameters}}


@pytest.mark.parametrize("pattern", ["a{99999999999}", "(" * 2000 + ")" * 2000])
def test_a_pattern_that_no_regular_expression_library_takes_is_refused(pattern):
    schema = {"type": "object", "properties": {"a": {"type": "string", "pattern": pattern}}}
    wanted = {"type": "json_schema", "json_schema": {"name": "a", "schema": schema}}
    assert refusal(OpenAICodec(), tools=[function(schema)]).param == "tools[0].function.parameters"
    assert refusal(OpenAICodec(), response_format=wanted).param == "response_format.json_schema.schema"


def test_schemas_are_limited_in_size_alone_and_together():
    large = {"type": "object", "properties": {f"p{i}": {} for i in range(6000)}}
    some = {"type": "object", "properties": {f"p{i}": {} for i in range(4000)}}
    functions = [function(some)["function"] | {"name": f"f{i}"} for i in range(6)]
    custom = [{"name": f"f{i}", "input_schema": some} for i in range(6)]
    assert "more than 10000" in refusal(OpenAICodec(), tools=[function(large)]).message
    together = refusal(OpenAICodec(), tools=[{"type": "function", "function": each} for each in functions])
    assert together.param == "tools"
    assert refusal(AnthropicCodec(), tools=custom).param == "tools"


def test_context_edits_and_stop_ids_are_limited_in_number():
    edits = {"edits": [{"type": "clear_tool_uses_20250919"}] * 9}
    assert "at most 8" in refusal(AnthropicCodec(), context_management=edits).message
    assert "at most 1024" in refusal(OpenAICodec(), stop_token_ids=[1] * 1025).message


@pytest.mark.parametrize("schema", [MessageRequest, ChatRequest])
def test_a_list_is_not_checked_beyond_the_first_item_that_is_wrong(schema):
    with pytest.raises(ValidationError) as caught:
        schema.model_validate({"model": "m", "max_tokens": 1, "messages": [{}] * 1000})
    assert len({error["loc"][:2] for error in caught.value.errors()}) == 1


def test_a_body_of_too_many_values_is_refused_before_it_is_parsed():
    with pytest.raises(ApiError, match=f"more than {MAX_SEPARATORS} commas"):
        parse_json(b"[" + b"1," * MAX_SEPARATORS + b"1]", 64)
    assert parse_json(b"[" + b"1," * 1000 + b"1]", 64)[-1] == 1


def test_a_forged_signature_that_hides_no_text_is_a_refusal_not_a_failure():
    forged = b64encode(b"llmlab\x02" + bytes(32) + b"\xff\xfe").decode()
    assert Signer().restore("m", Thinking("", forged)) is None


def test_white_space_without_end_is_refused_before_it_is_tokenized(monkeypatch):
    with playback_lab("x") as lab:
        backend = EngineBackend(lab, Settings())
        monkeypatch.setattr(backend._preparation.renderer.encoder, "encode", lambda *_: pytest.fail("it was tokenized"))
        with pytest.raises(ApiError, match="prompt is too long"):
            asyncio.run(backend.open(call(ask(" " * 200_000))))


def test_what_takes_long_to_render_is_told_from_what_does_not():
    use = Turn("assistant", (ToolUse("a", "f", {"a": "b"}),))
    assert is_quick(ask("hello"))
    assert not is_quick(ask(" " * 9000))
    assert not is_quick(ask("hello", turns=(Turn("user", (Text("a"),) * 200),)))
    assert not is_quick(ask("hello", turns=(Turn("user", (Text("a"),)), use)))
    assert not is_quick(ask("hello", tools=(Tool("f"),)))


async def test_the_schemas_of_a_small_body_are_checked_off_the_event_loop(monkeypatch):
    threads = []
    gateway = gateway_of(ScriptedBackend())
    decode = gateway.openai.decode

    def noted(*arguments):
        threads.append(threading.current_thread())
        return decode(*arguments)

    monkeypatch.setattr(gateway.openai, "decode", noted)
    schema = {"type": "object", "properties": {f"p{i}": {} for i in range(800)}}
    async with client_of(gateway) as client:
        found = await client.post(
            "/v1/chat/completions", json={"model": "m", "messages": USER, "tools": [function(schema)]}
        )
    assert found.status_code == 200
    assert threads[0] is not threading.current_thread()


def test_a_template_runs_once_for_each_tool_that_can_be_seen_not_for_all():
    runs = []

    def template(messages, tools=None, **_):
        runs.append(len(tools or ()))
        listed = "".join(f"<tool_call>{tool}" for tool in tools or ())
        return listed + "".join(message["content"] for message in messages)

    lab = playback_lab("x")
    with lab:
        tokenizer = lab.tokenizer
        tokenizer.apply_chat_template = template
        renderer = Renderer(tokenizer)
        assert renderer.uses_tools
        runs.clear()
        rendered = renderer.render(ask("hello", tools=tuple(Tool(f"f{i}") for i in range(300))))
    assert len(runs) < 30
    assert rendered.tools_end == rendered.text.index("hello")
    assert rendered.positions[299].tokens > rendered.positions[298].tokens


async def test_another_keys_reply_is_unknown_to_cache_diagnostics():
    with playback_lab("x") as lab:
        backend = EngineBackend(lab, Settings())
        first = await backend.open(call(ask("hello"), message_id="msg_a", salt="alice"))
        [_ async for _ in first]
        found = {}
        for salt in ("alice", "bob"):
            asked = ask("other", wants_diagnostics=True, previous_message_id="msg_a")
            started, *_ = [event async for event in await backend.open(call(asked, salt=salt))]
            found[salt] = started.diagnostics["cache_miss_reason"]["type"]
    assert found == {"alice": "messages_changed", "bob": "previous_message_not_found"}


def test_a_keys_file_with_a_byte_order_mark_is_read(tmp_path):
    path = tmp_path / "keys"
    path.write_bytes(b"\xef\xbb\xbfsecret alice\r\n")
    path.chmod(0o600)
    assert KeyRing.load(path).identify({"x-api-key": "secret"}).name == "alice"


def test_a_key_that_no_header_can_carry_is_refused_when_it_is_read(tmp_path):
    path = tmp_path / "keys"
    path.write_text("clé alice\n", "utf-8")
    path.chmod(0o600)
    with pytest.raises(LabError, match="ASCII"):
        KeyRing.load(path)


@pytest.mark.parametrize("host", ["evil.example\\@127.0.0.1", "evil.example@127.0.0.1", "127.0.0.1\\.evil.example"])
def test_a_host_that_programs_read_differently_is_not_this_machine(host):
    with pytest.raises(ApiError, match="is not this machine"):
        check_local({"host": host})


def test_the_words_of_a_mistake_of_ours_stay_in_the_log(caplog):
    failure = LabError("step 3 failed for run r1: RuntimeError: /secret/file")
    failure.__cause__ = RuntimeError("/secret/file")
    assert "secret" not in to_api_error(failure).message
    assert "/secret/file" in caplog.text


def test_a_recorded_head_is_bounded():
    text = head_text([("a", "x" * 60_000), ("authorization", "secret")])
    assert len(text) < MAX_HEAD + 100


@pytest.mark.parametrize(("sent", "found"), [("-Infinity", -9999.0), ("-0.5", -0.5)])
def test_an_upstreams_infinite_log_probability_can_be_sent_on(sent, found):
    logprobs = f'{{"content":[{{"token":"a","logprob":{sent}}}]}}'
    chunk = f'{{"choices":[{{"index":0,"delta":{{"content":"a"}},"logprobs":{logprobs}}}]}}'
    events = list(ChunkReader("up", 1, str).feed(chunk))
    assert events[-1].logprobs[0].logprob == found


def test_an_upstreams_log_probability_that_is_no_number_is_its_mistake():
    logprobs = '{"content":[{"token":"a","logprob":NaN}]}'
    chunk = f'{{"choices":[{{"index":0,"delta":{{"content":"a"}},"logprobs":{logprobs}}}]}}'
    with pytest.raises(ApiError) as caught:
        list(ChunkReader("up", 1, str).feed(chunk))
    assert caught.value.status == 502
