"""Checks of lab 00, one request from prompt to last token. Each is given the request's trace (``run.trace``)."""

from __future__ import annotations

from math import ceil
from typing import Any

from llmlab.checks.judge import judge_function, judge_number
from llmlab.checks.verdict import Verdict
from llmlab.trace import Trace

HIT_CASES = ((36, 16), (37, 16), (32, 16), (33, 16), (16, 16), (64, 8), (5, 16), (40, 4))


def q1(answer: Any, trace: Trace) -> Verdict:
    """How many engine steps did the request take part in?"""
    request = trace.requests.iloc[-1]
    prompt, output = int(request.num_prompt_tokens), int(request.num_output_tokens)
    rows = trace.schedule
    steps = int(((rows.request_id == request.request_id) & (rows.action == "ran")).sum())
    mistakes = [
        (output + 1, "the prefill is not a step more: the step that computes the prompt also chooses the first token."),
        (output - 1, "those are the decode steps; the prefill is a step too."),
        (prompt + output, "that would be a step per position; the prompt's positions are computed together."),
        (prompt, "those are the prompt's tokens; a step can compute all of them at once."),
        (request.params["max_tokens"], "that is max_tokens, a limit; the model ended its answer earlier."),
    ]
    because = f"1 step with prefill, then {steps - 1} decode steps: {output} output tokens in {steps} steps."
    return judge_number(answer, steps, mistakes, because=because, hint="Count the rows of trace.schedule that ran.")


def q2(answer: Any, trace: Trace) -> Verdict:
    """How many K/V blocks did the request hold at its end?"""
    request, size = trace.requests.iloc[-1], trace.info.block_size
    prompt, output = int(request.num_prompt_tokens), int(request.num_output_tokens)
    stored = prompt + output - 1
    blocks = ceil(stored / size)
    mistakes = [
        (stored // size, "those are the full blocks; the last tokens lie in one that is only partly filled."),
        (stored, "that is a block per token; a block holds several."),
        (prompt + output, "that is a block per token; a block holds several."),
        (ceil(output / size), "that counts the answer alone; the prompt's keys and values are kept too."),
        (trace.info.num_blocks, "that is the whole pool; a request holds only the blocks of its own tokens."),
    ]
    because = f"{prompt} + {output} - 1 positions have keys and values, {size} to a block, so {blocks} blocks."
    return judge_number(
        answer, blocks, mistakes, because=because, hint="Divide stored positions by trace.info.block_size."
    )


def q3(function: Any) -> Verdict:
    """How many tokens of a prompt come from the cache when it is sent again?"""
    mistakes = [
        (
            lambda n, size: n // size * size,
            "nearly: a prompt of full blocks still computes its last token.",
        ),
        (lambda n, size: n, "only full blocks are shared, and never the last token."),
        (lambda n, size: n - 1, "leaving out the last token is right, but only full blocks are shared."),
        (lambda n, size: (n - 1) // size, "that is the number of blocks; multiply by the tokens of one."),
        (lambda n, size: n // size, "that is a number of blocks; count tokens, and never the last one."),
        (lambda n, size: ceil(n / size) * size, "a block that is only partly filled is not shared."),
    ]
    because = "full blocks only, and never the last token, whose logits choose the first output token."
    return judge_function(function, cached_tokens, HIT_CASES, mistakes, because=because)


def cached_tokens(num_prompt_tokens: int, block_size: int) -> int:
    """Tokens of the longest run of full blocks that leaves the last token to compute."""
    return (num_prompt_tokens - 1) // block_size * block_size
