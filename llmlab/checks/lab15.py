"""Checks of lab 15, the symptoms. The first is given the table of hits."""

from __future__ import annotations

from math import ceil
from typing import TYPE_CHECKING, Any

from llmlab.checks.judge import judge_function, judge_number
from llmlab.checks.verdict import Verdict

if TYPE_CHECKING:
    import pandas as pd

HIT_CASES = (
    (0, 100, 16),
    (15, 100, 16),
    (16, 100, 16),
    (50, 100, 16),
    (99, 100, 16),
    (63, 64, 16),
    (30, 40, 4),
    (64, 64, 16),
)
BILL_CASES = ((1000, 0, 10), (1000, 900, 10), (1000, 1000, 0), (500, 16, 200))


def q1(answer: Any, hits: pd.DataFrame) -> Verdict:
    """How many prompt tokens were computed with a word more in the middle?"""
    prompt, cached = (int(hits.loc["middle", name]) for name in ("num_prompt_tokens", "num_cached_tokens"))
    mistakes = [
        (cached, "those are the tokens that were *not* computed: they came from the cache."),
        (prompt, "that is the whole prompt; its first half was still in the cache."),
        (1, "one word is new, but everything behind it stands behind another text now."),
        (prompt // 2, "about half is right; count in whole blocks: take it from the table."),
        (cached // 16, "that is a number of blocks; count tokens."),
    ]
    because = f"{prompt} tokens, of which {cached} lay in blocks before the change."
    hint = "Subtract num_cached_tokens from num_prompt_tokens in the row `middle`."
    return judge_number(answer, prompt - cached, mistakes, because=because, hint=hint)


def q2(function: Any) -> Verdict:
    """How many tokens are hit when the token at index ``changed`` is another one?"""
    mistakes = [
        (lambda changed, num, size: changed, "only whole blocks are hit; the block with the change is not."),
        (lambda changed, num, size: changed // size, "that is the number of blocks; multiply by the tokens of one."),
        (lambda changed, num, size: ceil(changed / size) * size, "the block with the change in it is not hit."),
        (lambda changed, num, size: (changed // size + 1) * size, "the block with the change in it is not hit."),
        (
            lambda changed, num, size: (num - changed) // size * size,
            "those are behind the change, where nothing is hit.",
        ),
        (lambda changed, num, size: 0, "blocks before the change are still hit."),
        (
            lambda changed, num, size: changed // size * size,
            "nearly: the last token is always computed, for its logits choose the first output token.",
        ),
    ]
    because = "whole blocks before the change, and never the last token."
    return judge_function(function, hit_tokens, HIT_CASES, mistakes, because=because)


def q3(function: Any) -> Verdict:
    """What does a request cost, from the counts of Chat Completions?"""
    mistakes = [
        (
            lambda prompt, cached, output: 100 * prompt + 10 * cached + 500 * output,
            "cached_tokens are inside prompt_tokens: these are billed twice.",
        ),
        (lambda prompt, cached, output: 100 * prompt + 500 * output, "cached tokens cost less."),
        (
            lambda prompt, cached, output: 100 * (prompt - cached) + 500 * output,
            "cached tokens are cheap, not free.",
        ),
        (lambda prompt, cached, output: 100 * (prompt - cached) + 10 * cached + 100 * output, "output costs 500 each."),
        (
            lambda prompt, cached, output: 100 * (prompt - cached + output) + 10 * cached + 500 * output,
            "output is not input: it is billed once, at its own price.",
        ),
    ]
    because = "100 for each prompt token that is not cached, 10 for each that is, 500 for each token of output."
    return judge_function(function, cost, BILL_CASES, mistakes, because=because)


def hit_tokens(changed: int, num_tokens: int, block_size: int) -> int:
    """Tokens in whole blocks before the first change, without the last token of the prompt."""
    return min(changed, num_tokens - 1) // block_size * block_size


def cost(prompt_tokens: int, cached_tokens: int, completion_tokens: int) -> int:
    """In hundredths of the price of an input token."""
    return 100 * (prompt_tokens - cached_tokens) + 10 * cached_tokens + 500 * completion_tokens
