"""Checks of lab 09, pages and shared prefixes."""

from __future__ import annotations

from math import ceil
from typing import Any

from llmlab.checks.judge import judge_function
from llmlab.checks.verdict import Verdict

# tokens in common, tokens of the prompt, block size
HIT_CASES = ((40, 40, 16), (37, 60, 16), (32, 32, 16), (32, 33, 16), (15, 90, 16), (64, 64, 8), (50, 51, 1))
# prompt tokens, output tokens, samples, block size
SAMPLES_CASES = ((40, 9, 4, 16), (32, 9, 4, 16), (40, 30, 2, 16), (7, 2, 8, 4), (100, 60, 3, 16))
# tokens held, longest sequence allowed, block size
SAVED_CASES = ((2_000, 200_000, 16), (1, 1_024, 16), (100, 1_024, 16), (512, 512, 16), (300, 4_096, 256))


def q1(function: Any) -> Verdict:
    """How many tokens of a prompt come from the cache when it begins like one that was computed before?"""
    mistakes = [
        (
            lambda common, prompt, size: common // size * size,
            "nearly: when the whole prompt is known, its last token is computed all the same.",
        ),
        (lambda common, prompt, size: common, "only full blocks are shared, and never the last token."),
        (
            lambda common, prompt, size: min(common, prompt - 1),
            "leaving out the last token is right, but only full blocks are shared.",
        ),
        (
            lambda common, prompt, size: min(common, prompt - 1) // size,
            "that is the number of blocks; multiply by the tokens of one.",
        ),
        (
            lambda common, prompt, size: (prompt - 1) // size * size,
            "that is for a prompt that is known wholly; look at what both have in common.",
        ),
        (
            lambda common, prompt, size: ceil(common / size) * size,
            "a block that differs in a token is another one.",
        ),
    ]
    because = "whole blocks of what is common, and never the last token, whose logits are needed."
    return judge_function(function, hit_tokens, HIT_CASES, mistakes, because=because)


def hit_tokens(num_common: int, num_prompt: int, block_size: int) -> int:
    """Tokens served from the cache."""
    return min(num_common, num_prompt - 1) // block_size * block_size


def q2(function: Any) -> Verdict:
    """How many blocks do the samples of one prompt hold together at their end?"""
    mistakes = [
        (
            lambda p, n, samples, size: samples * ceil((p + n - 1) / size),
            "that is without sharing; the prompt's full blocks are held once.",
        ),
        (
            lambda p, n, samples, size: ceil((p + n - 1) / size),
            "that is one sample; the others write tokens of their own.",
        ),
        (
            lambda p, n, samples, size: ceil(p / size) + samples * ceil((n - 1) / size),
            "the answer does not begin in a new block: it goes on in the prompt's last one, of which each has a copy.",
        ),
        (
            lambda p, n, samples, size: p // size + samples * (ceil((p + n) / size) - p // size),
            "the last token that is chosen has no keys and values.",
        ),
        (
            lambda p, n, samples, size: ceil(p / size) + samples * (ceil((p + n - 1) / size) - ceil(p / size)),
            "the prompt's last block is not full, so each sample writes into it and needs its own.",
        ),
    ]
    because = "the prompt's full blocks once, and from there on each sample has its own."
    return judge_function(function, sampled_blocks, SAMPLES_CASES, mistakes, because=because)


def sampled_blocks(num_prompt: int, num_output: int, num_samples: int, block_size: int) -> int:
    """Blocks that all samples hold together; each has at least two output tokens."""
    shared = num_prompt // block_size
    return shared + num_samples * (ceil((num_prompt + num_output - 1) / block_size) - shared)


def q3(function: Any) -> Verdict:
    """How many slots does a request leave to others that would be reserved for it otherwise?"""
    mistakes = [
        (lambda n, longest, size: longest - n, "the end of its last block is not free for others either."),
        (lambda n, longest, size: longest - n // size * size, "its last block is held, even if it is not full."),
        (lambda n, longest, size: -n % size, "that is what paging wastes; asked is what it leaves to others."),
        (lambda n, longest, size: longest // size - ceil(n / size), "those are blocks; count slots."),
        (lambda n, longest, size: longest, "it does hold the blocks of its own tokens."),
    ]
    because = "reserved: the longest sequence; held: its blocks, the last one wholly."
    return judge_function(function, slots_left, SAVED_CASES, mistakes, because=because)


def slots_left(num_tokens: int, longest: int, block_size: int) -> int:
    """Slots between what a reservation takes and what blocks take."""
    return longest - ceil(num_tokens / block_size) * block_size
