"""Lab 14: the right answers pass, the stubs and the usual wrong answers get the message meant for them."""

from __future__ import annotations

import pytest

from llmlab.api.conversation import ClearToolUses, Conversation, Text, ToolResult, ToolUse, Turn
from llmlab.checks import check
from llmlab.checks.lab14 import CLEAR_CASES, num_cleared, units_read
from llmlab.client.agent_result import AgentResult
from llmlab.client.agent_result import Turn as AgentTurn
from llmlab.gateway.context_edits import apply_edits


@pytest.fixture
def result():
    """Three requests of 100, 150 and 200 prompt tokens."""
    counts = [(6, 0, 94, 20), (7, 90, 53, 21), (8, 140, 52, 22)]
    turns = [AgentTurn(number, "turn", 0, *row, "tool_use") for number, row in enumerate(counts, 1)]
    return AgentResult(turns, None, "end_turn")


def test_the_right_answers_pass(result):
    assert check.lab14.q1(450, result)
    assert check.lab14.q2(units_read)
    assert check.lab14.q3(num_cleared)


def test_the_stubs_do_not_pass(result):
    assert "replace the ..." in repr(check.lab14.q1(..., result))
    assert "replace the ..." in repr(check.lab14.q2(lambda turns: ...))
    assert "replace the ..." in repr(check.lab14.q3(lambda names, keep, excluded: ...))


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (21, "leaves out what was read"),
        (200, "the last request alone"),
        (513, "received, not sent"),
        (230, "tokens read from the cache"),
        (220, "had to be computed"),
        (7, "Add the column prompt"),
    ],
)
def test_input_wrongly_added(result, wrong, said):
    assert said in repr(check.lab14.q1(wrong, result))


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (lambda turns: turns - 1, "the last turn's"),
        (lambda turns: sum(range(turns + 1)), "is what is sent"),
        (lambda turns: turns * (turns - 1), "twice too many"),
        (lambda turns: turns, "what is new"),
    ],
)
def test_reads_wrongly_added(wrong, said):
    assert said in repr(check.lab14.q2(wrong))


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (lambda names, keep, excluded: max(0, len(names) - keep), "excluded tools keep"),
        (lambda names, keep, excluded: len(names) - keep, "there may be fewer"),
        (lambda names, keep, excluded: max(0, sum(n not in excluded for n in names) - keep), "the latest calls stay"),
        (lambda names, keep, excluded: sum(n not in excluded for n in names), "results stay"),
        (lambda names, keep, excluded: sum(n not in excluded for n in names[keep:]), "not the first"),
    ],
)
def test_clearing_wrongly_counted(wrong, said):
    assert said in repr(check.lab14.q3(wrong))


@pytest.mark.parametrize(("names", "keep", "excluded"), CLEAR_CASES)
def test_the_server_clears_what_the_check_calls_right(names, keep, excluded):
    turns = [Turn("user", (Text("go"),))]
    for number, name in enumerate(names):
        turns.append(Turn("assistant", (ToolUse(f"id{number}", name, {}),)))
        turns.append(Turn("user", (ToolResult(f"id{number}", (Text("x" * 99),)),)))
    edit = ClearToolUses(trigger_kind="tool_uses", trigger=0, keep=keep, exclude_tools=excluded)
    applied = apply_edits(Conversation("anthropic", "m", tuple(turns), edits=(edit,)), lambda c: len(repr(c))).applied
    assert sum(report["cleared_tool_uses"] for report in applied) == num_cleared(names, keep, excluded)
