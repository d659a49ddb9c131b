"""A sender that answers from a list and keeps what it was sent."""

from __future__ import annotations

import copy
from itertools import pairwise
from typing import Any

from llmlab.client.breakpoints import marker_problems
from llmlab.client.message import Message


def says(text: str, stop: str = "end_turn", **usage: int) -> Message:
    """An answer of text."""
    return Message(content=[{"type": "text", "text": text}], stop_reason=stop, usage=usage)


def wants(*calls: tuple[str, str, dict], stop: str = "tool_use", **usage: int) -> Message:
    """An answer that asks for tools: (id, name, arguments)."""
    blocks = [{"type": "tool_use", "id": i, "name": name, "input": arguments} for i, name, arguments in calls]
    return Message(content=blocks, stop_reason=stop, usage=usage)


class ScriptedSender:
    """Answers with what it was given, in order; an exception is raised instead. Checks each request it gets."""

    def __init__(self, *answers: Message | BaseException) -> None:
        self.answers = list(answers)
        self.requests: list[dict[str, Any]] = []
        self.wire_ids: list[str | None] = []

    def send(self, request: dict[str, Any], *, wire_id: str | None = None) -> Message:
        self.requests.append(copy.deepcopy(request))
        self.wire_ids.append(wire_id)
        check(request["messages"])
        assert marker_problems(request) == []
        answer = self.answers.pop(0)
        if isinstance(answer, BaseException):
            raise answer
        return answer

    def count_tokens(self, request: dict[str, Any]) -> int:
        return 1

    def last(self) -> list[dict[str, Any]]:
        """Content of the last message of the last request."""
        return self.requests[-1]["messages"][-1]["content"]


def check(messages: list[dict[str, Any]]) -> None:
    """What a strict server checks: roles alternate, every tool use is answered in the next message, results first."""
    assert messages[0]["role"] == messages[-1]["role"] == "user"
    assert all(one["role"] != other["role"] for one, other in pairwise(messages))
    for before, after in pairwise(messages):
        asked = [block["id"] for block in before["content"] if block["type"] == "tool_use"]
        kinds = [block["type"] for block in after["content"]]
        assert sorted(asked) == sorted(b["tool_use_id"] for b in after["content"] if b["type"] == "tool_result")
        assert "tool_result" not in kinds[len(asked) :]
    assert not any("partial_json" in block for message in messages for block in message["content"])
