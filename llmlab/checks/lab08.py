"""Checks of lab 08, the K/V cache."""

from __future__ import annotations

from math import ceil
from typing import Any

from llmlab.checks.judge import judge_function
from llmlab.checks.verdict import Verdict

# layers, query heads, K/V heads, head dimension, tokens, bytes of a number
BYTES_CASES = ((30, 9, 3, 64, 1, 4), (32, 32, 8, 128, 2_000, 2), (80, 64, 8, 128, 100_000, 2), (24, 14, 2, 64, 7, 2))
PASSES_CASES = ((1, 500), (40, 500), (36, 12), (5, 1), (100, 2))
FIT_CASES = ((24, 16, 60, 5), (24, 16, 60, 6), (100, 16, 100, 29), (10, 4, 3, 1), (64, 16, 17, 16), (3, 16, 60, 5))


def q1(function: Any) -> Verdict:
    """How many bytes of K/V do so many tokens take?"""
    mistakes = [
        (
            lambda layers, query_heads, kv_heads, dim, tokens, size: 2 * layers * query_heads * dim * tokens * size,
            "those are the query heads; only K/V heads are stored, and several query heads share one.",
        ),
        (
            lambda layers, query_heads, kv_heads, dim, tokens, size: layers * kv_heads * dim * tokens * size,
            "half of it: a token leaves a key and a value.",
        ),
        (
            lambda layers, query_heads, kv_heads, dim, tokens, size: 2 * kv_heads * dim * tokens * size,
            "that is one layer; every layer stores its own keys and values.",
        ),
        (
            lambda layers, query_heads, kv_heads, dim, tokens, size: 2 * layers * kv_heads * dim * tokens,
            "those are numbers; multiply by the bytes of one.",
        ),
        (
            lambda layers, query_heads, kv_heads, dim, tokens, size: 2 * layers * kv_heads * dim * size,
            "that is one token; multiply by the number of tokens.",
        ),
    ]
    because = "2 (key and value) x layers x K/V heads x head dimension x tokens x bytes of a number."
    return judge_function(function, kv_bytes, BYTES_CASES, mistakes, because=because)


def kv_bytes(layers: int, query_heads: int, kv_heads: int, head_dim: int, tokens: int, number_bytes: int) -> int:
    """Bytes of keys and values."""
    return 2 * layers * kv_heads * head_dim * tokens * number_bytes


def q2(function: Any) -> Verdict:
    """How many tokens go through the model for an answer when nothing is kept?"""
    mistakes = [
        (lambda p, n: p + n - 1, "that is with a cache, where each token is computed once."),
        (lambda p, n: n * (p + n), "nearly: the sequence is that long only at the end; it grows by one a step."),
        (lambda p, n: n * (p + n - 1), "every step as long as the last one; the sequence grows by one a step."),
        (lambda p, n: n * p, "that forgets the answer's own tokens, which are computed again too."),
        (
            lambda p, n: n * p + n * (n + 1) // 2,
            "one too many a step: the token a step chooses is not computed in it.",
        ),
    ]
    because = "step i computes the prompt and the i tokens chosen so far, i = 0 .. n-1: n x p + n x (n-1) / 2."
    return judge_function(function, passes_without_cache, PASSES_CASES, mistakes, because=because)


def passes_without_cache(num_prompt: int, num_output: int) -> int:
    """Tokens computed over all steps when each starts from nothing."""
    return num_output * num_prompt + num_output * (num_output - 1) // 2


def q3(function: Any) -> Verdict:
    """How many equal requests can run to their end at the same time without one giving way?"""
    mistakes = [
        (
            lambda blocks, size, p, n: blocks * size // (p + n - 1),
            "blocks are not divided among requests: each ends in a block of its own, full or not.",
        ),
        (
            lambda blocks, size, p, n: blocks // ceil((p + n) / size),
            "the last token that is chosen has no keys and values.",
        ),
        (lambda blocks, size, p, n: blocks // ceil(p / size), "the answer needs blocks too, not only the prompt."),
        (lambda blocks, size, p, n: blocks // ((p + n - 1) // size or 1), "a block begun is a block held: round up."),
        (lambda blocks, size, p, n: blocks // (p + n - 1), "that is a block per token; a block holds several."),
    ]
    because = "each holds ceil((prompt + output - 1) / block size) blocks, and blocks are not shared here."
    return judge_function(function, requests_that_fit, FIT_CASES, mistakes, because=because)


def requests_that_fit(num_blocks: int, block_size: int, num_prompt: int, num_output: int) -> int:
    """Requests whose blocks fit into the pool at once."""
    return num_blocks // ceil((num_prompt + num_output - 1) / block_size)
