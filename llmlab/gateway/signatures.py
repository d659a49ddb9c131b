"""Signing thinking, so that a block that comes back can be told from one that was changed or made up."""

from __future__ import annotations

import binascii
import hmac
import secrets
from base64 import b64decode, b64encode
from dataclasses import replace
from hashlib import sha256

from llmlab.api.conversation import Conversation, Thinking, ToolResult, Turn
from llmlab.api.errors import ApiError

_SEPARATE, _EMBEDDED = b"llmlab\x01", b"llmlab\x02"
_DIGEST = 32


class Signer:
    """HMAC-SHA256 over model and text, in base64 behind a version.

    ``key`` is random per process unless given, so blocks signed before a restart are not accepted after it.
    """

    def __init__(self, key: bytes | None = None) -> None:
        self._key = secrets.token_bytes(32) if key is None else key

    def sign(self, model: str, text: str, embed: bool = False) -> str:
        """The signature of a thinking block.

        ``embed`` puts the text itself into it, for replies whose thinking is not shown: the client can then return
        the signature alone.
        """
        payload = _EMBEDDED if embed else _SEPARATE
        payload += self._digest(model, text) + (_encoded(text) if embed else b"")
        return b64encode(payload).decode("ascii")

    def restore(self, model: str, block: Thinking) -> Thinking | None:
        """The block with its text (from the signature when that holds it), or ``None`` when it was not signed here."""
        try:
            payload = b64decode(block.signature, validate=True)
        except (binascii.Error, ValueError):
            return None
        start, digest = payload[: len(_SEPARATE)], payload[len(_SEPARATE) : len(_SEPARATE) + _DIGEST]
        rest = payload[len(_SEPARATE) + _DIGEST :]
        known = start in (_SEPARATE, _EMBEDDED) and not block.redacted
        text = _decoded(rest) if start == _EMBEDDED and not block.text else block.text
        return replace(block, text=text) if known and hmac.compare_digest(digest, self._digest(model, text)) else None

    def _digest(self, model: str, text: str) -> bytes:
        return hmac.new(self._key, _encoded(model) + b"\0" + _encoded(text), sha256).digest()


def _encoded(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")


def _decoded(data: bytes) -> str:
    """The reverse of :func:`_encoded`; of anything else a text that was not signed."""
    try:
        return data.decode("utf-8", "surrogatepass")
    except UnicodeDecodeError:
        return ""


def check_thinking(conversation: Conversation, signer: Signer, model: str) -> Conversation:
    """The conversation with hidden thinking restored.

    Thinking of the assistant turns after the last text of the user, and of the last assistant turn, must be as it was
    signed; older thinking is not read and not checked. Raises ``ApiError`` (400) naming the block's position.
    """
    checked = open_loop(conversation.turns) | _last_assistant(conversation.turns)
    turns = tuple(
        _checked_turn(turn, i, signer, model) if i in checked else turn for i, turn in enumerate(conversation.turns)
    )
    return replace(conversation, turns=turns)


def open_loop(turns: tuple[Turn, ...]) -> set[int]:
    """Indices of the assistant turns of the tool loop that is still going on: those after the user's last text."""
    start = max((i for i, turn in enumerate(turns) if turn.role == "user" and not _only_results(turn)), default=-1)
    return {i for i, turn in enumerate(turns) if i > start and turn.role == "assistant"}


def _only_results(turn: Turn) -> bool:
    return bool(turn.blocks) and all(isinstance(block, ToolResult) for block in turn.blocks)


def _last_assistant(turns: tuple[Turn, ...]) -> set[int]:
    found = [i for i, turn in enumerate(turns) if turn.role == "assistant"]
    return set(found[-1:])


def _checked_turn(turn: Turn, index: int, signer: Signer, model: str) -> Turn:
    blocks = []
    for i, block in enumerate(turn.blocks):
        restored = signer.restore(model, block) if isinstance(block, Thinking) else block
        if restored is None:
            raise ApiError(
                "invalid_request_error",
                f"messages.{index}.content.{i}: `thinking` or `redacted_thinking` blocks in the latest assistant "
                "message cannot be modified. These blocks must remain as they were in the original response.",
                param=f"messages.{index}.content.{i}",
            )
        blocks.append(restored)
    return replace(turn, blocks=tuple(blocks))
