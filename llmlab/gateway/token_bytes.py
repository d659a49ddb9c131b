"""The bytes that a token stands for."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache
from typing import Any

from llmlab.api.reply import TokenLogprob
from llmlab.engine.run import Output
from llmlab.models.byte_tokenizer import ByteTokenizer

_BYTE_FALLBACK = re.compile(r"<0x([0-9A-F]{2})>")


class TokenBytes:
    """Looks up tokens of one tokenizer. A token may be part of a character, which text alone cannot show."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self._byte_level = not isinstance(tokenizer, ByteTokenizer) and "ByteLevel" in str(
            tokenizer.backend_tokenizer.decoder
        )

    def text(self, token_id: int) -> str:
        """The token as text; U+FFFD where it is not whole characters."""
        return self._tokenizer.decode([token_id], skip_special_tokens=False)

    def bytes(self, token_id: int) -> bytes:
        """The token's bytes; a special token's are its name."""
        if isinstance(self._tokenizer, ByteTokenizer):
            return self._tokenizer.token_bytes(token_id)
        name = self._tokenizer.convert_ids_to_tokens(token_id)
        if name is None:
            return b""
        if self._byte_level and all(character in _alphabet() for character in name):
            return bytes(_alphabet()[character] for character in name)
        fallback = _BYTE_FALLBACK.fullmatch(name)
        return bytes.fromhex(fallback[1]) if fallback else self.text(token_id).encode()

    def logprobs(
        self, output: Output, start: int, token_ids: Sequence[int], eos_token_ids: Sequence[int]
    ) -> tuple[TokenLogprob, ...]:
        """Log-probabilities of ``token_ids``, the output tokens from number ``start`` on; EOS, which is no text, is
        left out.
        """
        return tuple(
            TokenLogprob(
                self.text(token_id),
                tuple(self.bytes(token_id)),
                output.logprobs[i],
                tuple((self.text(other), tuple(self.bytes(other)), value) for other, value in output.top_logprobs[i]),
            )
            for i, token_id in enumerate(token_ids, start)
            if token_id not in eos_token_ids
        )


@cache
def _alphabet() -> dict[str, int]:
    """Byte-level BPE writes every byte as a printable character: itself, or the next free one from U+0100 on."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in set(printable)]
    return {chr(byte): byte for byte in printable} | {chr(256 + i): byte for i, byte in enumerate(others)}
