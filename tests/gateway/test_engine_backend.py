"""The engine behind the gateway: replies, usage, stops, refusals, and nothing left behind."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from playback import playback_lab
from replies import ask, blocks, call, ends, read, reply_to

import llmlab
from llmlab.api.conversation import (
    CacheMarker,
    ClearToolUses,
    OutputFormat,
    Text,
    Tool,
    ToolChoice,
    ToolResult,
    ToolUse,
    Turn,
)
from llmlab.api.errors import ApiError
from llmlab.api.reply import BlockDelta, BlockStart, BlockStop, SampleEnd, Started
from llmlab.api.usage import Usage
from llmlab.gateway.engine_backend import EngineBackend
from llmlab.gateway.failures import room_for
from llmlab.gateway.merge import first_sample_first
from llmlab.gateway.settings import Settings
from llmlab.trace.events import RequestSubmitted, Span, Stage, WireLink

WEATHER = Tool("weather", "The weather.", {"type": "object", "properties": {"city": {"type": "string"}}})
CALL = '<tool_call>\n{"name": "weather", "arguments": {"city": "Rome"}}\n</tool_call>'


@pytest.fixture
def serve():
    """Opens backends on labs, which are closed afterwards; every block must have been given back by then."""
    labs = []

    def make(*answers: str, lab=None, **settings) -> EngineBackend:
        labs.append(lab or (playback_lab(*answers) if answers else llmlab.open("mock")))
        return EngineBackend(labs[-1], Settings(min_cache_tokens=1, **settings))

    yield make
    for lab in labs:
        lab.close()
        assert lab.engine.pool.num_used == 0
        assert lab.trace.check() == []


def only(properties: dict) -> dict:
    """A schema of an object with exactly these properties."""
    return {"type": "object", "properties": properties, "required": [*properties], "additionalProperties": False}


async def until(condition) -> None:
    async with asyncio.timeout(20):
        while not condition():
            await asyncio.sleep(0.005)


# -- text ---------------------------------------------------------------------------------------------------


async def test_a_reply_is_the_models_text_with_usage_that_adds_up(serve):
    backend = serve("Good morning, Zoë.")
    events = await reply_to(backend, ask("hi"))
    assert blocks(events) == [("text", "Good morning, Zoë.")]
    assert ends(events) == [("end_turn", None)]
    usage = events[-1].usage
    assert usage.prompt == len("user: hi\nassistant:")
    assert usage.output == len("Good morning, Zoë.".encode()) + 1
    assert replace(usage, output=0) == events[0].usage


async def test_an_empty_reply_has_no_block(serve):
    events = await reply_to(serve(""), ask("hi"))
    assert (blocks(events), ends(events), events[-1].usage.output) == ([], [("end_turn", None)], 1)


async def test_max_tokens_ends_a_reply(serve):
    events = await reply_to(serve("abcdef"), ask("hi", max_tokens=3))
    assert (blocks(events), ends(events)) == ([("text", "abc")], [("max_tokens", None)])


async def test_a_stop_string_ends_a_reply_and_is_not_part_of_it(serve):
    events = await reply_to(serve("one END two"), ask("hi", sampling={"stop": ("END",)}))
    assert (blocks(events), ends(events)) == ([("text", "one ")], [("stop_sequence", "END")])


async def test_the_same_request_gets_the_same_reply_through_both_protocols(serve):
    backend = serve()
    first = await reply_to(backend, ask("hello", max_tokens=20))
    second = await reply_to(backend, ask("hello", max_tokens=20, protocol="openai"))
    assert blocks(first) == blocks(second)
    assert first[-1].usage.prompt == second[-1].usage.prompt
    assert first[-1].usage.output == second[-1].usage.output == 20


async def test_a_prewarmed_prompt_is_computed_and_nothing_is_generated(serve):
    backend = serve()
    conversation = ask("x" * 100, max_tokens=0, prewarm=True, turns=(Turn("user", (Text("x" * 100, CacheMarker()),)),))
    events = await reply_to(backend, conversation)
    assert (blocks(events), ends(events), events[-1].usage.output) == ([], [("max_tokens", None)], 0)
    again = await reply_to(backend, replace(conversation, prewarm=False, sampling={"max_tokens": 2}))
    assert again[0].usage.cache_read > 80


async def test_a_continued_answer_goes_on_from_its_text(serve):
    events = await reply_to(serve("lo"), ask("hi", "Hel", continue_last=True, return_token_ids=True))
    assert bytes(events[0].prompt_token_ids) == b"user: hi\nassistant: Hel"
    assert blocks(events) == [("text", "lo")]


# -- samples, tokens, log-probabilities ---------------------------------------------------------------------


async def test_samples_interleave_and_the_first_comes_first(serve):
    backend = serve("same start", "some other")
    events = await reply_to(backend, ask("hi", sampling={"n": 2}, protocol="openai"))
    assert [blocks(events, i) for i in (0, 1)] == [[("text", "same start")], [("text", "some other")]]
    assert ends(events) == [("end_turn", None)] * 2
    starts = [event.sample for event in events if isinstance(event, BlockStart)]
    assert starts == [0, 1]
    assert events[-1].usage.output == 22


async def test_other_samples_are_held_back_until_the_first_has_begun():
    started, first, second = Started(Usage(1)), BlockStart(0, 0, "text"), BlockStart(1, 0, "text")

    async def scripted():
        for event in (started, second, BlockStop(1, 0), first, SampleEnd(1, "end_turn")):
            yield event

    events = [event async for event in first_sample_first(scripted())]
    assert events == [started, first, second, BlockStop(1, 0), SampleEnd(1, "end_turn")]


async def test_token_ids_cover_the_whole_output(serve):
    events = await reply_to(serve("Zoë"), ask("hi", return_token_ids=True))
    ids = [i for event in events if isinstance(event, BlockDelta) for i in event.token_ids]
    assert ids == [*"Zoë".encode(), 257]


async def test_token_ids_of_an_empty_reply_have_a_block(serve):
    events = await reply_to(serve(""), ask("hi", return_token_ids=True))
    assert [event.token_ids for event in events if isinstance(event, BlockDelta)] == [(257,)]


async def test_logprobs_belong_to_the_texts_tokens(serve):
    events = await reply_to(serve("Zoë!"), ask("hi", sampling={"logprobs": 2}, protocol="openai"))
    found = [item for event in events if isinstance(event, BlockDelta) for item in event.logprobs]
    assert b"".join(bytes(item.bytes) for item in found) == "Zoë!".encode()
    assert found[0].token == "Z"
    assert all(-0.01 < item.logprob <= 0 and len(item.top) == 2 for item in found)
    assert found[0].top[0] == ("Z", (ord("Z"),), found[0].logprob)


# -- tool calls ---------------------------------------------------------------------------------------------


async def test_a_tool_call_becomes_a_block_of_its_own(serve):
    backend = serve(f"Let me see.\n{CALL}")
    events = await reply_to(backend, ask("hi", tools=(WEATHER,)))
    assert blocks(events) == [("text", "Let me see."), ("weather", '{"city": "Rome"}')]
    assert ends(events) == [("tool_use", None)]
    (start,) = [event for event in events if isinstance(event, BlockStart) and event.kind == "tool_use"]
    assert start.id.startswith("toolu_")


async def test_openai_calls_have_openai_ids_and_calls_can_be_several(serve):
    backend = serve(f"{CALL}\n{CALL}")
    events = await reply_to(backend, ask("hi", tools=(WEATHER,), protocol="openai"))
    starts = [event for event in events if isinstance(event, BlockStart)]
    assert [start.id[:5] for start in starts] == ["call_", "call_"]
    assert starts[0].id != starts[1].id


async def test_a_call_cut_by_max_tokens_is_left_incomplete(serve):
    backend = serve(CALL)
    events = await reply_to(backend, ask("hi", tools=(WEATHER,), max_tokens=CALL.index("Rome") + 2))
    assert (blocks(events), ends(events)) == ([("weather", '{"city": "Ro')], [("max_tokens", None)])


async def test_tools_are_not_called_when_the_request_forbids_it(serve):
    backend = serve(CALL)
    events = await reply_to(backend, ask("hi", tools=(WEATHER,), tool_choice=ToolChoice("none")))
    assert (blocks(events), ends(events)) == ([("text", CALL)], [("end_turn", None)])


async def test_a_demanded_call_is_made_whatever_the_model_prefers(serve):
    tool = Tool("pick", "", only({"x": {"enum": ["a", "b"]}}))
    choice = ToolChoice("tool", "pick", parallel=False)
    events = await reply_to(serve(), ask("hi", tools=(WEATHER, tool), tool_choice=choice, max_tokens=300))
    ((name, arguments),) = blocks(events)
    assert name == "pick"
    assert arguments.replace(" ", "") in ('{"x":"a"}', '{"x":"b"}')
    assert ends(events) == [("tool_use", None)]


async def test_a_format_holds_the_answer_to_its_schema(serve):
    schema = {
        "type": "object",
        "properties": {"ok": {"type": "boolean"}},
        "required": ["ok"],
        "additionalProperties": False,
    }
    events = await reply_to(serve(), ask("hi", format=OutputFormat(schema)))
    ((kind, text),) = blocks(events)
    assert kind == "text"
    assert text.replace(" ", "") in ('{"ok":true}', '{"ok":false}')


async def test_a_format_together_with_tools_is_refused(serve):
    with pytest.raises(ApiError, match="cannot be used together") as caught:
        await serve().open(call(ask("hi", tools=(WEATHER,), format=OutputFormat())))
    assert caught.value.status == 400


async def test_a_schema_that_cannot_be_used_is_refused_before_anything_is_sent(serve):
    backend = serve()
    tool = Tool("bad", "", {"type": "object", "properties": {"x": {"$ref": "https://example.org/x"}}}, strict=True)
    with pytest.raises(ApiError, match="bad") as caught:
        await backend.open(call(ask("hi", tools=(tool,))))
    assert (caught.value.status, backend.load) == (400, 0)


# -- the prompt cache ---------------------------------------------------------------------------------------


def marked(*texts: str, ttl: str = "5m"):
    last = len(texts) - 1
    turn = Turn("user", tuple(Text(t, CacheMarker(ttl) if i == last else None) for i, t in enumerate(texts)))
    return ask(turns=(turn,), max_tokens=3)


async def test_a_marked_prompt_is_written_and_then_read(serve):
    backend = serve()
    first = (await reply_to(backend, marked("x" * 200)))[0].usage
    second = (await reply_to(backend, marked("x" * 200)))[0].usage
    assert (first.cache_read, first.cache_write_5m) == (0, 206)
    assert (second.cache_read, second.cache_write_5m, second.engine_cached) == (206, 0, 208)
    assert first.prompt == second.prompt == 217


async def test_what_the_engine_has_lost_is_not_counted_as_read(serve):
    backend = serve(lab=playback_lab("abc", num_blocks=16))
    await reply_to(backend, marked("x" * 200))
    await reply_to(backend, ask("y" * 200, max_tokens=3))
    usage = (await reply_to(backend, marked("x" * 200)))[0].usage
    assert usage.cache_read == usage.engine_cached < 206
    assert usage.cache_read + usage.cache_write_5m == 206


async def test_an_unmarked_prompt_counts_no_reads_although_the_engine_had_it(serve):
    backend = serve()
    await reply_to(backend, ask("x" * 200, max_tokens=3))
    usage = (await reply_to(backend, ask("x" * 200, max_tokens=3)))[0].usage
    assert (usage.cache_read, usage.uncached) == (0, usage.prompt)
    assert usage.engine_cached > 150


@pytest.mark.parametrize(("protocol", "accounting"), [("openai", "breakpoints"), ("anthropic", "engine")])
async def test_reads_can_be_counted_as_the_engine_had_them(serve, protocol, accounting):
    backend = serve(cache_accounting=accounting)
    for _ in range(2):
        usage = (await reply_to(backend, ask("x" * 200, max_tokens=3, protocol=protocol)))[0].usage
    assert usage.cache_read == usage.engine_cached > 150
    assert usage.uncached == usage.prompt - usage.cache_read


async def test_a_second_request_reads_nothing_before_the_first_has_begun(serve):
    backend = serve()
    first = await backend.open(call(marked("x" * 200)))
    second = await backend.open(call(marked("x" * 200)))
    usages = [(await read(generation))[0].usage for generation in (first, second)]
    assert [usage.cache_read for usage in usages] == [0, 0]
    assert [usage.cache_write_5m for usage in usages] == [206, 206]


async def test_credentials_and_requests_of_other_salts_share_nothing(serve):
    backend = serve()
    for salt in ("a", "b"):
        usage = (await reply_to(backend, marked("x" * 200), salt=salt))[0].usage
        assert (usage.cache_read, usage.engine_cached) == (0, 0)
    usage = (await reply_to(backend, replace(marked("x" * 200), cache_salt="own"), salt="a"))[0].usage
    assert usage.engine_cached == 0


async def test_automatic_caching_marks_the_last_block(serve):
    backend = serve()
    conversation = ask("x" * 200, max_tokens=3, auto_cache=CacheMarker("1h"))
    usage = (await reply_to(backend, conversation))[0].usage
    assert (usage.cache_write_1h, usage.cache_write_5m) == (206, 0)


async def test_diagnostics_say_why_a_prefix_was_missed(serve):
    backend = serve()
    first = ask("x" * 100, max_tokens=3, wants_diagnostics=True)
    assert (await reply_to(backend, first, message_id="msg_a"))[0].diagnostics is None
    changed = ask("x" * 50 + "y" * 50, max_tokens=3, wants_diagnostics=True, previous_message_id="msg_a")
    reason = (await reply_to(backend, changed))[0].diagnostics["cache_miss_reason"]
    assert reason == {"type": "messages_changed", "cache_missed_input_tokens": 100 + len("user: \nassistant:")}
    grown = ask("x" * 100, "ok", "more", max_tokens=3, wants_diagnostics=True, previous_message_id="msg_a")
    assert (await reply_to(backend, grown))[0].diagnostics is None


# -- limits -------------------------------------------------------------------------------------------------


def small(**settings):
    return playback_lab("abc" * 100, max_model_len=100), settings


async def test_a_prompt_that_leaves_no_room_is_refused_with_the_numbers(serve):
    backend = serve(lab=small()[0], overflow="stop")
    with pytest.raises(ApiError, match=r"^prompt is too long: 117 tokens > 99 maximum$") as caught:
        await backend.open(call(ask("x" * 100)))
    assert (caught.value.status, backend.load) == (400, 0)


async def test_text_that_could_never_fit_is_refused_before_it_is_tokenized(serve, monkeypatch):
    backend = serve()
    monkeypatch.setattr(backend._preparation.renderer.encoder, "encode", None)
    with pytest.raises(ApiError, match=r"^prompt is too long: 200000 tokens > 4095 maximum \(at least"):
        await backend.open(call(ask("x" * 200_000)))


async def test_too_many_tokens_asked_for_are_refused_with_the_three_numbers(serve):
    backend = serve(lab=small()[0])
    message = (
        r"^input length and `max_tokens` exceed context limit: 20 \+ 81 > 100, "
        r"decrease input length or `max_tokens` and try again$"
    )
    with pytest.raises(ApiError, match=message):
        await backend.open(call(ask("xxx", max_tokens=81)))
    assert len(blocks(await reply_to(backend, ask("xxx", max_tokens=80)))[0][1]) == 80


async def test_the_other_setting_serves_and_stops_at_the_contexts_end(serve):
    backend = serve(lab=small()[0], overflow="stop")
    events = await reply_to(backend, ask("xxx", max_tokens=1000))
    assert (len(blocks(events)[0][1]), ends(events)) == (80, [("context_window", None)])


async def test_the_pool_limits_the_context_too(serve):
    backend = serve(lab=playback_lab("abc" * 100, num_blocks=4), overflow="stop")
    assert (await backend.models())[0].max_input_tokens == 63
    events = await reply_to(backend, ask("xxx", max_tokens=None))
    assert (events[-1].usage.prompt + events[-1].usage.output, ends(events)) == (64, [("context_window", None)])


@given(st.integers(0, 300), st.one_of(st.none(), st.integers(0, 300)), st.sampled_from(["refuse", "stop"]))
def test_what_is_granted_always_fits(prompt, wanted, overflow):
    try:
        granted, capped = room_for(prompt, wanted, 200, overflow)
    except ApiError:
        assert prompt >= 200 or (overflow == "refuse" and prompt + wanted > 200)
        return
    assert prompt + granted <= 200
    assert capped == (wanted is None or granted < wanted)


@pytest.mark.parametrize("sampling", [{"temperature": -1}, {"n": 500}, {"unheard_of": 1}, {"n": 9}])
async def test_wrong_parameters_are_the_requests_fault(serve, sampling):
    backend = serve()
    with pytest.raises(ApiError) as caught:
        await backend.open(call(ask("hi", sampling=sampling)))
    assert (caught.value.status, backend.load) == (400, 0)


async def test_a_stopped_engine_is_not_the_requests_fault():
    lab = playback_lab("x")
    backend = EngineBackend(lab, Settings())
    lab.close()
    with pytest.raises(ApiError) as caught:
        await backend.open(call(ask("hi")))
    assert (caught.value.status, caught.value.should_retry) == (503, True)


async def test_an_engine_that_stops_in_the_middle_ends_the_reply_with_an_error():
    lab = llmlab.open("mock")
    backend = EngineBackend(lab, Settings())
    generation = await backend.open(call(ask("hi", max_tokens=3000)))
    await anext(aiter(generation))
    lab.close()
    with pytest.raises(ApiError) as caught:
        await read(generation)
    assert caught.value.status == 503
    assert backend.load == 0


# -- leaving ------------------------------------------------------------------------------------------------


async def test_leaving_early_stops_the_engine_and_frees_its_blocks(serve):
    backend = serve()
    generation = await backend.open(call(ask("hi", max_tokens=3500)))
    async for event in generation:
        if isinstance(event, BlockDelta):
            break
    assert backend.load == 1
    await generation.aclose()
    assert backend.load == 0
    await until(lambda: backend.engine.pool.num_used == 0)
    await generation.aclose()


async def test_a_reply_that_was_never_read_can_be_closed(serve):
    backend = serve()
    generation = await backend.open(call(ask("hi", max_tokens=3500)))
    await generation.aclose()
    await until(lambda: backend.engine.pool.num_used == 0 and not backend.engine.scheduler.has_work)
    assert backend.load == 0


async def test_cancelling_the_reader_frees_everything(serve):
    backend = serve()

    generation = await backend.open(call(ask("hi", max_tokens=3500)))
    reader = asyncio.create_task(read(generation))
    await until(lambda: backend.engine.pool.num_used > 0)
    reader.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reader
    await until(lambda: backend.engine.pool.num_used == 0)
    assert backend.load == 0


async def test_closing_a_reply_under_its_reader_ends_it_with_an_error(serve):
    backend = serve()
    generation = await backend.open(call(ask("hi", max_tokens=3500)))
    reader = asyncio.create_task(read(generation))
    await until(lambda: backend.engine.pool.num_used > 0)
    await generation.aclose()
    with pytest.raises(ApiError, match="aborted"):
        await reader
    assert (backend.load, backend.engine.pool.num_used) == (0, 0)


async def test_closing_the_backend_ends_what_is_open(serve):
    backend = serve()
    generation = await backend.open(call(ask("hi", max_tokens=3500)))
    reader = asyncio.create_task(anext(aiter(generation)))
    await reader
    await backend.aclose()
    assert backend.load == 0
    await until(lambda: backend.engine.pool.num_used == 0)


# -- counting, figures, trace -------------------------------------------------------------------------------


async def test_counting_tokens_agrees_with_the_prompt_of_a_reply(serve):
    backend = serve()
    conversation = ask("hello", system=(Text("Be brief."),), tools=(WEATHER,), max_tokens=3)
    counted = await backend.count_tokens(conversation)
    assert counted == ((await reply_to(backend, conversation))[0].usage.prompt,) * 2


async def test_context_edits_are_carried_out_counted_and_reported(serve):
    backend = serve()
    turns = [Turn("user", (Text("look"),))]
    for i in range(4):
        turns.append(Turn("assistant", (ToolUse(f"id{i}", "weather", {}),)))
        turns.append(Turn("user", (ToolResult(f"id{i}", (Text("x" * 300),)),)))
    conversation = ask(turns=tuple(turns), max_tokens=3, edits=(ClearToolUses(trigger=100, keep=1),))
    after, before = await backend.count_tokens(conversation)
    events = await reply_to(backend, conversation)
    assert events[0].usage.prompt == after < before - 600
    (applied,) = events[-1].applied_edits
    assert (applied["cleared_tool_uses"], applied["cleared_input_tokens"]) == (3, before - after)


async def test_figures_for_a_dashboard_come_from_the_engine(serve):
    backend = serve()
    for _ in range(2):
        await reply_to(backend, ask("x" * 100, max_tokens=5))
    gauges = backend.gauges()
    assert set(gauges) == {"running", "waiting", "kv_usage", "preemptions", "queries", "hits"}
    assert (gauges["queries"], gauges["hits"], gauges["running"]) == (2 * 117.0, 112.0, 0.0)


async def test_the_trace_joins_the_exchange_to_its_engine_requests(serve):
    backend = serve("same", "some")
    request = call(ask("hi", sampling={"n": 2}, protocol="openai"))
    await read(await backend.open(request))
    events = backend.engine.recorder.snapshot()
    submitted = [event.request_id for event in events if isinstance(event, RequestSubmitted)]
    links = [event for event in events if isinstance(event, WireLink)]
    assert [link.other_id for link in links] == submitted
    assert {(link.wire_id, link.relation) for link in links} == {(request.wire_id, "engine")}
    spans = [(event.name, event.request_id) for event in events if isinstance(event, Span)]
    assert spans == [("render template", submitted[0]), ("tokenize", submitted[0])]
    assert "render" in {event.name for event in events if isinstance(event, Stage)}


async def test_reading_the_vocabulary_and_compiling_a_grammar_are_stages_of_their_own(serve):
    backend = serve(CALL)
    for _ in range(2):
        await reply_to(backend, ask("hi", tools=(WEATHER,)))
    await reply_to(backend, ask("hi", format=OutputFormat()))
    await reply_to(backend, ask("hi"))
    names = ("read vocabulary", "compile grammar")
    events = backend.engine.recorder.snapshot()
    stages = [(event.name, event.reason) for event in events if isinstance(event, Stage) and event.name in names]
    first, again = ("compile grammar", "first use"), ("compile grammar", "cached")
    assert stages == [("read vocabulary", "first use of a grammar"), first, again, first]


@settings(max_examples=15, deadline=None)
@given(st.lists(st.sampled_from(["text", "stop", "length", "leave", "call"]), min_size=1, max_size=5))
def test_any_mix_of_requests_at_once_leaves_the_engine_empty(kinds):
    lab = playback_lab("word STOP more " * 20, num_blocks=80)
    backend = EngineBackend(lab, Settings(overflow="stop"))

    async def one(kind: str) -> None:
        sampling = {"stop": ("STOP",)} if kind == "stop" else {}
        tools = (WEATHER,) if kind == "call" else ()
        generation = await backend.open(
            call(ask("hi", max_tokens=50 if kind == "length" else 200, sampling=sampling, tools=tools))
        )
        async for event in generation:
            if kind == "leave" and isinstance(event, BlockDelta):
                break
            if isinstance(event, SampleEnd):
                assert event.stop in ("stop_sequence", "max_tokens")
        await generation.aclose()

    async def everyone() -> None:
        await asyncio.gather(*map(one, kinds))
        await until(lambda: not lab.engine.scheduler.has_work)

    asyncio.run(everyone())
    lab.close()
    assert (backend.load, lab.engine.pool.num_used) == (0, 0)


@pytest.mark.model
async def test_the_real_model_answers_and_its_second_turn_reads_the_first():
    with llmlab.open() as lab:
        backend = EngineBackend(lab, Settings(min_cache_tokens=16))
        question = "What is the capital of Italy? Answer with one word."
        first = await reply_to(backend, ask(question, max_tokens=12, auto_cache=CacheMarker()))
        answer = blocks(first)[0][1]
        assert "Rome" in answer
        second = await reply_to(
            backend, ask(question, answer, "And of France?", max_tokens=12, auto_cache=CacheMarker())
        )
        usage = second[0].usage
        assert usage.cache_read >= first[0].usage.cache_write_5m - 16 > 0
        assert usage.prompt > first[0].usage.prompt
