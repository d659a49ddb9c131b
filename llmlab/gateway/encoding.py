"""From rendered text to token ids, with the place of every token, and with no control token made by content."""

from __future__ import annotations

import re
import threading
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from typing import Any

from llmlab.errors import InvalidParameter
from llmlab.models.byte_tokenizer import ByteTokenizer


@dataclass(frozen=True, slots=True)
class Encoding:
    """Token ids, and for each the offset in the text at which its characters end (never falling)."""

    ids: list[int]
    ends: list[int]

    def tokens_before(self, offset: int) -> int:
        """Number of leading tokens that lie entirely before a character offset."""
        return bisect_right(self.ends, offset)


class TextEncoder:
    """Encodes text of a chat template with untrusted content in it. May be used from several threads.

    It works on its own copies of the tokenizer: a Hugging Face tokenizer keeps the choice whether special tokens are
    read from text as state, so changing it under the engine's detokenizer would not be safe.
    """

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self._lock = threading.Lock()
        self._plain = self._literal = None
        self.specials: dict[str, int] = {}
        self._pattern: re.Pattern[str] | None = None
        if isinstance(tokenizer, ByteTokenizer):
            return
        if not getattr(tokenizer, "is_fast", False):
            raise InvalidParameter(f"{type(tokenizer).__name__} tells no offsets: serving needs a fast tokenizer")
        added = tokenizer.added_tokens_decoder.items()
        self.specials = {str(token): i for i, token in added if token.special}
        self._control_ids = frozenset(self.specials.values())
        if self.specials:
            longest_first = sorted(self.specials, key=len, reverse=True)
            self._pattern = re.compile("|".join(map(re.escape, longest_first)))
        self._copy(literal=False)  # takes a moment that should not be the first request's

    @cached_property
    def max_token_length(self) -> int | None:
        """Most characters of text that one token can stand for; ``None`` when a normalizer may drop any number."""
        if isinstance(self._tokenizer, ByteTokenizer):
            return 1
        if self._tokenizer.backend_tokenizer.normalizer is not None:
            return None
        return max(map(len, self._tokenizer.get_vocab()))

    def specials_in(self, text: str) -> list[re.Match[str]]:
        """Where the text spells special tokens."""
        return [] if self._pattern is None else list(self._pattern.finditer(text))

    def special_length(self, text: str, offset: int) -> int:
        """Characters of the special token that the text spells at ``offset``."""
        match = self._pattern.match(text, offset)
        assert match is not None, "there is no special token here"
        return match.end() - offset

    def encode(self, text: str, literal: Sequence[tuple[int, int]] = ()) -> Encoding:
        """``text`` without anything added. Special tokens in the ranges ``literal`` are read as plain text."""
        if isinstance(self._tokenizer, ByteTokenizer):
            return _bytes_of(text)
        if not literal:
            whole = self._encode(text, 0, self._copy(literal=False))
            if self._is_expected(whole, text):
                return whole
        ids: list[int] = []
        ends: list[int] = []
        for start, end, hostile in self._pieces(text, literal):
            piece = self._encode(text[start:end], start, self._copy(literal=hostile))
            ids += piece.ids
            ends += piece.ends
        return Encoding(ids, ends)

    def encode_literal(self, text: str) -> list[int]:
        """``text`` of which nothing becomes a control token."""
        return self.encode(text, [(m.start(), m.end()) for m in self.specials_in(text)]).ids

    def _is_expected(self, encoding: Encoding, text: str) -> bool:
        """Whether only what the text spells became control tokens, and not what a normalizer made look like one."""
        controls = self._control_ids
        return sum(token_id in controls for token_id in encoding.ids) == len(self.specials_in(text))

    def _pieces(self, text: str, literal: Sequence[tuple[int, int]]) -> list[tuple[int, int, bool]]:
        """Stretches ``(start, end, is_literal)`` between the template's own special tokens.

        One with literal ranges stands alone; its neighbours, special tokens among them, are encoded together. Without
        literal ranges all that is not spelled as a special token is literal.
        """
        pieces: list[tuple[int, int, bool]] = []
        edges = sorted(self._control_edges(text, literal))
        for i, (start, end) in enumerate(zip([0, *edges], [*edges, len(text)], strict=True)):
            hostile = i % 2 == 0 and (not literal or any(start <= low < end for low, _ in literal))
            if pieces and not hostile and not pieces[-1][2]:
                pieces[-1] = (pieces[-1][0], end, False)
            elif start < end:
                pieces.append((start, end, hostile))
        return pieces

    def _control_edges(self, text: str, literal: Sequence[tuple[int, int]]) -> Iterator[int]:
        """Starts and ends of special tokens that the template wrote: all outside the literal ranges."""
        outside = zip([0, *(high for _, high in literal)], [*(low for low, _ in literal), len(text)], strict=True)
        for start, end in outside:
            for match in self._pattern.finditer(text, start, end):
                yield from match.span()

    def _encode(self, text: str, offset: int, tokenizer: Any) -> Encoding:
        try:
            # encode_batch lets other threads run meanwhile, encode does not
            (found,) = tokenizer.encode_batch([text], add_special_tokens=False)
        except (TypeError, UnicodeError) as error:
            raise InvalidParameter(f"the prompt is not Unicode text that can be encoded: {error}") from error
        return Encoding(found.ids, list(accumulate((end + offset for _, end in found.offsets), max)))

    def _copy(self, literal: bool) -> Any:
        from tokenizers import Tokenizer

        with self._lock:
            if self._plain is None:
                serialized = self._tokenizer.backend_tokenizer.to_str()
                self._plain, self._literal = Tokenizer.from_str(serialized), Tokenizer.from_str(serialized)
                for copy in (self._plain, self._literal):
                    copy.no_truncation()
                    copy.no_padding()
                self._literal.encode_special_tokens = True
        return self._literal if literal else self._plain


def _bytes_of(text: str) -> Encoding:
    """One token per byte; a character's tokens all end where it does."""
    ids: list[int] = []
    ends: list[int] = []
    for i, character in enumerate(text, start=1):
        encoded = character.encode("utf-8", errors="replace")
        ids += encoded
        ends += [i] * len(encoded)
    return Encoding(ids, ends)
