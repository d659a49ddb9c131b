"""From the events of a reply to Anthropic's server-sent events, or to one message (article A, sections 3.3 and 5)."""

from __future__ import annotations

from typing import Any

from pydantic_core import from_json

from llmlab.api.anthropic.validate import check_plain
from llmlab.api.conversation import Conversation
from llmlab.api.errors import ApiError
from llmlab.api.reply import BlockDelta, BlockStart, BlockStop, Ended, ReplyEvent, ReplyInfo, SampleEnd, Started
from llmlab.api.sse import named_frame
from llmlab.api.usage import Usage

STOP_REASONS = {
    "end_turn": "end_turn",
    "max_tokens": "max_tokens",
    "stop_sequence": "stop_sequence",
    "tool_use": "tool_use",
    "context_window": "model_context_window_exceeded",
    "refusal": "refusal",
}
DELTAS = {"text": ("text_delta", "text"), "thinking": ("thinking_delta", "thinking")}


def _frame(data: dict[str, Any]) -> bytes:
    return named_frame(data["type"], data)


def _message(info: ReplyInfo) -> dict[str, Any]:
    return {
        "id": info.message_id,
        "type": "message",
        "role": "assistant",
        "model": info.model,
        "content": [],
        "stop_reason": None,
        "stop_sequence": None,
        "stop_details": None,
        "container": None,
        "diagnostics": None,
        "usage": {},
    }


def _usage(usage: Usage, info: ReplyInfo) -> dict[str, Any]:
    given = {"service_tier": info.service_tier, "speed": info.speed, "inference_geo": info.inference_geo}
    return usage.anthropic() | given


def _delta_usage(ended: Ended, conversation: Conversation) -> dict[str, Any]:
    """The totals and, for a client of the beta surface, what each run of the backend had in them."""
    counts = {name: count for name, count in ended.usage.anthropic().items() if name != "cache_creation"}
    if conversation.beta and "iterations" in ended.extra:
        counts["iterations"] = ended.extra["iterations"]
    return counts


def _block(start: BlockStart) -> dict[str, Any]:
    if start.kind == "tool_use":
        return {"type": "tool_use", "id": start.id, "name": start.name, "input": {}}
    if start.kind == "thinking":
        return {"type": "thinking", "thinking": "", "signature": ""}
    return {"type": "text", "text": ""}


def _stopped(end: SampleEnd) -> dict[str, Any]:
    details = {"type": "refusal", "category": None, "explanation": None} if end.stop == "refusal" else None
    return {"stop_reason": STOP_REASONS[end.stop], "stop_sequence": end.stop_sequence, "stop_details": details}


def _context_management(ended: Ended, conversation: Conversation) -> dict[str, Any]:
    """``context_management`` for a request that asked for edits, also when none was needed; else nothing."""
    if ended.applied_edits is None and not conversation.edits:
        return {}
    return {"context_management": {"applied_edits": [dict(edit) for edit in ended.applied_edits or ()]}}


class AnthropicStream:
    """Encoder of one streamed reply; frames come out in the order in which the events go in.

    A request has one sample. Thinking of a request with ``display: omitted`` is sent as its signature only.
    """

    def __init__(self, info: ReplyInfo, conversation: Conversation) -> None:
        self._info, self._conversation = info, conversation
        self._open: BlockStart | None = None
        self._pinged = False
        self._end: SampleEnd | None = None

    def encode(self, event: ReplyEvent) -> bytes:
        """Zero or more whole frames."""
        match event:
            case Started():
                return self._started(event)
            case BlockStart():
                return self._block_start(event)
            case BlockDelta():
                return self._delta(event.text)
            case BlockStop():
                return self._block_stop(event)
            case SampleEnd():
                self._end = event
                return b""
            case Ended():
                return self._ended(event)

    def ping(self) -> bytes:
        """A frame that clients skip."""
        return _frame({"type": "ping"})

    def error(self, error: ApiError) -> bytes:
        """The last frame of a stream that failed."""
        return _frame(error.anthropic())

    def _started(self, event: Started) -> bytes:
        # The first token is here, and the ledger counts it only at the end.
        first = {"output_tokens": 0 if self._conversation.prewarm else 1}
        usage = _usage(event.usage, self._info) | first
        message = _message(self._info) | {"diagnostics": event.diagnostics, "usage": usage}
        return _frame({"type": "message_start", "message": message})

    def _block_start(self, event: BlockStart) -> bytes:
        assert event.sample == 0, "a reply is one sample"
        assert self._open is None, "blocks do not overlap"
        self._open = event
        frames = _frame({"type": "content_block_start", "index": event.index, "content_block": _block(event)})
        if not self._pinged:
            self._pinged = True
            frames += self.ping()
        return frames + self._content("input_json_delta", "partial_json", "") if event.kind == "tool_use" else frames

    def _delta(self, text: str) -> bytes:
        assert self._open is not None, "a delta belongs to an open block"
        kind = self._open.kind
        if not text or (kind == "thinking" and self._omits_thinking):
            return b""
        return self._content(*DELTAS.get(kind, ("input_json_delta", "partial_json")), text)

    def _block_stop(self, event: BlockStop) -> bytes:
        assert self._open is not None, "a block stops once, after it has started"
        frames = self._content("signature_delta", "signature", event.signature) if event.signature else b""
        self._open = None
        return frames + _frame({"type": "content_block_stop", "index": event.index})

    def _content(self, kind: str, name: str, text: str) -> bytes:
        assert self._open is not None, "content belongs to an open block"
        return _frame({"type": "content_block_delta", "index": self._open.index, "delta": {"type": kind, name: text}})

    def _ended(self, event: Ended) -> bytes:
        assert self._end is not None, "a sample ends before its request"
        delta = {"type": "message_delta", "delta": _stopped(self._end) | {"container": None}}
        delta |= {"usage": _delta_usage(event, self._conversation)} | _context_management(event, self._conversation)
        return _frame(delta) + _frame({"type": "message_stop"})

    @property
    def _omits_thinking(self) -> bool:
        return self._conversation.thinking is not None and self._conversation.thinking.display == "omitted"


class AnthropicMessage:
    """Collector of one reply in one piece."""

    def __init__(self, info: ReplyInfo, conversation: Conversation) -> None:
        self._info, self._conversation = info, conversation
        self._body = _message(info)
        self._pieces: list[str] = []
        self._complete = False

    def add(self, event: ReplyEvent) -> None:
        """Take the next event."""
        match event:
            case Started():
                self._body["diagnostics"] = event.diagnostics
            case BlockStart():
                assert event.sample == 0, "a reply is one sample"
                self._body["content"].append(_block(event))
                self._pieces = []
            case BlockDelta():
                self._pieces.append(event.text)
            case BlockStop():
                self._close(event)
            case SampleEnd():
                self._body |= _stopped(event)
            case Ended():
                self._body["usage"] = _usage(event.usage, self._info) | _delta_usage(event, self._conversation)
                self._body |= _context_management(event, self._conversation)
                self._complete = True

    def body(self) -> dict[str, Any]:
        """The message, once ``Ended`` has been added."""
        assert self._complete, "the reply has not ended"
        return self._body

    def _close(self, event: BlockStop) -> None:
        block, text = self._body["content"][-1], "".join(self._pieces)
        if block["type"] == "tool_use":
            block["input"] = _arguments(text)
        elif block["type"] == "text":
            block["text"] = text
        else:
            thinking = self._conversation.thinking
            block["thinking"] = "" if thinking and thinking.display == "omitted" else text
            block["signature"] = event.signature


def _arguments(text: str) -> dict[str, Any]:
    """Arguments of a tool call: of one cut short by ``max_tokens`` what was complete; else what JSON there is."""
    for partial in (False, True):
        try:
            value = from_json(text, allow_partial=partial)
            check_plain(value)
        except (ValueError, ApiError):
            continue
        if isinstance(value, dict):
            return value
    return {}
