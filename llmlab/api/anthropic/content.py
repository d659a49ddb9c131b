"""Content blocks of one message: which may stand in which role, and what each becomes in the internal form."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from llmlab.api.anthropic import blocks as wire
from llmlab.api.anthropic.validate import invalid
from llmlab.api.anthropic.version import FIRST
from llmlab.api.conversation import Block, CacheMarker, Text, Thinking, ToolResult, ToolUse

ROLES = {
    "text": ("user", "assistant", "system"),
    "thinking": ("assistant",),
    "redacted_thinking": ("assistant",),
    "tool_use": ("assistant",),
    "tool_result": ("user",),
    "document": ("user", "assistant"),
    "search_result": ("user", "assistant"),
}
DIRECT_CALLER = {"type": "direct"}
"""What a call's ``caller`` says when the model itself asked for it."""


@dataclass(frozen=True, slots=True)
class Placed:
    """A block and the path under which it came, for messages about it."""

    path: str
    block: Block


def read_content(message: wire.Message, path: str, version: str) -> list[Placed]:
    """The blocks of a message in the internal form, without empty texts. Raises ``ApiError`` for one out of place."""
    found = []
    for index, block in enumerate(message.content):
        here = f"{path}.content.{index}"
        _check_supported(block, here)
        _check_role(block, message.role, here)
        _check_version(block, message.role, here, version)
        converted = _convert(block, f"{here}.{block.type}")
        if converted != Text(""):
            found.append(Placed(here, converted))
    return found


def ignored_parts(system: Sequence[wire.TextBlock], messages: Sequence[wire.Message]) -> Iterator[str]:
    """Paths of what blocks carry that has no effect here; what stands for its absence is left out."""
    yield from _ignored("system", system)
    for index, message in enumerate(messages):
        yield from _ignored(f"messages.{index}.content", message.content)


def _ignored(path: str, blocks: Sequence[wire.ContentBlock]) -> Iterator[str]:
    for index, block in enumerate(blocks):
        for name in ("citations", "caller", "toolset_name"):
            value = getattr(block, name, None)
            if value and value not in (wire.CitationsConfig(), DIRECT_CALLER):
                yield f"{path}.{index}.{name}"
        if isinstance(block, wire.ToolResultBlock):
            yield from _ignored(f"{path}.{index}.content", block.content)


def text_block(block: wire.TextBlock, path: str) -> Text:
    """Text with its marker. Raises ``ApiError`` for a marker on an empty text."""
    return _marked(block.text, block.cache_control, path)


def marker(control: wire.CacheControl | None) -> CacheMarker | None:
    """The cache breakpoint of a block, if it has one."""
    return CacheMarker(control.ttl) if control else None


def _marked(text: str, control: wire.CacheControl | None, path: str) -> Text:
    if control and not text:
        raise invalid(path, "cache_control cannot be set for empty text blocks")
    return Text(text, marker(control))


def _check_supported(block: object, path: str) -> None:
    if isinstance(block, wire.UnsupportedBlock):
        raise invalid(path, f"`{block.type}` blocks are not supported: the models of this server read text only")


def _check_role(block: wire.ContentBlock, role: str, path: str) -> None:
    allowed = ROLES[block.type]
    if role not in allowed:
        names = " or ".join(f"`{name}`" for name in allowed)
        raise invalid(path, f"`{block.type}` blocks can only be in {names} messages")


def _check_version(block: wire.ContentBlock, role: str, path: str, version: str) -> None:
    if version == FIRST:
        return
    if role == "assistant" and isinstance(block, wire.DocumentBlock):
        raise invalid(path, "`document` blocks cannot be in `assistant` messages in this API version")
    if role == "user" and isinstance(block, wire.TextBlock) and block.citations:
        raise invalid(f"{path}.text.citations", "citations must be empty in `user` messages in this API version")


def _convert(block: wire.ContentBlock, path: str) -> Block:
    match block:
        case wire.TextBlock():
            return text_block(block, path)
        case wire.ThinkingBlock():
            return Thinking(block.thinking, block.signature)
        case wire.RedactedThinkingBlock():
            return Thinking(block.data, redacted=True)
        case wire.ToolUseBlock():
            return ToolUse(block.id, block.name, block.input, marker(block.cache_control))
        case wire.ToolResultBlock():
            return _tool_result(block, path)
        case _:
            return _marked(_passage(block, path), block.cache_control, path)


def _tool_result(block: wire.ToolResultBlock, path: str) -> ToolResult:
    texts = []
    for index, part in enumerate(block.content):
        here = f"{path}.content.{index}"
        _check_supported(part, here)
        _check_unmarked(part, here)
        text = part.text if isinstance(part, wire.TextBlock) else _passage(part, here)
        texts.append(Text(text))
    return ToolResult(block.tool_use_id, tuple(texts), bool(block.is_error), marker(block.cache_control))


def _passage(block: wire.DocumentBlock | wire.SearchResultBlock, path: str) -> str:
    if isinstance(block, wire.SearchResultBlock):
        return _lines(block.title, block.source, *_texts(block.content, f"{path}.content"))
    source = block.source
    if isinstance(source, wire.UnsupportedSource):
        kinds = "documents of media type text/plain or with text blocks"
        raise invalid(f"{path}.source", f"`{source.type}` sources are not supported: send {kinds}")
    text = [source.data] if isinstance(source, wire.PlainTextSource) else _texts(source.content, f"{path}.source")
    return _lines(block.title, block.context, *text)


def _texts(parts: Iterable[wire.TextBlock | wire.UnsupportedBlock], path: str) -> Iterator[str]:
    for index, part in enumerate(parts):
        here = f"{path}.{index}"
        _check_supported(part, here)
        _check_unmarked(part, here)
        yield part.text


def _lines(*texts: str | None) -> str:
    return "\n".join(text for text in texts if text)


def _check_unmarked(block: wire.ResultBlock, path: str) -> None:
    if block.cache_control:
        raise invalid(f"{path}.cache_control", "cache_control belongs on the block of the message, not inside of it")
