"""Making a long conversation shorter before it is rendered, as the request asked for."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from llmlab.api.conversation import (
    Block,
    ClearThinking,
    ClearToolUses,
    ContextEdit,
    Conversation,
    Text,
    Thinking,
    ToolResult,
    ToolUse,
    Turn,
)

PLACEHOLDER = "[This tool result was cleared to save context.]"

Count = Callable[[Conversation], int]


@dataclass(frozen=True, slots=True)
class Edited:
    """A conversation after its context edits.

    ``applied`` are Anthropic's objects for the edits that changed something, ``None`` when none were asked for;
    ``before`` and ``after`` are prompt lengths in tokens, ``None`` when nothing had to be counted.
    """

    conversation: Conversation
    applied: tuple[dict[str, Any], ...] | None = None
    before: int | None = None
    after: int | None = None


def apply_edits(conversation: Conversation, count: Count) -> Edited:
    """Carry out the conversation's edits in their order; ``count`` gives the prompt length in tokens."""
    if not conversation.edits:
        return Edited(conversation)
    before = after = count(conversation)
    applied: list[dict[str, Any]] = []
    for edit in conversation.edits:
        edited, report = _apply(conversation, edit, after)
        tokens = count(edited) if report else after
        if report and after - tokens >= getattr(edit, "clear_at_least", 0):
            applied.append({"type": report[0], "cleared_input_tokens": max(0, after - tokens), report[1]: report[2]})
            conversation, after = edited, tokens
    return Edited(conversation, tuple(applied), before, after)


def _apply(conversation: Conversation, edit: ContextEdit, tokens: int) -> tuple[Conversation, tuple | None]:
    """The edited conversation, and type, name and value of what was cleared; ``None`` when nothing was."""
    if isinstance(edit, ClearThinking):
        edited, cleared = _clear_thinking(conversation, edit)
        return edited, cleared and ("clear_thinking_20251015", "cleared_thinking_turns", cleared)
    edited, cleared = _clear_tool_uses(conversation, edit, tokens)
    return edited, cleared and ("clear_tool_uses_20250919", "cleared_tool_uses", cleared)


def _map_blocks(conversation: Conversation, change: Callable[[Block], Block]) -> Conversation:
    turns = tuple(replace(turn, blocks=tuple(map(change, turn.blocks))) for turn in conversation.turns)
    return replace(conversation, turns=turns)


# -- tool uses ----------------------------------------------------------------------------------------------


def _clear_tool_uses(conversation: Conversation, edit: ClearToolUses, tokens: int) -> tuple[Conversation, int | None]:
    uses = [block for block in _blocks(conversation) if isinstance(block, ToolUse)]
    if (tokens if edit.trigger_kind == "input_tokens" else len(uses)) <= edit.trigger:
        return conversation, None
    old = {use.id: use for use in uses[: max(0, len(uses) - edit.keep)] if use.name not in edit.exclude_tools}
    fresh = {block.tool_use_id for block in _blocks(conversation) if _is_uncleared(block) and block.tool_use_id in old}
    cleared = {use_id: use for use_id, use in old.items() if use_id in fresh}
    return _map_blocks(conversation, lambda block: _cleared(block, cleared, edit)), len(cleared) or None


def _blocks(conversation: Conversation) -> Iterator[Block]:
    for turn in conversation.turns:
        yield from turn.blocks


def _is_uncleared(block: Block) -> bool:
    return isinstance(block, ToolResult) and block.content != (Text(PLACEHOLDER),)


def _cleared(block: Block, cleared: dict[str, ToolUse], edit: ClearToolUses) -> Block:
    if isinstance(block, ToolResult) and block.tool_use_id in cleared:
        return replace(block, content=(Text(PLACEHOLDER),))
    inputs = edit.clear_inputs
    if isinstance(block, ToolUse) and block.id in cleared and (inputs is True or (inputs and block.name in inputs)):
        return replace(block, input={})
    return block


# -- thinking -----------------------------------------------------------------------------------------------


def _clear_thinking(conversation: Conversation, edit: ClearThinking) -> tuple[Conversation, int | None]:
    turns = conversation.turns
    thinking = [i for i, turn in enumerate(turns) if any(isinstance(block, Thinking) for block in turn.blocks)]
    old = set() if edit.keep is None else set(thinking[: max(0, len(thinking) - edit.keep)])
    kept = tuple(_without_thinking(turn) if i in old else turn for i, turn in enumerate(turns))
    return replace(conversation, turns=kept), len(old) or None


def _without_thinking(turn: Turn) -> Turn:
    return replace(turn, blocks=tuple(block for block in turn.blocks if not isinstance(block, Thinking)))
