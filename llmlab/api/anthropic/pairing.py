"""Every tool call has exactly one result, at the head of the next message (article A, section 2.3)."""

from __future__ import annotations

from collections.abc import Sequence

from llmlab.api.anthropic.content import Placed
from llmlab.api.anthropic.validate import invalid
from llmlab.api.conversation import ToolResult, ToolUse

Group = tuple[str, str, list[Placed]]
"""(path, role, blocks) of merged messages."""


def check_pairs(groups: Sequence[Group]) -> None:
    """Raise ``ApiError`` for a call without a result, a result without a call, and for doubles of either."""
    _check_unique(groups)
    calls: dict[str, str] = {}
    for path, _, placed in groups:
        _check_answered(calls, placed)
        _check_results(calls, placed)
        calls = {item.block.id: path for item in placed if isinstance(item.block, ToolUse)}
    _check_answered(calls, [])


def _check_unique(groups: Sequence[Group]) -> None:
    seen: set[str] = set()
    for _, _, placed in groups:
        for item in placed:
            if isinstance(item.block, ToolUse):
                if item.block.id in seen:
                    raise invalid(item.path, f"`tool_use` ids must be unique, but {item.block.id} came before")
                seen.add(item.block.id)


def _check_answered(calls: dict[str, str], placed: Sequence[Placed]) -> None:
    leading = set()
    for item in placed:
        if not isinstance(item.block, ToolResult):
            break
        leading.add(item.block.tool_use_id)
    missing = [call for call in calls if call not in leading]
    if missing:
        start = f"`tool_use` ids were found without `tool_result` blocks immediately after: {', '.join(missing)}."
        raise invalid(calls[missing[0]], f"{start} The next message must begin with one `tool_result` block for each.")


def _check_results(calls: dict[str, str], placed: Sequence[Placed]) -> None:
    seen: set[str] = set()
    for item in placed:
        if not isinstance(item.block, ToolResult):
            continue
        found = item.block.tool_use_id
        if found not in calls:
            start = f"unexpected `tool_use_id` found in `tool_result` blocks: {found}."
            raise invalid(item.path, f"{start} The message before holds no `tool_use` block of this id.")
        if found in seen:
            raise invalid(item.path, f"each `tool_use` must have a single result, but {found} has several")
        seen.add(found)
