"""The bytes that a token stands for."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from functools import cache, cached_property
from typing import Any

_BYTE_FALLBACK = re.compile(r"<0x([0-9A-F]{2})>")
_SPACE = "\u2581"
"""How SentencePiece writes a space."""


class TokenBytes:
    """Looks up tokens of one tokenizer. A token may be part of a character, which text alone cannot show."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer

    @cached_property
    def _byte_level(self) -> bool:
        return "ByteLevel" in str(self._tokenizer.backend_tokenizer.decoder)

    def text(self, token_id: int) -> str:
        """The token as text; U+FFFD where it is not whole characters."""
        return self._tokenizer.decode([token_id], skip_special_tokens=False)

    def bytes(self, token_id: int) -> bytes:
        """The token's bytes; a special token's are its name. Empty for an id that stands for nothing."""
        if hasattr(self._tokenizer, "token_bytes"):
            return self._tokenizer.token_bytes(token_id)
        name = self._tokenizer.convert_ids_to_tokens(token_id)
        if name is None:
            return b""
        if self._byte_level and all(character in _alphabet() for character in name):
            return bytes(_alphabet()[character] for character in name)
        fallback = _BYTE_FALLBACK.fullmatch(name)
        return bytes.fromhex(fallback[1]) if fallback else self.text(token_id).encode()


class TokenPieces(Mapping[int, bytes]):
    """Token id -> its bytes, looked up in a tokenizer when asked for. Ids that stand for nothing are not in it."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer, self._table = tokenizer, TokenBytes(tokenizer)
        self._known: dict[int, bytes] = {}

    def __getitem__(self, token_id: int) -> bytes:
        if token_id not in self._known:
            self._known[token_id] = self._look_up(token_id)
        if not self._known[token_id]:
            raise KeyError(token_id)
        return self._known[token_id]

    def _look_up(self, token_id: int) -> bytes:
        try:
            piece = self._table.bytes(token_id)
            return b" " + piece if self._lost_space(token_id, piece) else piece
        except Exception:  # the tokenizer's, not ours: a trace must be readable and saved without it
            return b""

    def _lost_space(self, token_id: int, piece: bytes) -> bool:
        """Whether the space a token begins with was removed, as SentencePiece decoders do at the start of a text."""
        name = self._tokenizer.convert_ids_to_tokens(token_id)
        return name is not None and name.startswith(_SPACE) and not piece.startswith((b" ", _SPACE.encode()))

    def __iter__(self) -> Iterator[int]:
        return (token_id for token_id in range(len(self._tokenizer)) if token_id in self)

    def __len__(self) -> int:
        return sum(1 for _ in self)


@cache
def _alphabet() -> dict[str, int]:
    """Byte-level BPE writes every byte as a printable character: itself, or the next free one from U+0100 on."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in set(printable)]
    return {chr(byte): byte for byte in printable} | {chr(256 + i): byte for i, byte in enumerate(others)}
