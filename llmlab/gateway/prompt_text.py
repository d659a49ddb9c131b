"""A conversation as the messages of a chat template: what each block becomes as text."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from llmlab.api.conversation import (
    Block,
    CacheMarker,
    Conversation,
    Text,
    Thinking,
    Tool,
    ToolResult,
    ToolUse,
    Turn,
)
from llmlab.gateway.signatures import open_loop
from llmlab.gateway.tool_calls import CLOSE, OPEN

THINK_OPEN, THINK_CLOSE = "<think>\n", "\n</think>\n\n"
RESULT_OPEN, RESULT_CLOSE = "<tool_response>\n", "\n</tool_response>"
TOOLS_BEGIN = (
    "You may call functions to help with the user's request. Their signatures are given as one JSON object per line "
    "within <tools></tools>:\n<tools>\n"
)
TOOLS_END = (
    "</tools>\nTo call a function, answer with a JSON object that holds its name and its arguments, within "
    f"<tool_call></tool_call>:\n{OPEN}\n"
    '{"name": <function name>, "arguments": <arguments as a JSON object>}\n'
    f"{CLOSE}"
)


@dataclass(frozen=True, slots=True)
class Part:
    """Text of one block. ``counts``: it is a position for cache breakpoints (fixed wording and thinking are not)."""

    text: str
    marker: CacheMarker | None = None
    counts: bool = True


@dataclass(slots=True)
class Message:
    """One message of a chat template, as the parts its content is put together from."""

    role: str
    parts: list[Part] = field(default_factory=list)

    @property
    def content(self) -> str:
        """The whole content."""
        return "".join(part.text for part in self.parts)


def tool_json(tool: Tool) -> dict[str, Any]:
    """A tool as templates and models know it, keys of its schema in the order in which they came."""
    function = {"name": tool.name, "description": tool.description, "parameters": dict(tool.input_schema)}
    return {"type": "function", "function": function}


def messages_of(
    conversation: Conversation, *, own_tools: bool, system_first: bool, system_turns: bool
) -> list[Message]:
    """The messages. ``own_tools``: describe the tools in the system message, because the template does not.

    ``system_first``: the template takes a system message at the start; else it begins the first user message.
    ``system_turns``: the template takes system messages anywhere; else they join the user's text before them, labelled.
    """
    system = Message("system" if system_first else "user", [*(_tool_parts(conversation.tools) if own_tools else ())])
    _join(system, [_part(text) for text in conversation.system], gap="\n\n")
    messages = [system] if system.parts else []
    open_turns = open_loop(conversation.turns)
    for i, turn in enumerate(conversation.turns):
        parts = list(_parts(turn, i in open_turns))
        if turn.role == "system" and not system_turns:
            _into_user(messages, parts)
        elif messages and turn.role == "user" and messages[-1].role == "user":
            _join(messages[-1], parts, gap="\n\n")
        else:
            messages.append(Message(turn.role))
            _join(messages[-1], parts)
    return messages


def _tool_parts(tools: tuple[Tool, ...]) -> Iterator[Part]:
    if tools:
        yield Part(TOOLS_BEGIN, counts=False)
        for tool in tools:
            yield Part(json.dumps(tool_json(tool), ensure_ascii=False) + "\n", tool.marker)
        yield Part(TOOLS_END, counts=False)


def _into_user(messages: list[Message], parts: list[Part]) -> None:
    if not messages or messages[-1].role != "user":
        messages.append(Message("user"))
    _join(messages[-1], [Part("[system message]\n", counts=False), *parts], gap="\n\n")


def _join(message: Message, parts: list[Part], gap: str = "\n") -> None:
    """Append parts; text that does not end a line is separated from what follows."""
    for part in parts:
        before = message.parts[-1] if message.parts else None
        if before is not None and before.text and not before.text[-1].isspace():
            message.parts.append(Part(gap, counts=False))
        message.parts.append(part)


def _parts(turn: Turn, in_open_loop: bool) -> Iterator[Part]:
    for block in turn.blocks:
        if not isinstance(block, Thinking):
            yield _part(block)
        elif in_open_loop and block.text:
            yield Part(THINK_OPEN + block.text.strip("\n") + THINK_CLOSE, counts=False)


def _part(block: Block) -> Part:
    if isinstance(block, ToolUse):
        call = {"name": block.name, "arguments": dict(block.input)}
        return Part(f"{OPEN}\n{json.dumps(call, ensure_ascii=False)}\n{CLOSE}", block.marker)
    if isinstance(block, ToolResult):
        text = "\n".join(part.text for part in block.content)
        failed = "Error: " if block.is_error else ""
        return Part(f"{RESULT_OPEN}{failed}{text}{RESULT_CLOSE}", block.marker)
    assert isinstance(block, Text)
    return Part(block.text, block.marker)
