"""A tokenizer whose tokens are the 256 bytes: for tests and for labs that need no weights."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from llmlab.errors import InvalidParameter

_BOS, _EOS = 256, 257
_SPECIAL = {_BOS: "<bos>", _EOS: "<eos>"}


class ByteTokenizer:
    """Token ``i < 256`` is the byte ``i``; ``<bos>`` is 256 and ``<eos>`` 257.

    It answers the part of the transformers tokenizer interface that llmlab uses. Text is only ever read as
    bytes: a prompt that contains ``<eos>`` gives five byte tokens, never the special one.
    """

    bos_token = _SPECIAL[_BOS]
    eos_token = _SPECIAL[_EOS]
    bos_token_id = _BOS
    eos_token_id = _EOS
    pad_token_id = _EOS
    vocab_size = 258

    def __len__(self) -> int:
        return self.vocab_size

    @property
    def all_special_ids(self) -> list[int]:
        """The ids that stand for no byte."""
        return list(_SPECIAL)

    def encode(self, text: str, add_special_tokens: bool = False) -> list[int]:
        """The UTF-8 bytes of ``text``, after ``<bos>`` if special tokens are asked for.

        A lone surrogate, which UTF-8 cannot hold, becomes ``?``.
        """
        ids = list(text.encode("utf-8", errors="replace"))
        return [_BOS, *ids] if add_special_tokens else ids

    def decode(self, ids: int | Sequence[int], skip_special_tokens: bool = True) -> str:
        """The text of ``ids``; bytes that are not UTF-8 become U+FFFD, special tokens nothing or their name.

        Raises :class:`~llmlab.errors.InvalidParameter` for an id outside ``0 .. 257``.
        """
        ids = [ids] if isinstance(ids, int) else ids
        kept = [i for i in ids if not (skip_special_tokens and i in _SPECIAL)]
        return b"".join(self.token_bytes(i) for i in kept).decode("utf-8", errors="replace")

    def token_bytes(self, token_id: int) -> bytes:
        """The bytes of one token; a special token gives its name in ASCII.

        Raises :class:`~llmlab.errors.InvalidParameter` for an id outside ``0 .. 257``.
        """
        if not 0 <= token_id < self.vocab_size:
            raise InvalidParameter(f"Token id {token_id} does not exist: the byte tokenizer has ids 0 to 257.")
        return _SPECIAL[token_id].encode() if token_id in _SPECIAL else bytes([token_id])

    def convert_ids_to_tokens(self, ids: int | Sequence[int]) -> str | list[str]:
        """Names to show: printable ASCII is itself, any other byte ``<0x0A>``, a special token its name.

        Raises :class:`~llmlab.errors.InvalidParameter` for an id outside ``0 .. 257``.
        """
        if not isinstance(ids, int):
            return [self.convert_ids_to_tokens(int(i)) for i in ids]
        name = self.token_bytes(ids).decode("latin-1")
        return name if name.isascii() and name.isprintable() else f"<0x{ids:02X}>"

    def apply_chat_template(
        self,
        messages: Sequence[Mapping[str, str]],
        tokenize: bool = False,
        add_generation_prompt: bool = True,
        **_: object,
    ) -> str | list[int]:
        """One ``role: content`` line per message, then ``assistant:`` if the model is to answer.

        Returns the text, or its token ids if ``tokenize``. Other keywords that templates take are ignored.
        """
        lines = [f"{message['role']}: {message['content']}\n" for message in messages]
        text = "".join(lines) + ("assistant:" if add_generation_prompt else "")
        return self.encode(text) if tokenize else text
