"""Checks of lab 14, the agent. The first is given the agent's result."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from llmlab.checks.judge import judge_function, judge_number
from llmlab.checks.verdict import Verdict
from llmlab.client.agent_result import AgentResult

TURN_CASES = ((1,), (2,), (3,), (10,), (18,))
CLEAR_CASES = (
    (("read", "write", "read", "write"), 1, ()),
    (("read", "write", "read", "write"), 1, ("write",)),
    (("write", "write", "read"), 1, ("write",)),
    (("read", "read", "read", "write"), 2, ("write",)),
    (("read", "write"), 3, ()),
    (("read", "read", "read", "read"), 0, ()),
)


def q1(answer: Any, result: AgentResult) -> Verdict:
    """How many prompt tokens were sent in all requests together?"""
    turns, usage = result.turns, result.usage
    right = sum(turn.prompt for turn in turns)
    mistakes = [
        (usage["input"], "input_tokens leaves out what was read from and written to the cache; all of it was sent."),
        (turns[-1].prompt, "that is the last request alone; the earlier ones sent their history too."),
        (right + usage["output"], "that adds the output; it was received, not sent."),
        (usage["cache_read"], "those are the tokens read from the cache; the others were sent as well."),
        (
            right - usage["cache_read"],
            "those are the tokens that had to be computed; the cached ones were sent as well.",
        ),
    ]
    because = f"{len(turns)} requests, each with the whole history: {' + '.join(str(turn.prompt) for turn in turns)}."
    hint = "Add the column prompt."
    return judge_number(answer, right, mistakes, because=because, hint=hint)


def q2(function: Any) -> Verdict:
    """How many units are read from the cache in so many turns together?"""
    mistakes = [
        (lambda turns: turns - 1, "that is the last turn's; add those before it."),
        (lambda turns: turns * (turns + 1) // 2, "that is what is sent; each turn's newest unit is not in the cache."),
        (lambda turns: turns * (turns - 1), "twice too many: turn i reads i - 1 units, not turns - 1."),
        (lambda turns: turns, "that is what is new, a unit each turn; the question is what is read."),
        (lambda turns: turns * turns, "not every turn sends as much as the last."),
    ]
    because = "0 + 1 + ... + (turns - 1); of turns * (turns + 1) / 2 sent that is (turns - 1) / (turns + 1)."
    return judge_function(function, units_read, TURN_CASES, mistakes, because=because)


def q3(function: Any) -> Verdict:
    """How many tool results are cleared?"""
    mistakes = [
        (lambda names, keep, excluded: max(0, len(names) - keep), "excluded tools keep their results."),
        (
            lambda names, keep, excluded: max(0, _others(names, excluded) - keep),
            "the latest calls stay whatever their tool is: first set aside those to keep, then look at the names.",
        ),
        (lambda names, keep, excluded: _others(names, excluded), "the latest `keep` results stay."),
        (lambda names, keep, excluded: _others(names[keep:], excluded), "the latest are kept, not the first."),
        (lambda names, keep, excluded: min(keep, len(names)), "that is how many stay."),
        (lambda names, keep, excluded: len(names) - keep, "there may be fewer results than are to be kept."),
    ]
    because = "of all but the latest `keep`, those whose tool is not excluded."
    return judge_function(function, num_cleared, CLEAR_CASES, mistakes, because=because)


def units_read(turns: int) -> int:
    """Units found in the cache over ``turns`` turns of which turn i sends i and finds i - 1."""
    return turns * (turns - 1) // 2


def num_cleared(names: Sequence[str], keep: int, excluded: Collection[str]) -> int:
    """Results cleared once the trigger is reached."""
    return _others(names[: max(0, len(names) - keep)], excluded)


def _others(names: Sequence[str], excluded: Collection[str]) -> int:
    return sum(name not in excluded for name in names)
