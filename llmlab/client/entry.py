"""One entry of a session, and which entries ever leave the machine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

Kind = Literal["user", "assistant", "progress", "display", "compaction"]
KINDS: tuple[str, ...] = get_args(Kind)

SYNTHETIC = "<synthetic>"
"""``model`` of an assistant entry that no model wrote: the client's own words after a failure."""


@dataclass(frozen=True, slots=True)
class Entry:
    """Something that happened in a session (article A, section 2.3).

    ``kind``: ``user`` (a prompt or tool results) and ``assistant`` (a reply) are what requests are made of;
    ``progress`` and ``display`` were only shown; ``compaction`` holds a summary that stands for everything before it
    except the last ``keeps`` entries. ``content`` is a list of content blocks as on the wire. ``model``,
    ``stop_reason`` and ``usage`` are those of a reply. ``at`` is seconds since the epoch, 0 when unknown.
    """

    kind: Kind
    content: tuple[Mapping[str, Any], ...] = ()
    model: str = ""
    stop_reason: str = ""
    usage: Mapping[str, Any] = field(default_factory=dict)
    keeps: int = 0
    at: float = 0.0

    @property
    def text(self) -> str:
        """The text blocks, joined."""
        return "".join(str(block.get("text", "")) for block in self.content if block.get("type") == "text")

    @property
    def hidden_reason(self) -> str:
        """Why the entry is never sent, or an empty string if it is."""
        if self.kind in ("progress", "display"):
            return f"{self.kind} is for the person only"
        if self.kind == "assistant" and self.model == SYNTHETIC:
            return "written by the client, not by a model"
        return "empty" if all(map(is_empty_text, self.content)) else ""


def is_empty_text(block: Mapping[str, Any]) -> bool:
    """Whether a block is text of length 0, which servers refuse."""
    return block.get("type") == "text" and not block.get("text")


def text_block(text: str) -> dict[str, Any]:
    """A text content block."""
    return {"type": "text", "text": text}


def user(text: str, **more: Any) -> Entry:
    """A person's prompt."""
    return Entry("user", (text_block(text),), **more)


def reply(
    content: Sequence[Mapping[str, Any]], *, model: str, stop_reason: str, usage: Mapping[str, Any], at: float = 0.0
) -> Entry:
    """A model's reply."""
    return Entry("assistant", tuple(content), model, stop_reason, usage, at=at)


def synthetic(text: str, **more: Any) -> Entry:
    """A reply the client wrote itself, such as an error message; kept for the person, never sent."""
    return Entry("assistant", (text_block(text),), SYNTHETIC, **more)


def note(kind: Literal["progress", "display"], text: str, **more: Any) -> Entry:
    """Something only shown to the person."""
    return Entry(kind, (text_block(text),), **more)
