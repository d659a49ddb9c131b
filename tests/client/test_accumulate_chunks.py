"""Chat Completions streams: their order, and what is put together from them."""

from __future__ import annotations

import json

import pytest

from llmlab.client.accumulate_chunks import OpenAIAccumulator
from llmlab.client.chunk_lifecycle import DONE, ChunkLifecycle
from llmlab.client.stream_errors import ProtocolViolation


def chunk(delta: dict | None = None, finish: str | None = None, index: int = 0, **fields) -> dict:
    choices = [] if delta is None else [{"index": index, "delta": delta, "finish_reason": finish}]
    return {"id": "c1", "object": "chat.completion.chunk", "model": "mock", "choices": choices} | fields


def call(index: int, arguments: str, **fields) -> dict:
    function = {"arguments": arguments} | ({"name": fields.pop("name")} if "name" in fields else {})
    return {"tool_calls": [{"index": index, "function": function} | fields]}


ROLE = chunk({"role": "assistant", "content": ""})
STOP = chunk({}, "stop")


def run(*chunks):
    accumulator, lifecycle = OpenAIAccumulator(), ChunkLifecycle()
    for each in chunks:
        lifecycle.check(each)
        if each != DONE:
            accumulator.add(each)
    return accumulator.completion, lifecycle.is_complete


def test_content_is_appended_and_usage_taken_from_the_last_chunk():
    usage = {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5}
    chunks = [ROLE, chunk({"content": "a"}), chunk({"content": "b"}), STOP, chunk(usage=usage), DONE]
    done, is_complete = run(*chunks)
    assert (done.choices[0].content, done.choices[0].finish_reason, done.usage, is_complete) == (
        "ab",
        "stop",
        usage,
        True,
    )


def test_parallel_calls_are_parsed_once_at_the_end():
    value = {"x": "é😀"}
    text = json.dumps(value)
    parts = [call(0, text[:i], id="a", name="f") if i == 4 else call(0, text[4:]) for i in (4, 5)]
    chunks = [ROLE, *map(chunk, parts), chunk(call(1, "", id="b", name="g")), chunk({}, "tool_calls"), DONE]
    choice = run(*chunks)[0].choices[0]
    assert [(c.id, c.name, c.arguments) for c in choice.tool_calls] == [("a", "f", value), ("b", "g", {})]
    assert choice.may_run_tools


@pytest.mark.parametrize("text", ['{"a"', '{"a":1}', ""])
def test_calls_of_a_cut_answer_may_not_run(text):
    choice = run(ROLE, chunk(call(0, text, id="a", name="f")), chunk({}, "length"), DONE)[0].choices[0]
    assert (choice.tool_calls[0].arguments, choice.tool_calls[0].text, choice.may_run_tools) == (None, text, False)


def test_samples_interleave():
    second = chunk({"role": "assistant", "content": "y"}, index=1)
    chunks = [ROLE, second, chunk({"content": "x"}), chunk({}, "stop", 1), STOP, DONE]
    done, is_complete = run(*chunks)
    assert ([done.choices[i].content for i in (0, 1)], is_complete) == (["x", "y"], True)


def test_reasoning_is_kept_apart():
    choice = run(ROLE, chunk({"reasoning_content": "h"}), chunk({"reasoning": "m"}), STOP, DONE)[0].choices[0]
    assert (choice.reasoning, choice.content) == ("hm", "")


def test_not_complete_without_the_end_marker():
    assert not run(ROLE, STOP)[1]


def test_not_complete_without_a_finish_reason():
    assert not run(ROLE, DONE)[1]


@pytest.mark.parametrize(
    ("chunks", "problem"),
    [
        ([ROLE, ROLE], "repeats its role"),
        ([chunk({"content": "a"})], "begins without a role"),
        ([ROLE, STOP, chunk({"content": "a"})], "went on after"),
        ([ROLE, STOP, DONE, STOP], r"after \[DONE\]"),
        ([{"choices": [{"delta": {}}]}], "no index"),
        ([{"choices": [{"index": 0}]}], "no delta"),
        (["text"], "not a JSON object"),
        ([{"error": {}}], "list of choices"),
        ([ROLE, chunk({"tool_calls": [{"id": "a"}]})], "index None"),
        ([ROLE, chunk({"tool_calls": 5})], "not a list"),
        ([ROLE, chunk({"tool_calls": [{"index": 0, "id": "a", "function": "f"}]})], "not an object"),
        ([ROLE, chunk({}, ["stop"])], "not a string"),
        ([ROLE, chunk(call(1, "", id="a"))], "index 1 where at most 0"),
        ([ROLE, chunk(call(0, ""))], "id in its first fragment"),
        ([ROLE, chunk(call(0, "", id="a")), chunk(call(0, "", id="a"))], "id in its first fragment"),
    ],
)
def test_violations_are_named(chunks, problem):
    with pytest.raises(ProtocolViolation, match=problem):
        run(*chunks)
