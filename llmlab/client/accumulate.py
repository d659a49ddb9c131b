"""A message from the events of a Messages stream.

Three semantics share one event type (article A, section 3.4): text, thinking and arguments are appended, a signature
replaces the one before, and usage is a snapshot of totals.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from llmlab.client.arguments import IncompleteArguments, JoinOnce
from llmlab.client.message import Message

DeltaKind = Literal[
    "message_start",
    "block_start",
    "text",
    "thinking",
    "arguments",
    "signature",
    "citation",
    "block_stop",
    "message_delta",
    "message_stop",
    "ping",
    "unknown",
    "restart",
]
ARGUMENT_BLOCKS = frozenset({"tool_use", "server_tool_use"})


@dataclass(frozen=True, slots=True)
class Delta:
    """What one event did to the message: ``text`` is what was added to block ``index`` (-1: to none).

    ``event`` is the event as it came. ``restart`` is the client's own: the attempt failed, what it showed is void and
    another one begins.
    """

    kind: DeltaKind
    index: int = -1
    text: str = ""
    event: dict[str, Any] | None = None


class Accumulator:
    """Builds :attr:`message` from events that a :class:`~llmlab.client.lifecycle.Lifecycle` has let through.

    The ``input`` of a block's start is not a base for the fragments: it counts only if no fragment comes and it is
    not empty. Unknown events and deltas are kept in ``message.unknown``.
    """

    def __init__(self) -> None:
        self.finished_blocks = 0
        self._message = Message()
        self._fragments: list[str] = []  # of the open block's text or thinking, joined only when somebody looks
        self._field = "text"
        self._arguments: JoinOnce | None = None  # of the open block
        self._last_arguments = ""

    @property
    def message(self) -> Message:
        """The message as far as it came; arguments of a block that is open are under ``partial_json``."""
        if self._fragments:
            block = self._message.content[-1]
            block[self._field] = (block.get(self._field) or "") + "".join(self._fragments)
            self._fragments.clear()
        if self._arguments is not None:
            self._message.content[-1]["partial_json"] = self._arguments.text
        return self._message

    def add(self, event: dict[str, Any]) -> Delta:
        """Take the next event."""
        handler = {
            "message_start": self._start,
            "content_block_start": self._block_start,
            "content_block_delta": self._block_delta,
            "content_block_stop": self._block_stop,
            "message_delta": self._message_delta,
            "message_stop": self._stop,
            "ping": lambda event: Delta("ping", event=event),
        }.get(event["type"], self._unknown)
        return handler(event)

    def keep_complete_blocks(self, why: str) -> Message:
        """The message without the block that was open when the stream broke, ready to be acted upon.

        ``stop_reason`` becomes ``tool_use``: there is at least one whole call. ``why`` goes to ``cut_off``.
        """
        message, self._arguments = self.message, None
        del message.content[self.finished_blocks :]
        assert message.tool_uses, "kept for its complete tool calls"
        message.stop_reason, message.cut_off = "tool_use", why
        return message

    def _start(self, event: dict) -> Delta:
        start, message = event["message"], self.message
        message.id, message.model = str(start.get("id") or ""), str(start.get("model") or "")
        message.diagnostics = start.get("diagnostics")
        self._take_usage(start.get("usage"))
        return Delta("message_start", event=event)

    def _block_start(self, event: dict) -> Delta:
        block, index = dict(event["content_block"]), event["index"]
        self.message.content.append(block)
        self._arguments = JoinOnce() if block["type"] in ARGUMENT_BLOCKS else None
        return Delta("block_start", index, event=event)

    def _block_delta(self, event: dict) -> Delta:
        index, delta = event["index"], event["delta"]
        match delta["type"]:
            case "text_delta":
                return Delta("text", index, self._append("text", delta), event)
            case "thinking_delta":
                return Delta("thinking", index, self._append("thinking", delta), event)
            case "input_json_delta" if self._arguments is not None:
                fragment = _text(delta, "partial_json")
                self._arguments.add(fragment)
                return Delta("arguments", index, fragment, event)
            case "signature_delta":
                signature = self.message.content[index]["signature"] = _text(delta, "signature")
                return Delta("signature", index, signature, event)
            case "citations_delta":
                block = self.message.content[index]
                block["citations"] = [*(block.get("citations") or ()), delta.get("citation")]
                return Delta("citation", index, event=event)
        return self._unknown(event)

    def _append(self, field: str, delta: dict) -> str:
        if field != self._field:
            _ = self.message  # settles what belongs to the other field
            self._field = field
        fragment = _text(delta, field)
        self._fragments.append(fragment)
        return fragment

    def _block_stop(self, event: dict) -> Delta:
        self.finished_blocks = event["index"] + 1
        block = self.message.content[-1]
        if self._arguments is not None:
            self._last_arguments = block.pop("partial_json")
            _finish_arguments(block, self._arguments)
            self._arguments = None
        return Delta("block_stop", event["index"], event=event)

    def _message_delta(self, event: dict) -> Delta:
        message, delta = self.message, event["delta"]
        for name in ("stop_reason", "stop_sequence", "stop_details"):
            if delta.get(name) is not None:
                setattr(message, name, delta[name])
        message.context_management = event.get("context_management") or message.context_management
        self._take_usage(event.get("usage"))
        self._distrust_last_call()
        return Delta("message_delta", event=event)

    def _distrust_last_call(self) -> None:
        """An answer that ran out of room cannot be told from one that would have gone on: even ``{}`` may be a cut."""
        last = self.message.content[-1] if self.message.content else {}
        if self.message.was_cut_short and last.get("type") == "tool_use":
            _mark_incomplete(last, self._last_arguments)

    def _stop(self, event: dict) -> Delta:
        self.message.is_complete = True
        return Delta("message_stop", event=event)

    def _unknown(self, event: dict) -> Delta:
        self.message.unknown.append(event)
        index = event.get("index")
        return Delta("unknown", index if isinstance(index, int) else -1, event=event)

    def _take_usage(self, usage: Any) -> None:
        """Totals so far replace earlier ones; a count that is missing or null keeps its earlier value."""
        if isinstance(usage, dict):
            self.message.usage.update({name: value for name, value in usage.items() if value is not None})


def _text(delta: dict, name: str) -> str:
    value = delta.get(name)
    return value if isinstance(value, str) else ""


def _finish_arguments(block: dict, arguments: JoinOnce) -> None:
    if not arguments.text and isinstance(block.get("input"), dict) and block["input"]:
        return
    try:
        block["input"] = arguments.finish()
    except IncompleteArguments as error:
        _mark_incomplete(block, error.text)


def _mark_incomplete(block: dict, text: str) -> None:
    block["input"], block["partial_json"] = {}, text
