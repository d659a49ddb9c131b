"""Checks of lab 16, what fits. Each is given a function."""

from __future__ import annotations

from math import ceil
from typing import Any

from llmlab.checks.judge import judge_function
from llmlab.checks.verdict import Verdict

KV_CASES = ((30, 9, 3, 64, 1024, 2), (32, 32, 8, 128, 2000, 2), (80, 64, 8, 128, 100_000, 2), (2, 4, 4, 8, 10, 4))
FIT_CASES = (
    (80_000_000_000, 16_060_522_496, 131_072, 16, 8192),
    (1_000_000, 100_000, 100, 16, 100),
    (1_000_000, 100_000, 100, 16, 96),
    (10_000, 1_000, 10, 16, 17),
    (10_000, 1_000, 10, 1, 17),
    (50_000, 20_000, 8, 32, 1_000),
)
BYTE_CASES = ((576, 576, 4, 32), (3072, 576, 4, 64), (64, 64, 8, 64), (128, 256, 4, 128), (4096, 4096, 4, 32))


def q1(function: Any) -> Verdict:
    """Bytes of the keys and values of some tokens."""
    mistakes = [
        (
            lambda layers, heads, kv_heads, dim, tokens, size: 2 * layers * heads * dim * tokens * size,
            "that counts query heads; only the K/V heads are stored, which is what sharing them is for.",
        ),
        (
            lambda layers, heads, kv_heads, dim, tokens, size: layers * kv_heads * dim * tokens * size,
            "that is the keys alone; there is a value beside every key.",
        ),
        (
            lambda layers, heads, kv_heads, dim, tokens, size: 2 * kv_heads * dim * tokens * size,
            "that is one layer; every layer has keys and values of its own.",
        ),
        (
            lambda layers, heads, kv_heads, dim, tokens, size: 2 * layers * kv_heads * dim * tokens,
            "those are numbers; each takes size bytes.",
        ),
        (
            lambda layers, heads, kv_heads, dim, tokens, size: layers * (heads + 2 * kv_heads) * dim * tokens * size,
            "queries are used in their own step and not stored.",
        ),
    ]
    because = "a key and a value, in every layer, for every K/V head; query heads share them."
    return judge_function(function, kv_bytes, KV_CASES, mistakes, because=because)


def kv_bytes(num_layers: int, num_heads: int, num_kv_heads: int, head_dim: int, num_tokens: int, size: int) -> int:
    """Bytes of K/V; ``num_heads`` plays no part."""
    return 2 * num_layers * num_kv_heads * head_dim * num_tokens * size


def q2(function: Any) -> Verdict:
    """How many requests fit beside the weights, in whole blocks?"""
    mistakes = [
        (
            lambda memory, weights, kv, block, tokens: (memory - weights) // (kv * tokens),
            "nearly: the end of each request's last block stays empty, so count whole blocks.",
        ),
        (
            lambda memory, weights, kv, block, tokens: memory // (kv * block) // ceil(tokens / block),
            "the weights are there before the first request: subtract them.",
        ),
        (
            lambda memory, weights, kv, block, tokens: (memory - weights) // (kv * block) // max(tokens // block, 1),
            "the last, partly filled block of a request is a block too: round up.",
        ),
        (
            lambda memory, weights, kv, block, tokens: ceil((memory - weights) / (kv * block) / ceil(tokens / block)),
            "a request that fits in part does not fit: round down at the end.",
        ),
        (
            lambda memory, weights, kv, block, tokens: (memory - weights) // (kv * block),
            "those are the blocks; a request takes several.",
        ),
    ]
    because = "what the weights leave is cut into whole blocks, and a request takes whole blocks."
    return judge_function(function, requests_that_fit, FIT_CASES, mistakes, because=because)


def requests_that_fit(memory: int, weights: int, kv_per_token: int, block_size: int, num_tokens: int) -> int:
    """Requests of ``num_tokens`` tokens that can be open at once."""
    return (memory - weights) // (kv_per_token * block_size) // ceil(num_tokens / block_size)


def q3(function: Any) -> Verdict:
    """Bytes of a matrix of integers with a scale and a zero per group."""
    mistakes = [
        (
            lambda rows, columns, bits, group: rows * columns * bits // 8,
            "those are the codes alone; without scales and zeros they mean nothing.",
        ),
        (
            lambda rows, columns, bits, group: rows * columns * bits // 8 + rows * (columns // group) * 2,
            "nearly: every group has a zero beside its scale, two bytes each.",
        ),
        (
            lambda rows, columns, bits, group: rows * columns * bits // 8 + columns // group * 4,
            "groups lie within a row, so each row has scales of its own.",
        ),
        (
            lambda rows, columns, bits, group: rows * columns * bits + rows * (columns // group) * 32,
            "those are bits; eight make a byte.",
        ),
        (
            lambda rows, columns, bits, group: rows * columns * bits // 8 + rows * 4,
            "that is a scale and a zero for each row; there is one for each group of it.",
        ),
    ]
    because = "codes at their width, and four bytes for every group: with 4 bits and groups of 32, five bits a weight."
    return judge_function(function, integer_bytes, BYTE_CASES, mistakes, because=because)


def integer_bytes(rows: int, columns: int, bits: int, group: int) -> int:
    """Bytes of codes, 16-bit scales and 16-bit zeros."""
    return rows * columns * bits // 8 + rows * (columns // group) * 4
