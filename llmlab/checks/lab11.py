"""Checks of lab 11, choosing the next token. Each is given a function."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import Any

from llmlab.checks.judge import judge_function
from llmlab.checks.verdict import Verdict

# sums and products of these are exact
FLAT, STEEP, MIXED = [1 / 8] * 8, [1 / 16, 7 / 8, 1 / 16], [1 / 8, 1 / 2, 1 / 32, 1 / 4, 1 / 32, 1 / 16]
TOP_P_CASES = ((MIXED, 0.75), (MIXED, 0.9), (STEEP, 0.5), (STEEP, 0.9), (FLAT, 0.5), (FLAT, 0.6), (MIXED, 1.0))
MIN_P_CASES = ((MIXED, 0.25), (MIXED, 0.1), (STEEP, 0.1), (FLAT, 0.5), (FLAT, 1.0), (MIXED, 0.0), ([1 / 4] * 4, 0.3))
COLOURS = ["The", " primary", " colours", " are", ":", "\n", "\n", "Red", " is", " the", " most"]
STOP_CASES = (
    (COLOURS, " are:"),
    (COLOURS, "colours"),
    (COLOURS, "e m"),
    (COLOURS, "\n\n"),
    (COLOURS, "The"),
    (COLOURS, "blue"),
    (["aa", "ab", "ab"], "aab"),
)


def q1(function: Any) -> Verdict:
    """How many tokens does top-p keep?"""
    mistakes = [
        (
            lambda probs, top_p: _first(_falling(probs), lambda mass: mass > top_p),
            "nearly: the set is complete when it reaches top_p; it need not go beyond.",
        ),
        (
            lambda probs, top_p: _first(_falling(probs), lambda mass: mass >= top_p) - 1,
            "nearly: the token that reaches top_p belongs to the set.",
        ),
        (
            lambda probs, top_p: _first(probs, lambda mass: mass >= top_p),
            "that adds them up in the order given; the likeliest come first.",
        ),
        (
            lambda probs, top_p: _first(sorted(probs), lambda mass: mass >= top_p),
            "that begins with the least likely; the fewest tokens are needed when the likeliest come first.",
        ),
        (
            lambda probs, top_p: sum(prob >= 1 - top_p for prob in probs),
            "that asks each token alone; top-p asks what they have together.",
        ),
        (
            lambda probs, top_p: round(top_p * len(probs)),
            "that is a share of the tokens; top-p is a share of the mass.",
        ),
    ]
    because = "the likeliest first, until together they reach top_p."
    return judge_function(function, kept_by_top_p, TOP_P_CASES, mistakes, because=because)


def kept_by_top_p(probs: Sequence[float], top_p: float) -> int:
    """Size of the smallest set of likeliest tokens that reaches ``top_p``."""
    return _first(_falling(probs), lambda mass: mass >= top_p)


def q2(function: Any) -> Verdict:
    """How many tokens does min-p keep?"""
    mistakes = [
        (
            lambda probs, min_p: sum(prob >= min_p for prob in probs),
            "that compares with min_p itself; it is a share of the likeliest token's probability.",
        ),
        (
            lambda probs, min_p: sum(prob > min_p * max(probs) for prob in probs),
            "nearly: a token exactly at the limit is kept.",
        ),
        (
            lambda probs, min_p: sum(prob < min_p * max(probs) for prob in probs),
            "those are the ones it takes away.",
        ),
        (
            lambda probs, min_p: kept_by_top_p(probs, min_p),
            "that is top-p: a mass to be reached; min-p looks at each token alone.",
        ),
        (
            lambda probs, min_p: kept_by_top_p(probs, 1 - min_p),
            "that is top-p: a mass to be reached; min-p looks at each token alone.",
        ),
    ]
    because = "the limit moves with the likeliest token: strict when the model is sure, generous when it is not."
    return judge_function(function, kept_by_min_p, MIN_P_CASES, mistakes, because=because)


def kept_by_min_p(probs: Sequence[float], min_p: float) -> int:
    """Tokens with at least the share ``min_p`` of the likeliest one's probability."""
    return sum(prob >= min_p * max(probs) for prob in probs)


def q3(function: Any) -> Verdict:
    """How many tokens are chosen when a stop sequence ends the output?"""
    mistakes = [
        (
            lambda pieces, stop: pieces.index(stop) + 1 if stop in pieces else len(pieces),
            "that waits for one token that equals the string; it may lie across several, or inside one.",
        ),
        (
            lambda pieces, stop: next((i + 1 for i, p in enumerate(pieces) if stop in p), len(pieces)),
            "that looks into single tokens; the string may begin in one and end in the next.",
        ),
        (
            lambda pieces, stop: max(tokens_until_stop(pieces, stop) - 1, 0),
            "nearly: the token that completes the string was chosen too, though its text is not shown.",
        ),
        (
            lambda pieces, stop: "".join(pieces).find(stop),
            "that is a place in the text; count tokens.",
        ),
        (
            lambda pieces, stop: sum(
                end <= ("".join(pieces) + stop).find(stop) for end in accumulate(len(piece) for piece in pieces)
            ),
            "those are the tokens that are shown whole; the ones that held the string were chosen too.",
        ),
        (lambda pieces, stop: len(pieces), "that is all of them; generation ends when the string is complete."),
    ]
    because = "text is compared, not tokens, and the token that completes the string is counted."
    return judge_function(function, tokens_until_stop, STOP_CASES, mistakes, because=because)


def tokens_until_stop(pieces: Sequence[str], stop: str) -> int:
    """Tokens up to the one that completes the stop string; all of them where it never is."""
    return next((n for n in range(1, len(pieces) + 1) if stop in "".join(pieces[:n])), len(pieces))


def _falling(probs: Sequence[float]) -> list[float]:
    return sorted(probs, reverse=True)


def _first(probs: Sequence[float], enough: Any) -> int:
    """How many of ``probs``, in this order, until their sum is enough; all where it never is."""
    return next((n for n, mass in enumerate(accumulate(probs), 1) if enough(mass)), len(probs))
