"""Checks of lab 06, one forward pass."""

from __future__ import annotations

from typing import Any

from llmlab.checks.judge import judge_function
from llmlab.checks.verdict import Verdict

HEAD_CASES = ((0, 9, 3), (2, 9, 3), (3, 9, 3), (7, 9, 3), (8, 9, 3), (31, 32, 8), (5, 32, 8), (4, 8, 8), (6, 8, 1))
SIGHT_CASES = ((0, 0), (5, 0), (5, 1), (5, 4), (2, 4), (3, 4), (9, 3))
SCORE_CASES = ((4096, 9, 64), (100, 9, 64), (64, 1, 64), (12, 9, 64), (1000, 32, 128))


def q1(function: Any) -> Verdict:
    """Which K/V head does a query head read?"""
    mistakes = [
        (lambda h, n, kv: h % kv, "that deals the heads out in turn; neighbours share one, so divide."),
        (lambda h, n, kv: h // kv, "that divides by the number of K/V heads; divide by how many share one."),
        (lambda h, n, kv: h % (n // kv), "that is the head's place among those that share; the group is the quotient."),
        (lambda h, n, kv: h, "that would be a K/V head per query head, without sharing."),
        (lambda h, n, kv: h / (n // kv), "a head's number is whole: use //."),
        (lambda h, n, kv: n // kv, "that is how many share one; which one does this head read?"),
    ]
    because = "num_heads // num_kv_heads neighbours share one K/V head, which is stored once for all of them."
    return judge_function(function, kv_head, HEAD_CASES, mistakes, because=because)


def q2(function: Any) -> Verdict:
    """Which positions does one see?"""
    mistakes = [
        (
            lambda p, w: list(range(max(0, p - w) if w else 0, p + 1)),
            "one too many: the window holds its own position.",
        ),
        (lambda p, w: list(range(max(0, p - w + 1) if w else 0, p)), "a position sees itself too."),
        (lambda p, w: list(range(max(0, p - w) if w else 0, p)), "a position sees itself, as one of its window."),
        (lambda p, w: list(range(p - w + 1 if w else 0, p + 1)), "there are no positions before 0."),
        (lambda p, w: list(range(p + 1)), "that is without a window."),
        (lambda p, w: list(range(max(0, p - w + 1), p + 1)), "a window of 0 means that there is none."),
        (lambda p, w: list(range(w or p + 1)), "those are the first positions; a window holds the latest."),
    ]
    because = "from the window's beginning to the position itself; nothing later, and nothing before 0."
    return judge_function(_listing(function), visible, SIGHT_CASES, mistakes, because=because)


def q3(function: Any) -> Verdict:
    """Bytes of the scores that exist at one time."""
    mistakes = [
        (lambda n, h, t: h * n * n * 4, "that is the whole matrix; only a tile of queries is worked on at a time."),
        (lambda n, h, t: h * t * n * 4, "nearly: a prompt shorter than a tile has fewer queries."),
        (lambda n, h, t: h * min(t, n) ** 2 * 4, "a tile of queries meets all keys, not only a tile of them."),
        (lambda n, h, t: min(t, n) * n * 4, "every query head has scores of its own."),
        (lambda n, h, t: h * min(t, n) * n, "those are the scores; each takes 4 bytes."),
        (lambda n, h, t: h * min(t, n) * n * 2, "that is with 16-bit numbers; 32 bits are 4 bytes."),
        (lambda n, h, t: h * min(t, n) * n * 32, "32 bits are 4 bytes."),
    ]
    because = "heads x queries of a tile x keys x 4 bytes: it grows with the prompt, no longer with its square."
    return judge_function(function, score_bytes, SCORE_CASES, mistakes, because=because)


def kv_head(head: int, num_heads: int, num_kv_heads: int) -> int:
    """The K/V head that a query head reads."""
    return head // (num_heads // num_kv_heads)


def visible(position: int, window: int) -> list[int]:
    """Positions that one sees: itself and those before it, ``window`` in all unless that is 0."""
    return list(range(max(0, position - window + 1) if window else 0, position + 1))


def score_bytes(tokens: int, heads: int, tile: int) -> int:
    """Bytes of one tile's 32-bit scores."""
    return heads * min(tile, tokens) * tokens * 4


def _listing(function: Any) -> Any:
    """The learner's function with ranges, tuples, sets and arrays turned into lists."""
    if not callable(function):
        return function

    def listing(position: int, window: int) -> Any:
        given = function(position, window)
        given = given.tolist() if hasattr(given, "tolist") else given
        return sorted(given) if isinstance(given, set) else list(given) if isinstance(given, range | tuple) else given

    listing.__name__ = getattr(function, "__name__", "visible")
    return listing
