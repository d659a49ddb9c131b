"""Checks of lab 10, sharing one model among many requests. Each is given a function."""

from __future__ import annotations

from math import ceil
from typing import Any

from llmlab.checks.judge import judge_function
from llmlab.checks.verdict import Verdict

SLOT_CASES = (([10, 2000],), ([20, 500],), ([4, 12, 3, 6],), ([7, 7, 7],), ([5],))
CHUNK_CASES = ((250, 64, 3), (61, 64, 3), (62, 64, 3), (1000, 512, 0), (130, 32, 6), (24, 2048, 8))
ADMIT_CASES = (
    (64, 16, 40, 900),
    (64, 16, 48, 900),
    (20, 4, 7, 30),
    (400, 16, 256, 256),
    (30, 8, 1, 50),
    (9, 16, 17, 8),
)
RESERVES = "that reserves room for max_tokens, which the careful rule does; ours asks for room for the prompt."


def q1(function: Any) -> Verdict:
    """For how many slot-steps is a slot of a static batch empty?"""
    mistakes = [
        (
            lambda lengths: max(lengths) - min(lengths),
            "that is the shortest one's slot alone; every answer that is not the longest leaves its slot empty.",
        ),
        (lambda lengths: len(lengths) * max(lengths), "those are all slot-steps; subtract the ones that are used."),
        (sum, "those are the slot-steps in use; the empty ones are the rest of slots times steps."),
        (max, "that is how many steps the batch takes; count slots in steps."),
        (
            lambda lengths: max(lengths) - sum(lengths) / len(lengths),
            "that is the mean over the slots; add them up.",
        ),
    ]
    because = "every slot lasts as long as the longest answer, and works only as long as its own."
    return judge_function(function, empty_slot_steps, SLOT_CASES, mistakes, because=because)


def empty_slot_steps(lengths: list[int]) -> int:
    """Slot-steps of a static batch in which nothing is computed."""
    return len(lengths) * max(lengths) - sum(lengths)


def q2(function: Any) -> Verdict:
    """In how many steps is a prompt computed while others decode?"""
    mistakes = [
        (
            lambda prompt, budget, decoding: ceil(prompt / budget),
            "nearly: the requests that decode come first and take one token each from the budget.",
        ),
        (
            lambda prompt, budget, decoding: prompt // (budget - decoding),
            "those are the full chunks; what is left over takes a step too.",
        ),
        (
            lambda prompt, budget, decoding: prompt // (budget - decoding) + 1,
            "nearly: a prompt that fills its last chunk needs no further step.",
        ),
        (
            lambda prompt, budget, decoding: ceil((prompt + decoding) / budget),
            "the decoding requests take their tokens in every step, not once.",
        ),
        (
            lambda prompt, budget, decoding: ceil(prompt / (budget - decoding)) + 1,
            "the step that computes the last chunk also chooses the first token; no step more.",
        ),
        (lambda prompt, budget, decoding: budget - decoding, "that is what one step leaves for the prompt: divide."),
    ]
    because = "the decoding requests take a token each, the prompt what is left of the budget, until it is through."
    return judge_function(function, prefill_steps, CHUNK_CASES, mistakes, because=because)


def prefill_steps(prompt: int, budget: int, decoding: int) -> int:
    """Steps in which a prompt is computed beside so many decoding requests."""
    return ceil(prompt / (budget - decoding))


def q3(function: Any) -> Verdict:
    """How many equal requests run in the first step when only blocks are short?"""
    mistakes = [
        (careful, RESERVES),
        (lambda blocks, size, prompt, max_tokens: careful(blocks, size, prompt, max_tokens + 1), RESERVES),
        (
            lambda blocks, size, prompt, max_tokens: blocks * size // prompt,
            "nearly: a block belongs to one request, so the end of each one's last block stays empty.",
        ),
        (
            lambda blocks, size, prompt, max_tokens: blocks // max(prompt // size, 1),
            "the last, partly filled block of a prompt is a block too: round up.",
        ),
        (
            lambda blocks, size, prompt, max_tokens: blocks // prompt,
            "that is a block per token; a block holds block_size of them.",
        ),
    ]
    because = "whole blocks for the prompt of each; what the answers need is found later, or somebody gives way."
    return judge_function(function, admitted, ADMIT_CASES, mistakes, because=because)


def admitted(num_blocks: int, block_size: int, prompt: int, max_tokens: int) -> int:
    """Requests that join in the first step; ``max_tokens`` plays no part in it."""
    return num_blocks // ceil(prompt / block_size)


def careful(num_blocks: int, block_size: int, prompt: int, max_tokens: int) -> int:
    """Requests that join when each reserves blocks for all it may ever hold."""
    return num_blocks // ceil((prompt + max_tokens - 1) / block_size)
