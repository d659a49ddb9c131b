"""The order in which the events of a Messages stream may come."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Literal

from llmlab.client.stream_errors import ProtocolViolation

DELTAS: Mapping[str, frozenset[str]] = MappingProxyType(
    {
        "text": frozenset({"text_delta", "citations_delta"}),
        "thinking": frozenset({"thinking_delta", "signature_delta"}),
        "tool_use": frozenset({"input_json_delta"}),
        "server_tool_use": frozenset({"input_json_delta"}),
        "redacted_thinking": frozenset(),
    }
)
"""The delta types each block type can have; other block types may have any."""

KNOWN_DELTAS = frozenset().union(*DELTAS.values())
ORDER = "message_start, blocks, message_delta, message_stop"

State = Literal["new", "blocks", "closing", "stopped", "failed"]


class Lifecycle:
    """Checks each event of one stream; unknown events and delta types may come at any time before its end.

    Blocks have indices from 0 without gaps and never interleave. Everything between ``message_start`` and the first
    ``message_delta`` belongs to a block; nothing but further ``message_delta`` lies between that and ``message_stop``.
    Pings may come always.
    """

    def __init__(self) -> None:
        self.state: State = "new"
        self.num_blocks = 0  # blocks begun
        self.open_kind: str | None = None  # type of the block that is open

    @property
    def is_complete(self) -> bool:
        """Whether ``message_stop`` has come."""
        return self.state == "stopped"

    def check(self, event: Any) -> None:
        """Take the next event (the parsed data of a frame). Raises ``ProtocolViolation``."""
        kind = event.get("type") if isinstance(event, dict) else None
        if not isinstance(kind, str):
            raise ProtocolViolation("an event's data is not a JSON object with a type")
        if kind == "ping":
            return
        if self.state in ("stopped", "failed"):
            raise ProtocolViolation(f"{kind!r} came after the end of the stream")
        handler = getattr(self, f"_on_{kind}", None) if kind in HANDLED else None
        if handler is not None:
            handler(event)

    def _on_message_start(self, event: dict) -> None:
        if self.state != "new":
            raise ProtocolViolation("a second message_start came in one stream")
        if not isinstance(event.get("message"), dict):
            raise ProtocolViolation("message_start carries no message")
        self.state = "blocks"

    def _on_content_block_start(self, event: dict) -> None:
        self._need_state("content_block_start", "blocks")
        self._need_closed("content_block_start")
        block, index = event.get("content_block"), event.get("index")
        if not isinstance(block, dict) or not isinstance(block.get("type"), str):
            raise ProtocolViolation("content_block_start carries no block with a type")
        if type(index) is not int or index != self.num_blocks:
            due = self.num_blocks
            raise ProtocolViolation(f"content block {index!r} began where {due} was due: indices have no gaps")
        _check_block(block)
        self.num_blocks += 1
        self.open_kind = block["type"]

    def _on_content_block_delta(self, event: dict) -> None:
        self._need_open("content_block_delta", event)
        delta = event.get("delta")
        kind = delta.get("type") if isinstance(delta, dict) else None
        if not isinstance(kind, str):
            raise ProtocolViolation("content_block_delta carries no delta with a type")
        if kind in KNOWN_DELTAS and kind not in DELTAS.get(self.open_kind, KNOWN_DELTAS):
            raise ProtocolViolation(f"a {kind} came inside a block of type {self.open_kind!r}")

    def _on_content_block_stop(self, event: dict) -> None:
        self._need_open("content_block_stop", event)
        self.open_kind = None

    def _on_message_delta(self, event: dict) -> None:
        self._need_state("message_delta", "blocks", "closing")
        self._need_closed("message_delta")
        delta = event.get("delta")
        if not isinstance(delta, dict) or not isinstance(delta.get("stop_reason"), str | None):
            raise ProtocolViolation("message_delta carries no delta, or a stop_reason that is not a string")
        self.state = "closing"

    def _on_message_stop(self, event: dict) -> None:
        self._need_closed("message_stop")
        self._need_state("message_stop", "closing")
        self.state = "stopped"

    def _on_error(self, event: dict) -> None:
        self.state = "failed"

    def _need_state(self, kind: str, *allowed: State) -> None:
        if self.state not in allowed:
            where = {"new": "before message_start", "blocks": "before message_delta", "closing": "after message_delta"}
            raise ProtocolViolation(f"{kind} came {where[self.state]}: the order is {ORDER}")

    def _need_closed(self, kind: str) -> None:
        if self.open_kind is not None:
            raise ProtocolViolation(f"{kind} came while content block {self.num_blocks - 1} was open")

    def _need_open(self, kind: str, event: dict) -> None:
        self._need_state(kind, "blocks")
        if self.open_kind is None:
            raise ProtocolViolation(f"{kind} came outside a content block")
        if event.get("index") != self.num_blocks - 1:
            raise ProtocolViolation(f"{kind} is for block {event.get('index')!r} while {self.num_blocks - 1} is open")


def _check_block(block: dict) -> None:
    kind = block["type"]
    if kind in ("text", "thinking") and not isinstance(block.get(kind), str | None):
        raise ProtocolViolation(f"a block of type {kind!r} began with something that is not text")
    if kind == "tool_use" and not (isinstance(block.get("id"), str) and isinstance(block.get("name"), str)):
        raise ProtocolViolation("a tool_use block began without an id and a name")


HANDLED = frozenset(
    {
        "message_start",
        "content_block_start",
        "content_block_delta",
        "content_block_stop",
        "message_delta",
        "message_stop",
        "error",
    }
)
"""Event types with a rule; ``ping`` and unknown ones have none."""
