"""Thinking is a phase of its own: bounded, signed, counted, and never mixed up with the answer."""

from __future__ import annotations

import asyncio
import random

import pytest
from playback import CLOSING, playback_lab
from replies import ask, blocks, call, ends, reply_to

import llmlab
from llmlab.api.conversation import OutputFormat, Text, Thinking, ThinkingMode, Tool, ToolResult, ToolUse, Turn
from llmlab.api.errors import ApiError
from llmlab.api.reply import BlockDelta, BlockStop
from llmlab.engine.run import Output
from llmlab.gateway.encoding import TextEncoder
from llmlab.gateway.engine_backend import EngineBackend
from llmlab.gateway.settings import Settings
from llmlab.gateway.thinking import closed_thinking
from llmlab.models.byte_tokenizer import ByteTokenizer
from llmlab.trace.events import RequestSubmitted, WireLink

THOUGHT = "Two and two make four.</think>"


@pytest.fixture
def thinker():
    """Opens backends that think ``thought`` and then answer."""
    labs = []

    def make(*answers: str, thought: str = THOUGHT, **settings) -> EngineBackend:
        labs.append(playback_lab(*answers, thought=thought, **settings.pop("lab", {})))
        return EngineBackend(labs[-1], Settings(**settings))

    yield make
    for lab in labs:
        lab.close()
        assert lab.engine.pool.num_used == 0
        assert lab.trace.check() == []


def wonder(*texts: str, budget: int | None = 100, display: str = "summarized", **fields):
    return ask(*texts or ("What is 2+2?",), thinking=ThinkingMode(budget, display), **fields)


def signature(events) -> str:
    """Of the first block."""
    return next(event.signature for event in events if isinstance(event, BlockStop))


def prompts(backend) -> list[str]:
    """Of all engine requests so far."""
    events = backend.engine.recorder.snapshot()
    return [bytes(event.prompt_token_ids).decode() for event in events if isinstance(event, RequestSubmitted)]


async def test_thinking_is_a_block_before_the_answer(thinker):
    backend = thinker("Four.")
    events = await reply_to(backend, wonder())
    assert blocks(events) == [("thinking", "Two and two make four."), ("text", "Four.")]
    assert ends(events) == [("end_turn", None)]


async def test_the_answer_goes_on_from_the_closed_thinking(thinker):
    backend = thinker("Four.")
    await reply_to(backend, wonder("Q"))
    assert prompts(backend) == [
        "user: Q\nassistant:<think>\n",
        "user: Q\nassistant:<think>\nTwo and two make four.\n</think>\n\n",
    ]


async def test_the_answers_prompt_comes_from_the_prefix_cache(thinker):
    backend = thinker("Four.")
    await reply_to(backend, wonder("x" * 300))
    assert backend.engine.trace.requests.num_cached_tokens.tolist()[1] >= 300


async def test_usage_counts_both_phases_and_not_the_mark_that_was_put_in(thinker):
    usage = (await reply_to(thinker("Four."), wonder("Q")))[-1].usage
    assert usage.prompt == len("user: Q\nassistant:<think>\n")
    assert usage.thinking == len(THOUGHT)
    assert usage.output == len(THOUGHT) + len("Four.") + 1


async def test_a_used_up_budget_closes_the_thinking(thinker):
    events = await reply_to(thinker("Four."), wonder(budget=7))
    assert blocks(events) == [("thinking", "Two and"), ("text", "Four.")]
    assert events[-1].usage.thinking == 7


async def test_thinking_without_a_budget_takes_the_servers(thinker):
    events = await reply_to(thinker("Four.", thinking_budget=3), wonder(budget=None))
    assert blocks(events)[0] == ("thinking", "Two")


@pytest.mark.parametrize("max_tokens", [2, 5, 12, 31, 33])
async def test_both_phases_together_keep_to_max_tokens(thinker, max_tokens):
    events = await reply_to(thinker("Four and nothing else."), wonder(max_tokens=max_tokens))
    assert events[-1].usage.output == max_tokens
    assert ends(events) == [("max_tokens", None)]
    assert blocks(events)[-1][0] == "text"


async def test_a_single_token_leaves_no_room_to_think(thinker):
    backend = thinker("Four.", thought="never asked")
    events = await reply_to(backend, wonder("Q", max_tokens=1))
    assert prompts(backend) == ["user: Q\nassistant:"]
    assert events[-1].usage.thinking == 0


async def test_a_model_that_ends_its_turn_while_thinking_still_answers(thinker):
    events = await reply_to(thinker("Four.", thought="Hm."), wonder())
    assert blocks(events) == [("thinking", "Hm."), ("text", "Four.")]


async def test_closing_a_reply_under_its_reader_while_it_thinks_starts_no_answer(thinker):
    backend = thinker("Four.", thought="and so on " * 300)
    generation = await backend.open(call(wonder(budget=2900, max_tokens=3000)))
    seen = []

    async def reading() -> None:
        async for event in generation:
            seen.append(event)

    reader = asyncio.create_task(reading())
    async with asyncio.timeout(20):
        while not seen:
            await asyncio.sleep(0.002)
    await generation.aclose()
    with pytest.raises(ApiError, match="aborted"):
        await reader
    assert len(prompts(backend)) == 1
    assert not any(isinstance(event, BlockStop) for event in seen)
    assert backend.load == 0


async def test_nothing_thought_gives_no_block(thinker):
    events = await reply_to(thinker("Four.", thought="</think>"), wonder())
    assert blocks(events) == [("text", "Four.")]
    assert events[-1].usage.thinking == len("</think>")


async def test_stop_strings_are_for_the_answer_only(thinker):
    events = await reply_to(thinker("It is four."), wonder(sampling={"stop": ("four",)}))
    assert blocks(events) == [("thinking", "Two and two make four."), ("text", "It is ")]
    assert ends(events) == [("stop_sequence", "four")]


async def test_a_closing_mark_in_the_answer_is_only_text(thinker):
    events = await reply_to(thinker("a</think>b"), wonder())
    assert blocks(events)[-1] == ("text", "a</think>b")


async def test_the_format_holds_for_the_answer_only(thinker):
    schema = {"type": "object", "properties": {"n": {"enum": [4]}}, "required": ["n"], "additionalProperties": False}
    events = await reply_to(thinker('{"n": 4}'), wonder(format=OutputFormat(schema)))
    assert blocks(events) == [("thinking", "Two and two make four."), ("text", '{"n": 4}')]


async def test_every_sample_thinks_for_itself(thinker):
    events = await reply_to(thinker("Four.", "Five."), wonder(sampling={"n": 2}, protocol="openai"))
    for sample, answer in enumerate(["Four.", "Five."]):
        assert blocks(events, sample) == [("thinking", "Two and two make four."), ("text", answer)]
    assert events[-1].usage.thinking == 2 * len(THOUGHT)


@pytest.mark.parametrize("seed", [7, 2**63 - 1, -(2**63)])
async def test_samples_that_thought_the_same_draw_their_answers_apart_and_repeatably(thinker, seed):
    backend = thinker("Four.")
    conversation = wonder(sampling={"n": 3, "seed": seed, "temperature": 1.0}, protocol="openai")
    for _ in range(2):
        await reply_to(backend, conversation)
    submitted = [e for e in backend.engine.recorder.snapshot() if isinstance(e, RequestSubmitted)]
    seeds = [event.params["seed"] for event in submitted if event.params["n"] == 1]
    assert len(set(seeds[:3])) == 3
    assert seeds[0] == seed
    assert seeds[3:] == seeds[:3]


async def test_both_engine_requests_are_linked_to_the_exchange(thinker):
    backend = thinker("Four.")
    await reply_to(backend, wonder())
    links = [event for event in backend.engine.recorder.snapshot() if isinstance(event, WireLink)]
    assert len({link.other_id for link in links}) == 2
    assert len({link.wire_id for link in links}) == 1


async def test_no_room_left_after_thinking_ends_the_reply_at_the_context(thinker):
    backend = thinker("Four.", thought="x" * 200, lab={"max_model_len": 64}, overflow="stop")
    events = await reply_to(backend, wonder("Q", budget=60, max_tokens=60))
    assert (len(blocks(events)), ends(events)) == (1, [("context_window", None)])


async def test_token_ids_cover_both_phases(thinker):
    events = await reply_to(thinker("Four."), wonder(return_token_ids=True))
    ids = [i for event in events if isinstance(event, BlockDelta) for i in event.token_ids]
    assert ids == [*THOUGHT.encode(), *b"Four.", 257]


# -- signatures ---------------------------------------------------------------------------------------------


def in_a_loop(thinking: Thinking):
    turns = (
        Turn("user", (Text("Q"),)),
        Turn("assistant", (thinking, ToolUse("a", "f", {}))),
        Turn("user", (ToolResult("a", (Text("4"),)),)),
    )
    return wonder(turns=turns, tools=(Tool("f"),))


async def test_signed_thinking_comes_back_into_the_prompt(thinker):
    backend = thinker("Four.")
    signed = Thinking("Two and two make four.", signature(await reply_to(backend, wonder())))
    await reply_to(backend, in_a_loop(signed))
    assert "<think>\nTwo and two make four.\n</think>\n\n<tool_call>" in prompts(backend)[-1]


async def test_changed_thinking_is_refused(thinker):
    backend = thinker("Four.")
    changed = Thinking("Two and two make five.", signature(await reply_to(backend, wonder())))
    with pytest.raises(ApiError, match=r"^messages\.1\.content\.0: .*cannot be modified"):
        await backend.open(call(in_a_loop(changed)))


async def test_counting_restores_hidden_thinking_as_serving_does(thinker):
    backend = thinker("Four.")
    hidden = in_a_loop(Thinking("", signature(await reply_to(backend, wonder(display="omitted")))))
    counted, _ = await backend.count_tokens(hidden)
    assert counted == (await reply_to(backend, hidden))[0].usage.prompt


async def test_hidden_thinking_comes_back_by_its_signature_alone(thinker):
    backend = thinker("Four.")
    hidden = Thinking("", signature(await reply_to(backend, wonder(display="omitted"))))
    await reply_to(backend, in_a_loop(hidden))
    assert "Two and two make four." in prompts(backend)[-1]


# -- closing ------------------------------------------------------------------------------------------------


def closed(text: str, ids: list[int]) -> list[int]:
    tokenizer = ByteTokenizer()
    return closed_thinking(Output("r", text=text, token_ids=ids), tokenizer, TextEncoder(tokenizer), (257,))


@pytest.mark.parametrize(
    ("text", "ids"),
    [
        ("so", [*b"so"]),
        ("so", [*b"so</think>"]),
        ("so", [*b"so", 257]),
        ("so\n", [*b"so\n</think>"]),
    ],
)
def test_thinking_is_closed_once_however_it_ended(text, ids):
    assert closed(text, ids) == [*b"so\n", *CLOSING]


@pytest.mark.model
def test_generated_tokens_are_kept_up_to_the_stop_string(model_path):
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(model_path)
    encoder, rng = TextEncoder(tokenizer), random.Random(0)
    for _ in range(30):
        ids = [rng.randrange(20, 40000) for _ in range(12)]
        text = tokenizer.decode(ids)
        stop = tokenizer.encode("</think>")
        found = closed_thinking(Output("r", text=text, token_ids=[*ids, *stop]), tokenizer, encoder, (2,))
        assert found[: len(ids)] == ids
        assert tokenizer.decode(found).endswith("\n</think>\n\n")


@pytest.mark.model
async def test_the_real_model_thinks_and_answers():
    with llmlab.open() as lab:
        backend = EngineBackend(lab, Settings())
        events = await reply_to(backend, wonder("What is the capital of France?", budget=16, max_tokens=24))
        assert [kind for kind, _ in blocks(events)] == ["thinking", "text"]
        assert 0 < events[-1].usage.thinking <= 16
        assert signature(events)
