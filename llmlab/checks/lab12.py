"""Checks of lab 12, guessing and verifying. Each is given a function."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from llmlab.checks.judge import judge_function
from llmlab.checks.verdict import Verdict

ROUND_CASES = (
    ([True, True, False, True, True],),
    ([False] * 5,),
    ([True] * 5,),
    ([False, True, True],),
    ([True, False],),
    ([True],),
)
# powers of two, so that sums, products and quotients are exact
LAW_CASES = (
    ([1 / 2, 1 / 4, 1 / 4], [1 / 4, 1 / 4, 1 / 2]),
    ([1 / 2, 1 / 2, 0], [0, 1 / 2, 1 / 2]),
    ([1 / 4] * 4, [1 / 4] * 4),
    ([1, 0], [0, 1]),
    ([1 / 8, 7 / 8], [1 / 2, 1 / 2]),
    ([1 / 2, 1 / 8, 1 / 8, 1 / 4], [1 / 8, 1 / 2, 1 / 4, 1 / 8]),
)
PAY_CASES = (
    (3, 5, 0.05, 1.0),
    (0.5, 5, 0.0, 1.25),
    (0.5, 5, 0.0, 1.75),
    (0.25, 5, 0.25, 1.0),
    (1.5, 5, 0.125, 2.0),
    (1.5, 5, 0.25, 1.5),
    (1, 4, 0.25, 1.0),
    (0, 5, 0.0, 1.0),
    (2.25, 3, 0.25, 2.75),
    (2, 4, 0.125, 2.25),
)


def q1(function: Any) -> Verdict:
    """How many tokens does a round give at temperature 0?"""
    mistakes = [
        (sum, "those are the right guesses; a guess after a wrong one is dropped, and the target adds one of its own."),
        (
            lambda right: sum(right) + 1,
            "nearly: guesses after the first wrong one do not count, even where the target would agree.",
        ),
        (
            lambda right: tokens_of_round(right) - 1,
            "those are the kept guesses; the target gives one token more, recovered or bonus.",
        ),
        (len, "that is k; what comes out depends on where the first wrong guess is."),
        (lambda right: len(right) + 1, "that is the most a round can give; here it depends on the first wrong guess."),
        (
            lambda right: min(tokens_of_round(right), len(right)),
            "nearly: when all guesses are kept, the target's next token comes on top.",
        ),
    ]
    because = "the guesses before the first wrong one, and one token of the target."
    return judge_function(function, tokens_of_round, ROUND_CASES, mistakes, because=because)


def tokens_of_round(right: Sequence[bool]) -> int:
    """Tokens of a round whose guesses fare like this."""
    return next((i for i, one in enumerate(right) if not one), len(right)) + 1


def q2(function: Any) -> Verdict:
    """With which probability is a drawn guess kept?"""
    mistakes = [
        (
            lambda p, q: sum(a * b for a, b in zip(p, q, strict=True)),
            "that is the chance that two independent draws agree; the rule keeps more.",
        ),
        (
            lambda p, q: sum(a * min(1, a / b) if b else a for a, b in zip(p, q, strict=True)),
            "the guess is drawn from q, so weigh min(1, p/q) with q, not with p.",
        ),
        (
            lambda p, q: sum(min(1, a / b) if b else 1 for a, b in zip(p, q, strict=True)) / len(p),
            "that gives all tokens the same weight; the guess is drawn from q.",
        ),
        (
            lambda p, q: sum(max(0, a - b) for a, b in zip(p, q, strict=True)),
            "that is the mass of the residual, which is how often a guess is rejected.",
        ),
        (
            lambda p, q: sum(max(a, b) for a, b in zip(p, q, strict=True)),
            "more than 1 is no probability; take the smaller of p and q, not the larger.",
        ),
        (lambda p, q: max(p), "that is how often the target's likeliest token comes; q matters too."),
    ]
    because = "q(x) min(1, p(x)/q(x)) is the smaller of p(x) and q(x); add that up over all tokens."
    return judge_function(function, acceptance, LAW_CASES, mistakes, because=because)


def acceptance(p: Sequence[float], q: Sequence[float]) -> float:
    """The chance that a guess drawn from ``q`` is kept."""
    return sum(min(a, b) for a, b in zip(p, q, strict=True))


def q3(function: Any) -> Verdict:
    """Is speculation faster than plain decoding?"""
    mistakes = [
        (
            lambda kept, k, draft_cost, step_cost: kept > step_cost + k * draft_cost,
            "nearly: a round gives one token more than the guesses it keeps.",
        ),
        (
            lambda kept, k, draft_cost, step_cost: kept + 1 > step_cost,
            "the guesses cost time too: k of them, whether kept or not.",
        ),
        (
            lambda kept, k, draft_cost, step_cost: kept + 1 > step_cost + draft_cost,
            "all k guesses are made, one after the other: count draft_cost k times.",
        ),
        (
            lambda kept, k, draft_cost, step_cost: kept + 1 > step_cost + kept * draft_cost,
            "rejected guesses were made too: count draft_cost k times.",
        ),
        (
            lambda kept, k, draft_cost, step_cost: kept + 1 > 1 + k * draft_cost,
            "the verifying step may take longer than a plain one: step_cost, not 1.",
        ),
        (
            lambda kept, k, draft_cost, step_cost: kept + 1 >= step_cost + k * draft_cost,
            "nearly: where both take the same time, it is not faster.",
        ),
    ]
    because = "kept + 1 tokens for the price of one verifying step and k guesses; plain decoding pays one step a token."
    return judge_function(function, pays, PAY_CASES, mistakes, because=because)


def pays(kept: float, k: int, draft_cost: float, step_cost: float) -> bool:
    """Whether a round gives more tokens than plain decoding in the same time."""
    return kept + 1 > step_cost + k * draft_cost
