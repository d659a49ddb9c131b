"""The message list of a chat completion request as system prompt and turns."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from itertools import groupby
from typing import Any

from llmlab.api.conversation import Block, Text, ToolResult, ToolUse, Turn
from llmlab.api.openai.problems import invalid, shorten
from llmlab.api.openai.schema import AssistantMessage, Message, Part, SystemMessage, ToolCall, ToolMessage, UserMessage
from llmlab.api.openai.values import check_values


def read_messages(messages: list[Message]) -> tuple[tuple[Text, ...], tuple[Turn, ...]]:
    """``(system, turns)``: leading system messages are the system prompt, later ones system turns.

    Neighbours of one role become one turn; tool messages become results at the start of a user turn. Raises
    ``ApiError`` for content that is not text, arguments that are no JSON object, and calls and answers that do not
    belong together.
    """
    _check_pairs(messages)
    read = [(_role(message), tuple(_blocks(message, f"messages[{i}]"))) for i, message in enumerate(messages)]
    leading = next((i for i, message in enumerate(messages) if not isinstance(message, SystemMessage)), len(messages))
    system = tuple(block for _, blocks in read[:leading] for block in blocks if isinstance(block, Text))
    return system, tuple(_merge(read[leading:]))


def unused_fields(messages: list[Message]) -> Iterator[str]:
    """Paths of what messages carry that has no effect here."""
    names = ("name", "audio", "annotations", "reasoning_content", "reasoning", "parsed")
    for index, message in enumerate(messages):
        for name in names:
            if getattr(message, name, None):
                yield f"messages[{index}].{name}"
        if isinstance(message.content, list):
            for number, part in enumerate(message.content):
                if part.model_extra and part.model_extra.get("prompt_cache_breakpoint"):
                    yield f"messages[{index}].content[{number}].prompt_cache_breakpoint"


def _role(message: Message) -> str:
    if isinstance(message, SystemMessage):
        return "system"
    return "assistant" if isinstance(message, AssistantMessage) else "user"


def _merge(read: Iterable[tuple[str, tuple[Block, ...]]]) -> Iterator[Turn]:
    for role, group in groupby(read, key=lambda item: item[0]):
        yield Turn(role, tuple(block for _, blocks in group for block in blocks))


def _blocks(message: Message, path: str) -> Iterator[Block]:
    if isinstance(message, ToolMessage):
        yield ToolResult(message.tool_call_id, tuple(_texts(message.content, f"{path}.content")))
    elif isinstance(message, AssistantMessage):
        yield from _assistant_blocks(message, path)
    else:
        yield from _texts(message.content, f"{path}.content")


def _assistant_blocks(message: AssistantMessage, path: str) -> Iterator[Block]:
    if message.function_call is not None:
        raise invalid(f"{path}.function_call", "it is deprecated and not supported; use tool_calls")
    if message.content is None and message.refusal is None and not message.tool_calls:
        raise invalid(f"{path}.content", "an assistant message needs content, a refusal or tool_calls")
    if message.content is not None and not (message.content == "" and message.tool_calls):
        yield from _texts(message.content, f"{path}.content", ("text", "refusal"))
    if message.refusal:
        yield Text(message.refusal)
    for number, call in enumerate(message.tool_calls or ()):
        yield ToolUse(call.id, call.function.name, _arguments(call, f"{path}.tool_calls[{number}].function.arguments"))


def _texts(content: str | list[Part], path: str, kinds: tuple[str, ...] = ("text",)) -> Iterator[Text]:
    if isinstance(content, str):
        yield Text(content)
        return
    for number, part in enumerate(content):
        yield Text(_part_text(part, f"{path}[{number}]", kinds))


def _part_text(part: Part, path: str, kinds: tuple[str, ...]) -> str:
    if part.type not in kinds:
        raise invalid(f"{path}.type", f"'{shorten(part.type)}' cannot be read; this server's models take text only")
    fields = dict(part.model_extra or {})
    fields.pop("prompt_cache_breakpoint", None)
    text = fields.pop(part.type, None)
    if not isinstance(text, str):
        raise invalid(f"{path}.{part.type}", "it must be a string")
    if fields:
        raise invalid(path, f"unknown key '{shorten(next(iter(fields)))}'; a text part has type and text", None)
    return text


def _arguments(call: ToolCall, path: str) -> dict[str, Any]:
    """The arguments as an object. Empty text is taken as ``{}``: some clients write calls without arguments so."""
    try:
        value = json.loads(call.function.arguments or "{}")
    except (ValueError, RecursionError) as error:
        raise invalid(path, "it is not valid JSON") from error
    if not isinstance(value, dict):
        raise invalid(path, "it must be a JSON object")
    check_values(value, path)
    return value


def _check_pairs(messages: list[Message]) -> None:
    """Tool messages directly follow the calls they answer: every call once, before anything else comes."""
    open_calls: set[str] = set()
    asked = 0
    for index, message in enumerate(messages):
        if isinstance(message, ToolMessage):
            if message.tool_call_id not in open_calls:
                raise _stray(message, index)
            open_calls.remove(message.tool_call_id)
            continue
        _check_answered(open_calls, asked)
        open_calls, asked = _calls(message, index), index
    _check_answered(open_calls, asked)


def _calls(message: SystemMessage | UserMessage | AssistantMessage, index: int) -> set[str]:
    ids = [call.id for call in message.tool_calls or ()] if isinstance(message, AssistantMessage) else []
    if len(set(ids)) != len(ids):
        raise invalid(f"messages[{index}].tool_calls", "two calls have the same id")
    return set(ids)


def _stray(message: ToolMessage, index: int) -> Exception:
    name = shorten(message.tool_call_id)
    reason = f"'{name}' answers no open call; tool messages directly follow the assistant message with their calls"
    return invalid(f"messages[{index}].tool_call_id", reason)


def _check_answered(open_calls: set[str], asked: int) -> None:
    if open_calls:
        missing = ", ".join(sorted(map(shorten, open_calls))[:5])
        reason = f"each call needs a tool message right after it; missing for {missing}"
        raise invalid(f"messages[{asked}].tool_calls", reason)
