"""The token sequences a head learns from: the target's own conversations, and documentation that every Python has."""

from __future__ import annotations

import hashlib
import pydoc_data.topics
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from llmlab.training.conversations import Conversation


@dataclass(frozen=True, slots=True)
class Sequence:
    """Token ids, and the first index at which a head is to foresee something (see :mod:`.objective`)."""

    tokens: tuple[int, ...]
    first: int = 0


def from_conversations(conversations: Iterable[Conversation], length: int) -> list[Sequence]:
    """One sequence a conversation of at most ``length`` tokens; only the answer is to be foreseen.

    The first token of an answer comes from the target alone, so foreseeing begins with the second.
    """
    return [Sequence(tuple(talk.tokens[:length]), len(talk.prompt) - 1) for talk in conversations]


def from_topics(tokenizer, length: int, count: int) -> list[Sequence]:
    """The first ``count`` stretches of ``length`` tokens of ``pydoc_data.topics`` (PSF licence)."""
    ids = tokenizer.encode(topics_text(), add_special_tokens=False)
    starts = range(0, min(len(ids) - length, count * length), length)
    return [Sequence(tuple(ids[start : start + length])) for start in starts]


def topics_text() -> str:
    """All topics of Python's built-in help; they differ a little from one Python version to the next."""
    return "\n\n".join(pydoc_data.topics.topics.values())


def frequent_tokens(sequences: Iterable[Sequence], size: int, vocab_size: int) -> list[int]:
    """The ``size`` most frequent tokens in ascending order; where they tie, and to fill up, lower ids come first."""
    counts = Counter(token for sequence in sequences for token in sequence.tokens)
    ranked = sorted(range(vocab_size), key=lambda token: (-counts[token], token))
    return sorted(ranked[:size])


def digest(sequences: Iterable[Sequence]) -> str:
    """The sha256 of all tokens, in hexadecimal."""
    result = hashlib.sha256()
    for sequence in sequences:
        result.update(",".join(map(str, sequence.tokens)).encode() + b"\n")
    return result.hexdigest()
