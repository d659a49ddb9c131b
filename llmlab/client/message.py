"""What a finished exchange leaves: the message, and when each part of it happened."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

CUT_SHORT = frozenset({"max_tokens", "model_context_window_exceeded"})
"""Stop reasons after which the last block may be unfinished."""


@dataclass(slots=True)
class Timings:
    """Moments of the attempt that gave the message, in seconds after ``sent`` (itself 0); ``None``: never came.

    ``sent_at`` is that origin on ``time.perf_counter_ns``, so that a trace can be put beside it. ``first_delta`` is the
    first text, thinking or argument to arrive: measured, never limited (article A, section 3.5).
    """

    sent_at: int = 0
    head: float | None = None
    first_byte: float | None = None
    first_delta: float | None = None
    end: float | None = None


@dataclass(slots=True)
class Message:
    """An assistant message in the Messages API's form.

    ``content``: blocks as dicts. A ``tool_use`` whose arguments did not arrive whole has them as text under
    ``partial_json``, is left out of :attr:`tool_uses` and must not be executed. ``usage``: the last counts reported.
    ``is_complete``: the stream came to its proper end. ``cut_off``: why it did not, where complete tool calls were
    kept nevertheless. ``unknown``: events and deltas this client has no rule for. ``attempts``: requests made,
    counting the one that succeeded. ``request_id``: the server's; ``client_request_id``: ours, for its log.
    """

    id: str = ""
    model: str = ""
    role: str = "assistant"
    content: list[dict[str, Any]] = field(default_factory=list)
    stop_reason: str | None = None
    stop_sequence: str | None = None
    stop_details: dict[str, Any] | None = None
    usage: dict[str, Any] = field(default_factory=dict)
    diagnostics: dict[str, Any] | None = None
    context_management: dict[str, Any] | None = None
    is_complete: bool = False
    cut_off: str | None = None
    unknown: list[dict[str, Any]] = field(default_factory=list)
    request_id: str | None = None
    client_request_id: str | None = None
    attempts: int = 1
    timings: Timings = field(default_factory=Timings)

    @property
    def text(self) -> str:
        """All text blocks joined."""
        return "".join(block.get("text", "") for block in self.content if block.get("type") == "text")

    @property
    def thinking(self) -> str:
        """All thinking blocks joined."""
        return "".join(block.get("thinking", "") for block in self.content if block.get("type") == "thinking")

    @property
    def tool_uses(self) -> list[dict[str, Any]]:
        """``tool_use`` blocks that may be executed: their arguments are whole."""
        return [block for block in self.content if block.get("type") == "tool_use" and "partial_json" not in block]

    @property
    def incomplete_tool_uses(self) -> list[dict[str, Any]]:
        """``tool_use`` blocks that must not be executed."""
        return [block for block in self.content if block.get("type") == "tool_use" and "partial_json" in block]

    @property
    def was_cut_short(self) -> bool:
        """Whether the answer ended because there was no room for more."""
        return self.stop_reason in CUT_SHORT

    def turn(self) -> dict[str, Any]:
        """The message as a turn to send back: unchanged blocks, without those that are incomplete."""
        return {"role": self.role, "content": [block for block in self.content if "partial_json" not in block]}
