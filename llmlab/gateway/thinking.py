"""Between thinking and answering: what the model thought, closed, as the start of its answer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from llmlab.engine.run import Output
from llmlab.gateway.encoding import TextEncoder

THINK_STOP = "</think>"
MAX_REWRITTEN = 16
"""Tokens at the end that may hold the stop string or half a character; more are never taken back."""


def closed_thinking(output: Output, tokenizer: Any, encoder: TextEncoder, eos_token_ids: Sequence[int]) -> list[int]:
    """Token ids of a thinking phase as they were generated, and of the mark that closes it.

    From the token on in which the stop string began, text is encoded again; before it the ids are the engine's own, so
    that their blocks are found in its prefix cache.
    """
    kept = _generated(output, tokenizer, eos_token_ids)
    rest = output.text[len(tokenizer.decode(kept, skip_special_tokens=True)) :]
    gap = "\n" if output.text and not output.text.endswith("\n") else ""
    return kept + encoder.encode_literal(f"{rest}{gap}{THINK_STOP}\n\n")


def _generated(output: Output, tokenizer: Any, eos_token_ids: Sequence[int]) -> list[int]:
    """The longest start of the output's tokens whose text is a start of the output's text."""
    ids = list(output.token_ids)
    while ids and ids[-1] in eos_token_ids:
        ids.pop()
    for drop in range(min(MAX_REWRITTEN, len(ids)) + 1):
        kept = ids[: len(ids) - drop]
        if output.text.startswith(tokenizer.decode(kept, skip_special_tokens=True)):
            return kept
    return []
