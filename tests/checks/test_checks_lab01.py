"""Lab 01: the right answers pass, the stubs and the usual wrong answers get the message meant for them."""

from __future__ import annotations

import pytest

from llmlab.checks import check
from llmlab.checks.lab01 import SESSION_CASES, TEXT_CASES, bytes_sent, tokens_of
from llmlab.client.assemble import Options, SystemText, assemble
from llmlab.client.entry import user
from llmlab.client.estimate import estimate_text
from llmlab.client.fields import explain

TOOL = {"name": "look", "description": "Look around.", "input_schema": {"type": "object"}}


@pytest.fixture(scope="module")
def request_body():
    """A request with tools, a system prompt, a message and a user id."""
    options = Options(max_tokens=8, user_id="somebody")
    return assemble("mock", [user("Hi")], options=options, system=[SystemText("Be brief.")], tools=[TOOL]).request


@pytest.fixture(scope="module")
def size(request_body):
    """Bytes of each field."""
    return {use.name: use.bytes for use in explain(request_body) if use.where == "body"}


def test_the_right_answers_pass(request_body, size):
    assert check.lab01.q1(size["tools"] + size["system"] + size["messages"], request_body)
    assert check.lab01.q2(tokens_of)
    assert check.lab01.q3(bytes_sent)


def test_the_stubs_do_not_pass(request_body):
    assert "replace the ..." in repr(check.lab01.q1(..., request_body))
    assert "replace the ..." in repr(check.lab01.q2(lambda text, is_json: ...))
    assert "replace the ..." in repr(check.lab01.q3(lambda first, turn, requests: ...))


def test_bytes_wrongly_added(request_body, size):
    policy = sum(size[name] for name in ("model", "max_tokens", "stream", "metadata"))
    content = size["tools"] + size["system"] + size["messages"]
    assert "the whole body" in repr(check.lab01.q1(content + policy + 1, request_body))
    assert "both kinds" in repr(check.lab01.q1(content + policy, request_body))
    assert "of kind policy" in repr(check.lab01.q1(policy, request_body))
    assert "the messages alone" in repr(check.lab01.q1(size["messages"], request_body))
    assert "the tools are missing" in repr(check.lab01.q1(size["messages"] + size["system"], request_body))
    assert "too large" in repr(check.lab01.q1(content + policy + 500, request_body))


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (lambda text, is_json: len(text) // (2 if is_json else 4), "rounds down"),
        (lambda text, is_json: -(-len(text) // (2 if is_json else 4)), "rounds up"),
        (lambda text, is_json: round(len(text) / (2 if is_json else 4)), "half goes up"),
        (lambda text, is_json: int(len(text) / 4 + 0.5), "every 2 characters"),
        (lambda text, is_json: int(len(text) / (4 if is_json else 2) + 0.5), "swapped"),
        (lambda text, is_json: int(len(text.encode()) / (2 if is_json else 4) + 0.5), "those are bytes"),
    ],
)
def test_tokens_wrongly_estimated(wrong, said):
    assert said in repr(check.lab01.q2(wrong))


@pytest.mark.parametrize(("text", "is_json"), TEXT_CASES)
def test_the_client_estimates_what_the_check_calls_right(text, is_json):
    assert estimate_text(text) == tokens_of(text, is_json)


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (lambda first, turn, requests: first + turn * (requests - 1), "the last request"),
        (lambda first, turn, requests: requests * first + turn * (requests - 1), "counted once"),
        (lambda first, turn, requests: requests * (first + turn * (requests - 1)), "as long as the last"),
        (lambda first, turn, requests: requests * first + turn * requests * (requests + 1) // 2, "from 0"),
        (lambda first, turn, requests: first + turn * requests * (requests - 1) // 2, "every time"),
    ],
)
def test_sessions_wrongly_added(wrong, said):
    assert said in repr(check.lab01.q3(wrong))


@pytest.mark.parametrize(("first", "turn", "requests"), SESSION_CASES)
def test_the_formula_is_the_sum(first, turn, requests):
    assert bytes_sent(first, turn, requests) == sum(first + turn * number for number in range(requests))
