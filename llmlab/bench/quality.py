"""What rounding costs in quality: perplexity on a fixed text, and how long greedy answers stay the same."""

from __future__ import annotations

import math
from collections.abc import Sequence
from importlib.resources import files
from statistics import mean
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from llmlab.lab import Lab

TEXT = "harbour.txt"


def fixed_text() -> str:
    """The text perplexity is measured on: 1,310 words of plain prose, written for this repository."""
    return (files("llmlab.bench") / "texts" / TEXT).read_text("utf-8")


def perplexity(lab: Lab, text: str | None = None) -> float:
    """``exp`` of the mean negative log-probability (nats) of every token of ``text`` but the first, in one context.

    The lab's own engine computes them as log-probabilities of a prompt. Of a model with 49,152 tokens that knows
    nothing the perplexity is 49,152.
    """
    ids = lab.tokenizer.encode(fixed_text() if text is None else text, add_special_tokens=False)
    run = lab.ask(ids, max_tokens=1, prompt_logprobs=0)
    return math.exp(-mean(value for value, _ in run.prompt_logprobs))


def rounded_before(model: str) -> str:
    """The format that a catalogue model's weights had in its file, such as ``Q4_1``; empty where it is not known.

    Weights that were on a grid of 16 levels per 32 stay on it in int4: then int4's quality says what rounding again
    costs, not what four bits cost.
    """
    from llmlab.models.catalogue import catalogue

    entry = catalogue().get(model)
    return "" if entry is None else entry.member.removesuffix(".gguf").rpartition(".")[2]


def same_share(answers: Sequence[Sequence[int]], others: Sequence[Sequence[int]]) -> float:
    """Share of positions, over all pairs of answers, at which both have the same token."""
    pairs = [(a, b) for one, other in zip(answers, others, strict=True) for a, b in zip(one, other, strict=False)]
    longest = sum(max(len(one), len(other)) for one, other in zip(answers, others, strict=True))
    return sum(a == b for a, b in pairs) / longest


def same_tokens(one: Sequence[int], other: Sequence[int]) -> int:
    """Tokens before the first difference; all of them when there is none."""
    return next((i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))
