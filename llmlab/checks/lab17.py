"""Checks of lab 17, splitting a model. Each is given a function."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from llmlab.checks.judge import judge_function
from llmlab.checks.verdict import Verdict

SUM_CASES = ((30, 576, 4, 1, 3), (30, 576, 4, 19, 3), (80, 8192, 2, 1, 8), (32, 4096, 2, 512, 2), (1, 8, 1, 1, 4))
BUBBLE_CASES = ((2, 1), (2, 4), (2, 16), (4, 1), (4, 8), (8, 8))
EXPERT_CASES = ((8, 2, 1), (8, 2, 4), (8, 2, 16), (256, 8, 1), (256, 8, 64), (4, 4, 3))
DIGITS = 9


def q1(function: Any) -> Verdict:
    """Bytes that one process puts into the sums of a step of tensor parallel."""
    mistakes = [
        (
            lambda layers, width, size, tokens, ranks: layers * width * size * tokens,
            "nearly: a layer has two sums, one after attention and one after the MLP.",
        ),
        (
            lambda layers, width, size, tokens, ranks: 2 * layers * width * size,
            "that is for one token; every packed token has a vector in the sum.",
        ),
        (
            lambda layers, width, size, tokens, ranks: 2 * layers * width * size * tokens // ranks,
            "every process holds a whole vector of partial sums, as wide as the model: nothing is divided by ranks.",
        ),
        (
            lambda layers, width, size, tokens, ranks: 2 * layers * width * tokens,
            "those are numbers; each has `size` bytes.",
        ),
        (
            lambda layers, width, size, tokens, ranks: 2 * layers * width * size * tokens * ranks,
            "that is what all processes put in together; count one of them.",
        ),
        (
            lambda layers, width, size, tokens, ranks: 4 * layers * width * size * tokens * (ranks - 1) // ranks,
            "that is what a ring moves over each link to make the sums; count the vectors that one process puts in.",
        ),
    ]
    because = "two sums a layer, each of a vector as wide as the model for every packed token."
    return judge_function(function, sum_bytes, SUM_CASES, mistakes, because=because)


def sum_bytes(layers: int, width: int, size: int, tokens: int, ranks: int) -> int:
    """Bytes of one process's messages in all sums of a step; ``size`` bytes a number, whatever the ``ranks``."""
    return 2 * layers * width * size * tokens


def q2(function: Any) -> Verdict:
    """Which share of the slots of a pipeline is empty?"""
    mistakes = [
        (lambda stages, parts: parts / (parts + stages - 1), "that is the share in use; the empty one is the rest."),
        (lambda stages, parts: (stages - 1) / parts, "that compares the empty slots with the busy ones, not with all."),
        (lambda stages, parts: (stages - 1) / stages, "that is so for one micro-batch; more of them fill the slots."),
        (
            lambda stages, parts: (stages - 1) / (parts + stages),
            "nearly: the last stage ends in slot parts + stages - 1, not one later.",
        ),
        (lambda stages, parts: stages - 1, "that is how many slots each stage stands idle; divide by all slots."),
    ]
    because = "each stage works in `parts` of parts + stages - 1 slots."
    return judge_function(
        _rounded(function), _rounded(empty_share), BUBBLE_CASES, _round_all(mistakes), because=because
    )


def empty_share(stages: int, parts: int) -> float:
    """Of all slots of a step, cut into ``parts`` micro-batches, those in which a stage has nothing to do."""
    return (stages - 1) / (parts + stages - 1)


def q3(function: Any) -> Verdict:
    """How many experts does a batch read?"""
    mistakes = [
        (
            lambda experts, chosen, tokens: min(experts, chosen * tokens),
            "tokens may choose the same expert, and it is read once for all of them.",
        ),
        (lambda experts, chosen, tokens: chosen, "that is one token; the others of the batch choose experts too."),
        (lambda experts, chosen, tokens: experts, "only a large batch reads them all."),
        (
            lambda experts, chosen, tokens: experts * (1 - chosen / experts) ** tokens,
            "those are the ones that nobody chose.",
        ),
        (
            lambda experts, chosen, tokens: experts * (1 - (1 - 1 / experts) ** tokens),
            "a token misses an expert with probability 1 - chosen / experts: it chooses several.",
        ),
        (
            lambda experts, chosen, tokens: experts * (1 - (1 - 1 / experts) ** (chosen * tokens)),
            "nearly: the experts of one token are different ones, so it misses one with 1 - chosen / experts.",
        ),
    ]
    because = "an expert is left out when every token misses it, and a token does so with 1 - chosen / experts."
    judged, right = _rounded(function), _rounded(touched)
    return judge_function(judged, right, EXPERT_CASES, _round_all(mistakes), because=because)


def touched(experts: int, chosen: int, tokens: int) -> float:
    """Experts of a layer that ``tokens`` tokens read on average when each chooses ``chosen`` of them evenly."""
    return experts * (1 - (1 - chosen / experts) ** tokens)


def _rounded(function: Any) -> Any:
    """The function, with fractions rounded so that another order of operations is no mistake."""
    if not callable(function):
        return function

    def rounded(*case: Any) -> Any:
        value = function(*case)
        return round(value, DIGITS) if isinstance(value, float) else value

    rounded.__name__ = getattr(function, "__name__", "function")
    rounded.__wrapped__ = function  # so that messages show the arguments' names
    return rounded


def _round_all(mistakes: list[tuple[Callable, str]]) -> list[tuple[Callable, str]]:
    return [(_rounded(wrong), message) for wrong, message in mistakes]
