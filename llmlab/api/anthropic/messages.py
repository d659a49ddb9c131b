"""The list of messages: merging of neighbours, order of roles, and how it may end (article A, section 2.3)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from llmlab.api.anthropic.blocks import Message
from llmlab.api.anthropic.content import Placed, read_content
from llmlab.api.anthropic.pairing import check_pairs
from llmlab.api.anthropic.validate import invalid
from llmlab.api.conversation import Text, Turn
from llmlab.api.errors import ApiError
from llmlab.api.rules import Rules

NO_PREFILL = "This model does not support assistant message prefill. The conversation must end with a user message."


@dataclass(slots=True)
class Merged:
    """Neighbouring messages of one role; ``path`` is that of the first of them."""

    path: str
    role: str
    placed: list[Placed] = field(default_factory=list)


def read_messages(messages: Sequence[Message], version: str, rules: Rules) -> tuple[tuple[Turn, ...], bool]:
    """``(turns, whether the last one is continued)``. Raises ``ApiError`` for a list the protocol forbids."""
    if not messages:
        raise invalid("messages", "at least one message is required")
    merged = _merge(messages, version, rules)
    _check_order(merged)
    check_pairs([(group.path, group.role, group.placed) for group in merged])
    if messages[-1].role == "assistant" and not rules.allow_prefill:
        raise ApiError("invalid_request_error", NO_PREFILL, param="messages")
    continued = merged[-1].role == "assistant"
    if continued:
        _check_prefill(merged[-1].placed)
    return tuple(Turn(group.role, tuple(item.block for item in group.placed)) for group in merged), continued


def _merge(messages: Sequence[Message], version: str, rules: Rules) -> list[Merged]:
    groups: list[Merged] = []
    previous = None
    for index, message in enumerate(messages):
        path = f"messages.{index}"
        if rules.strict_roles and message.role == previous:
            raise invalid(path, f"roles must alternate, but two {message.role!r} messages follow each other")
        previous = message.role
        placed = read_content(message, path, version)
        if not placed and _may_be_empty(messages, index):
            continue
        if not placed:
            text = "all messages must have non-empty content except for the optional final assistant message"
            raise invalid(path, text)
        if not groups or groups[-1].role != message.role:
            groups.append(Merged(path, message.role))
        groups[-1].placed += placed
    return groups


def _may_be_empty(messages: Sequence[Message], index: int) -> bool:
    return 0 < index == len(messages) - 1 and messages[index].role == "assistant"


def _check_order(merged: Sequence[Merged]) -> None:
    if merged[0].role != "user":
        raise invalid("messages", 'first message must use the "user" role')
    for index, group in enumerate(merged):
        if group.role != "system":
            continue
        if merged[index - 1].role != "user":
            raise invalid(group.path, "a `system` message must directly follow a `user` message")
        if index + 1 < len(merged) and merged[index + 1].role != "assistant":
            raise invalid(group.path, "a `system` message must be the last or be followed by an `assistant` message")


def _check_prefill(placed: Sequence[Placed]) -> None:
    last = placed[-1]
    if not isinstance(last.block, Text):
        raise invalid(last.path, "an `assistant` message that is to be continued must end with text")
    if last.block.text != last.block.text.rstrip():
        raise invalid(last.path, "final assistant content cannot end with trailing whitespace; strip it from the end")
