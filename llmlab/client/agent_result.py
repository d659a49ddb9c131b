"""What an agent's run cost, request by request."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal, Protocol


class Reply(Protocol):
    """What the loop needs of an answer; :class:`llmlab.client.message.Message` is one."""

    content: list[dict[str, Any]]
    stop_reason: str | None
    usage: dict[str, Any]

    @property
    def text(self) -> str:
        """The text blocks, joined."""


class Sender(Protocol):
    """What the loop needs of a client."""

    def send(self, request: dict[str, Any], *, wire_id: str | None = None) -> Reply:
        """Send a request body, under ``wire_id`` in the trace, and wait for the whole answer."""

    def count_tokens(self, request: dict[str, Any]) -> int:
        """Exact number of prompt tokens of a request body."""


@dataclass(frozen=True, slots=True)
class Turn:
    """One request of a run, in tokens. ``input`` excludes what was read from or written to the cache.

    ``kind``: ``turn``, ``cut`` (truncated and asked again with a higher limit) or ``compaction``. ``estimated`` is the
    client's guess at the whole prompt before it was sent; ``prompt`` is what it really was.
    """

    turn: int
    kind: Literal["turn", "cut", "compaction"]
    estimated: int
    input: int
    cache_read: int
    cache_write: int
    output: int
    stop_reason: str
    tools: tuple[str, ...] = ()

    @property
    def prompt(self) -> int:
        """All prompt tokens."""
        return self.input + self.cache_read + self.cache_write


def turn_of(turn: int, kind: Literal["turn", "cut", "compaction"], estimated: int, reply: Reply) -> Turn:
    """The row for one answer."""
    names = ("input_tokens", "cache_read_input_tokens", "cache_creation_input_tokens", "output_tokens")
    counts = (int(reply.usage.get(name) or 0) for name in names)
    asked = tuple(str(block.get("name", "")) for block in reply.content if block.get("type") == "tool_use")
    return Turn(turn, kind, estimated, *counts, reply.stop_reason or "", asked)


@dataclass(frozen=True, slots=True)
class AgentResult:
    """``message`` is the last answer. ``stopped`` is its stop reason, or ``max_turns`` when tools were still wanted."""

    turns: Sequence[Turn]
    message: Reply
    stopped: str

    @property
    def text(self) -> str:
        """Text of the last answer."""
        return self.message.text

    @property
    def usage(self) -> Mapping[str, int]:
        """Tokens of all requests together, compactions and truncated answers included."""
        names = ("input", "cache_read", "cache_write", "output")
        return {name: sum(getattr(turn, name) for turn in self.turns) for name in names}

    def table(self) -> list[dict[str, Any]]:
        """One row per request, ready for a data frame."""
        return [asdict(turn) | {"prompt": turn.prompt, "tools": ", ".join(turn.tools)} for turn in self.turns]
