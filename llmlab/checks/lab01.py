"""Checks of lab 01, a request field by field."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from llmlab.api.sse import to_json
from llmlab.checks.judge import judge_function, judge_number
from llmlab.checks.verdict import Verdict
from llmlab.client.fields import explain

TEXT_CASES = (
    ("Name the capital of France.", False),
    ("x" * 82, False),
    ("x" * 41, False),
    ("缓存保存提示词的键和值", False),
    ('{"path":"a.py"}', True),
    ("[1,2,3,4,5,6,7]", True),
    ("", False),
)
SESSION_CASES = ((2_000, 1_000, 1), (2_000, 1_000, 2), (2_000, 1_000, 40), (500, 0, 3), (0, 10, 5))


def q1(answer: Any, request: Mapping[str, Any]) -> Verdict:
    """How many bytes of a request belong to fields the model reads?"""
    uses = [use for use in explain(request) if use.where == "body"]
    content = sum(use.bytes for use in uses if use.kind == "content")
    policy = sum(use.bytes for use in uses if use.kind == "policy")
    size = {use.name: use.bytes for use in uses}
    mistakes = [
        (len(to_json(request).encode()), "that is the whole body; model, max_tokens and others are not read."),
        (policy, "those are the fields of kind policy: they say how the request is handled."),
        (policy + content, "that adds up both kinds."),
        (size.get("messages"), "those are the messages alone; tools and system are written into the prompt too."),
        (size.get("messages", 0) + size.get("system", 0), "the tools are missing; they come first in the prompt."),
        (sum(use.tokens for use in uses), "those are estimated tokens; the question is about bytes."),
    ]
    because = "tools, system and messages, keys and markers included; the rest never reaches the model."
    return judge_number(answer, content, mistakes, because=because, hint="Add up use.bytes where use.kind is content.")


def q2(function: Any) -> Verdict:
    """A client's estimate of the tokens of a text."""
    mistakes = [
        (lambda text, is_json: len(text) // (2 if is_json else 4), "that rounds down; 82 / 4 = 20.5 becomes 21."),
        (
            lambda text, is_json: -(-len(text) // (2 if is_json else 4)),
            "that rounds up; a quarter of a token is dropped.",
        ),
        (
            lambda text, is_json: round(len(text) / (2 if is_json else 4)),
            "round() takes 20.5 to 20: half goes up here.",
        ),
        (lambda text, is_json: _half_up(len(text) / 4), "JSON has a token for every 2 characters in this estimate."),
        (lambda text, is_json: _half_up(len(text) / (4 if is_json else 2)), "the two quotients are swapped."),
        (
            lambda text, is_json: _half_up(len(text.encode()) / (2 if is_json else 4)),
            "those are bytes; the estimate divides characters, which is why it is so low for Chinese.",
        ),
        (lambda text, is_json: len(text) / (2 if is_json else 4), "nearly: round to whole tokens, half up."),
    ]
    because = "one division, no vocabulary: good enough between two counts of the server."
    return judge_function(function, tokens_of, TEXT_CASES, mistakes, because=because)


def q3(function: Any) -> Verdict:
    """Bytes sent by a session that repeats its history."""
    mistakes = [
        (lambda first, turn, requests: first + turn * (requests - 1), "that is the last request; add up all of them."),
        (
            lambda first, turn, requests: requests * first + turn * (requests - 1),
            "each turn is counted once; it is sent again with every later request.",
        ),
        (
            lambda first, turn, requests: requests * (first + turn * (requests - 1)),
            "that takes every request to be as long as the last; the average turn is sent half as often.",
        ),
        (
            lambda first, turn, requests: requests * first + turn * requests * (requests + 1) // 2,
            "nearly: the first request holds no turn yet, so the sum runs from 0 to requests - 1.",
        ),
        (
            lambda first, turn, requests: first + turn * requests * (requests - 1) // 2,
            "the first part is sent every time too.",
        ),
    ]
    because = "requests times the first, and 0 + 1 + ... + (requests - 1) turns: the square of the session's length."
    return judge_function(function, bytes_sent, SESSION_CASES, mistakes, because=because)


def tokens_of(text: str, is_json: bool) -> int:
    """Characters divided by 4, or by 2 for JSON, rounded half up."""
    return _half_up(len(text) / (2 if is_json else 4))


def bytes_sent(first: int, turn: int, requests: int) -> int:
    """Bytes of ``requests`` requests of which each holds a turn more than the one before."""
    return requests * first + turn * requests * (requests - 1) // 2


def _half_up(value: float) -> int:
    return int(value + 0.5)
