"""Why a prompt's prefix could not be reused: a comparison with the request that an earlier reply belonged to."""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any

from llmlab.api.conversation import Block, Conversation, Thinking, Tool, ToolResult, ToolUse


@dataclass(frozen=True, slots=True)
class Fingerprint:
    """Digests of the parts of a prompt, and its length in tokens.

    ``messages`` has one digest per block that is not thinking.
    """

    model: str
    tools: bytes
    system: bytes
    messages: tuple[bytes, ...]
    tokens: int


class CacheDiagnostics:
    """Remembers the fingerprints of the last ``capacity`` replies, by message id. Used from one thread.

    A reply is known only under the ``salt`` of the credential it went to.
    """

    def __init__(self, capacity: int = 1000) -> None:
        self.capacity = capacity
        self._seen: OrderedDict[tuple[str, str], Fingerprint] = OrderedDict()

    def remember(self, message_id: str, fingerprint: Fingerprint, salt: str = "") -> None:
        """Keep what the request of this reply looked like."""
        self._seen[salt, message_id] = fingerprint
        while len(self._seen) > self.capacity:
            self._seen.popitem(last=False)

    def compare(
        self, previous_id: str | None, now: Fingerprint, ends: Sequence[int], available: bool = True, salt: str = ""
    ) -> dict[str, Any] | None:
        """Anthropic's ``diagnostics`` object, or ``None`` when nothing that could have been reused was missed.

        ``ends`` are prefix lengths in tokens: first those of tools and of system, then one per block in
        ``now.messages``. ``available=False``: prefixes are not kept at all here.
        """
        if previous_id is None:
            return None
        if not available:
            return _reason("unavailable")
        before = self._seen.get((salt, previous_id))
        if before is None:
            return _reason("previous_message_not_found")
        kind, kept = _divergence(before, now, ends)
        return kind and _reason(kind, cache_missed_input_tokens=max(0, min(before.tokens, now.tokens) - kept))


def _divergence(before: Fingerprint, now: Fingerprint, ends: Sequence[int]) -> tuple[str | None, int]:
    """The first part that differs, in the order of the prefix, and the length in tokens of what still agrees."""
    if before.model != now.model:
        return "model_changed", 0
    if before.tools != now.tools:
        return "tools_changed", 0
    if before.system != now.system:
        return "system_changed", ends[0]
    pairs = zip(before.messages, now.messages, strict=False)
    same = next((i for i, (a, b) in enumerate(pairs) if a != b), min(len(before.messages), len(now.messages)))
    if same == len(before.messages):
        return None, now.tokens
    return "messages_changed", ends[min(1 + same, len(ends) - 1)]


def _reason(kind: str, **details: int) -> dict[str, Any]:
    return {"cache_miss_reason": {"type": kind, **details}}


def fingerprint(conversation: Conversation, model: str, tokens: int) -> Fingerprint:
    """The fingerprint of a prompt.

    Keys of JSON objects count in the order in which they came. Markers do not count, nor does thinking, which is
    rarely part of a prompt.
    """
    return Fingerprint(
        model,
        _digest([_tool(tool) for tool in conversation.tools]),
        _digest([text.text for text in conversation.system]),
        tuple(
            _digest([turn.role, _block(block)])
            for turn in conversation.turns
            for block in turn.blocks
            if not isinstance(block, Thinking)
        ),
        tokens,
    )


def _tool(tool: Tool) -> list[Any]:
    return [tool.name, tool.description, tool.input_schema]


def _block(block: Block) -> list[Any]:
    if isinstance(block, ToolUse):
        return ["use", block.id, block.name, block.input]
    if isinstance(block, ToolResult):
        return ["result", block.tool_use_id, block.is_error, [part.text for part in block.content]]
    return ["text", block.text]


def _digest(value: Any) -> bytes:
    return blake2b(json.dumps(value, default=dict).encode(), digest_size=16).digest()
