"""Two ways of putting arguments together: one result, two costs."""

from __future__ import annotations

import json

import pytest

from llmlab.client.arguments import IncompleteArguments, JoinOnce, ParseEachTime, parse_arguments


def feed(joiner: JoinOnce, text: str, size: int = 8) -> JoinOnce:
    for i in range(0, len(text), size):
        joiner.add(text[i : i + size])
    return joiner


def body(num_chars: int) -> str:
    return json.dumps({"content": "x" * num_chars})


@pytest.mark.parametrize("kind", [JoinOnce, ParseEachTime])
@pytest.mark.parametrize("size", [1, 3, 8])
def test_both_give_the_arguments(kind, size):
    value = {"a": 'é😀\n"', "b": [1, 2.5, None], "c": {"d": "😀"}}
    assert feed(kind(), json.dumps(value), size).finish() == value


def test_joining_parses_every_byte_once():
    costs = [feed(JoinOnce(), body(n)) for n in (1_000, 10_000)]
    for joiner in costs:
        joiner.finish()
    assert [(j.num_parses, j.parsed_bytes) for j in costs] == [(1, len(body(n))) for n in (1_000, 10_000)]


def test_parsing_each_time_grows_with_the_square():
    small, large = (feed(ParseEachTime(), body(n)).parsed_bytes for n in (1_000, 2_000))
    assert small == pytest.approx(len(body(1_000)) ** 2 / 16, rel=0.05)
    assert large / small == pytest.approx(4, rel=0.05)


def test_parsing_each_time_shows_arguments_early():
    joiner = ParseEachTime()
    seen = []
    for part in ['{"pa', 'th": "/a', "b", '", "n', '": 1', "2}"]:
        joiner.add(part)
        seen.append(joiner.value)
    assert seen[1:4] == [{"path": "/a"}, {"path": "/ab"}, {"path": "/ab"}]
    assert seen[-1] == {"path": "/ab", "n": 12}


def test_empty_text_is_an_empty_object():
    assert parse_arguments("") == {}


@pytest.mark.parametrize(
    "text", ["{", "[]", '"a"', "nope", '{"a":Infinity}', "[" * 100_000, '{"a":' + "9" * 5000 + "}"]
)
def test_anything_else_is_refused_with_its_text(text):
    with pytest.raises(IncompleteArguments) as caught:
        parse_arguments(text)
    assert caught.value.text == text
