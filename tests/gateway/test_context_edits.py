"""Context edits: what is cleared, when, and what is reported."""

from __future__ import annotations

from dataclasses import replace

import pytest

from llmlab.api.conversation import (
    ClearThinking,
    ClearToolUses,
    Conversation,
    Text,
    Thinking,
    ToolResult,
    ToolUse,
    Turn,
)
from llmlab.gateway.context_edits import PLACEHOLDER, apply_edits
from llmlab.gateway.rendering import Renderer
from llmlab.models.byte_tokenizer import ByteTokenizer

RENDERER = Renderer(ByteTokenizer())


def count(conversation: Conversation) -> int:
    return len(RENDERER.render(conversation).ids)


def loop(num_uses: int) -> Conversation:
    """A user's wish and ``num_uses`` calls, alternating between two tools, with long results."""
    turns = [Turn("user", (Text("look around"),))]
    for i in range(num_uses):
        use = ToolUse(f"id{i}", ("read", "list")[i % 2], {"path": f"file{i}"})
        turns += [
            Turn("assistant", (Thinking(f"thought {i}"), use)),
            Turn("user", (ToolResult(use.id, (Text("x" * 200),)),)),
        ]
    return Conversation("anthropic", "model", tuple(turns))


def results(conversation: Conversation) -> list[bool]:
    """For each tool result in order, whether it was cleared."""
    blocks = [block for turn in conversation.turns for block in turn.blocks]
    return [block.content == (Text(PLACEHOLDER),) for block in blocks if isinstance(block, ToolResult)]


def edited(conversation: Conversation, *edits):
    return apply_edits(replace(conversation, edits=edits), count)


def test_without_edits_nothing_is_counted_or_changed():
    found = apply_edits(loop(2), count)
    assert (found.conversation, found.applied, found.before, found.after) == (loop(2), None, None, None)


def test_below_the_trigger_nothing_is_cleared():
    conversation = loop(5)
    found = edited(conversation, ClearToolUses(trigger=count(conversation)))
    assert results(found.conversation) == [False] * 5
    assert found.applied == ()


def test_past_the_trigger_all_but_the_latest_results_are_cleared():
    conversation = loop(5)
    found = edited(conversation, ClearToolUses(trigger=count(conversation) - 1, keep=2))
    assert results(found.conversation) == [True, True, True, False, False]
    (report,) = found.applied
    assert report["type"] == "clear_tool_uses_20250919"
    assert report["cleared_tool_uses"] == 3
    assert (
        report["cleared_input_tokens"] == found.before - found.after == count(conversation) - count(found.conversation)
    )


def test_fewer_uses_than_are_kept_are_all_kept():
    assert results(edited(loop(2), ClearToolUses(trigger=1, keep=3)).conversation) == [False, False]


def test_a_trigger_can_count_tool_uses():
    edit = ClearToolUses(trigger_kind="tool_uses", trigger=4, keep=0)
    assert results(edited(loop(4), edit).conversation) == [False] * 4
    assert results(edited(loop(5), edit).conversation) == [True] * 5


def test_excluded_tools_keep_their_results():
    edit = ClearToolUses(trigger=1, keep=0, exclude_tools=("read",))
    assert results(edited(loop(4), edit).conversation) == [False, True, False, True]


@pytest.mark.parametrize(("inputs", "emptied"), [(False, []), (True, [0, 1, 2]), (("list",), [1])])
def test_inputs_are_emptied_only_when_asked_for(inputs, emptied):
    found = edited(loop(4), ClearToolUses(trigger=1, keep=1, clear_inputs=inputs)).conversation
    uses = [block for turn in found.turns for block in turn.blocks if isinstance(block, ToolUse)]
    assert [i for i, use in enumerate(uses) if not use.input] == emptied


def test_too_small_a_gain_changes_nothing():
    gain = edited(loop(5), ClearToolUses(trigger=1)).applied[0]["cleared_input_tokens"]
    assert edited(loop(5), ClearToolUses(trigger=1, clear_at_least=gain)).applied != ()
    unchanged = edited(loop(5), ClearToolUses(trigger=1, clear_at_least=gain + 1))
    assert (unchanged.applied, results(unchanged.conversation)) == ((), [False] * 5)


def test_results_that_were_cleared_before_are_not_cleared_again():
    once = edited(loop(5), ClearToolUses(trigger=1)).conversation
    assert edited(once, ClearToolUses(trigger=1)).applied == ()


def test_old_thinking_is_cleared_and_counted():
    found = edited(loop(4), ClearThinking(keep=1))
    left = [i for i, turn in enumerate(found.conversation.turns) if any(isinstance(b, Thinking) for b in turn.blocks)]
    assert left == [7]
    (report,) = found.applied
    assert (report["type"], report["cleared_thinking_turns"]) == ("clear_thinking_20251015", 3)
    assert report["cleared_input_tokens"] == found.before - found.after > 0


def test_all_thinking_can_be_kept():
    assert edited(loop(4), ClearThinking(keep=None)).applied == ()


def test_edits_are_carried_out_one_after_the_other():
    found = edited(loop(4), ClearThinking(), ClearToolUses(trigger=1))
    assert [report["type"] for report in found.applied] == ["clear_thinking_20251015", "clear_tool_uses_20250919"]
    assert sum(report["cleared_input_tokens"] for report in found.applied) == found.before - found.after
