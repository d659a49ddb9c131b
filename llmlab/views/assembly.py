"""What each frame of a stream does to the message that is put together from it.

The message is built by the same accumulators a client uses, from the recorded frames and nothing else (article A,
section 3.4: text is appended, a signature replaces the one before, usage is a snapshot of totals).
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from typing import Any

from llmlab.client.accumulate import Accumulator, Delta
from llmlab.client.accumulate_chunks import OpenAIAccumulator
from llmlab.client.chunk_lifecycle import DONE, ChunkLifecycle
from llmlab.client.lifecycle import Lifecycle
from llmlab.client.stream_errors import ProtocolViolation

_CUT = re.compile(r"(?:\.\.\. \([\d,]+ characters cut\)|\n\[cut: \d+ more characters\])\Z")
TAIL = 400  # characters of the message so far that a frame keeps for the picture
APPEND, OVERWRITE, SNAPSHOT, OPEN, CLOSE, DONE_OP = "append", "overwrite", "snapshot", "open", "close", "complete"
NOTHING, UNKNOWN, FAILED = "nothing", "kept apart", "not usable"
_OPERATIONS = {
    "message_start": SNAPSHOT,
    "block_start": OPEN,
    "text": APPEND,
    "thinking": APPEND,
    "arguments": APPEND,
    "citation": APPEND,
    "signature": OVERWRITE,
    "block_stop": CLOSE,
    "message_delta": SNAPSHOT,
    "message_stop": DONE_OP,
    "ping": NOTHING,
}


def cut_at(text: str) -> int | None:
    """Where the recorder's remark begins that the rest of ``text`` was cut; ``None`` for a text without one."""
    start = max(len(text) - 80, 0)
    found = _CUT.search(text, start)
    return None if found is None else found.start()


@dataclass(frozen=True, slots=True)
class Applied:
    """One frame's effect. ``where`` names the part it acted on, ``added`` is text that was appended, ``note`` what else
    there is to say; ``characters`` of appended text so far, of which ``tail`` are the last."""

    operation: str
    where: str = ""
    added: str = ""
    note: str = ""
    characters: int = 0
    tail: str = ""


@dataclass(slots=True)
class Part:
    """One part of the finished message: a block's or a choice's ``kind`` and its text."""

    kind: str
    text: str


@dataclass(slots=True)
class Assembly:
    """Takes the frames of one stream in order. ``is_cut``: a frame's record is cut, so the message lacks it."""

    characters: int = 0
    tail: str = ""
    is_cut: bool = False
    problem: str = ""
    stop_reason: str | None = None
    usage: dict[str, Any] = field(default_factory=dict)
    messages: Accumulator = field(default_factory=Accumulator)
    message_rules: Lifecycle = field(default_factory=Lifecycle)
    chunks: OpenAIAccumulator = field(default_factory=OpenAIAccumulator)
    chunk_rules: ChunkLifecycle = field(default_factory=ChunkLifecycle)

    @property
    def is_complete(self) -> bool:
        """Whether the stream came to its proper end."""
        return self.message_rules.is_complete or self.chunk_rules.is_complete

    def take(self, name: str, text: str | None) -> Applied:
        """Apply the next frame."""
        operation, where, added, note = self._apply(name, text or "")
        if operation == FAILED:
            self.problem = self.problem or note
        if operation == APPEND:
            self.characters += len(added)
            self.tail = (self.tail + added)[-TAIL:]
        return Applied(operation, where, added, note, self.characters, self.tail)

    def _apply(self, name: str, text: str) -> tuple[str, str, str, str]:
        if name == "comment":
            return NOTHING, "", "", "a comment"
        if text == DONE:
            return self._done()
        try:
            data = json.loads(text)
        except (ValueError, RecursionError):
            return self._unreadable(text)
        try:
            return self._chunk(data) if isinstance(data, dict) and "choices" in data else self._event(name, data)
        except ProtocolViolation as error:
            return FAILED, "", "", str(error)
        except (LookupError, TypeError, AttributeError, ValueError, AssertionError) as error:
            return FAILED, "", "", f"its shape is none of the protocol's ({type(error).__name__})"

    def _unreadable(self, text: str) -> tuple[str, str, str, str]:
        if cut_at(text) is not None:
            self.is_cut = True
            return FAILED, "", "", "cut in the record"
        return FAILED, "", "", "its data is not JSON"

    def _event(self, name: str, data: Any) -> tuple[str, str, str, str]:
        self.message_rules.check(data)
        if data["type"] == "error":
            error = data.get("error") if isinstance(data.get("error"), dict) else {}
            return FAILED, "", "", f"error {error.get('type')}: {error.get('message')}"
        delta = self.messages.add(data)
        message = self.messages.message if delta.kind in ("message_start", "message_delta") else None
        if message is not None:
            self.stop_reason, self.usage = message.stop_reason, message.usage
        added = delta.text if _OPERATIONS.get(delta.kind) == APPEND else ""
        return _OPERATIONS.get(delta.kind, UNKNOWN), _where(delta), added, _note(delta, data)

    def _done(self) -> tuple[str, str, str, str]:
        try:
            self.chunk_rules.check(DONE)
        except ProtocolViolation as error:
            return FAILED, "", "", str(error)
        return DONE_OP, "stream", "", DONE

    def _chunk(self, data: dict) -> tuple[str, str, str, str]:
        self.chunk_rules.check(data)
        self.chunks.add(data)
        if isinstance(data.get("usage"), dict):
            self.usage = data["usage"]
        found = [self._choice(choice) for choice in data["choices"]]
        if not found:
            return SNAPSHOT, "usage", "", counts(self.usage)
        operation = APPEND if any(each[0] == APPEND for each in found) else found[0][0]
        where, added, note = (
            " ".join(dict.fromkeys(filter(None, parts))) for parts in list(zip(*found, strict=True))[1:]
        )
        return operation, where, added if len(found) == 1 else "".join(each[2] for each in found), note

    def _choice(self, choice: dict) -> tuple[str, str, str, str]:
        where, delta = f"choice {choice['index']}", choice["delta"]
        if choice.get("finish_reason") is not None:
            self.stop_reason = choice["finish_reason"]
        for name in ("content", "reasoning_content", "reasoning"):
            if isinstance(delta.get(name), str) and delta[name]:
                return APPEND, where, delta[name], ""
        calls = delta.get("tool_calls") or ()
        fragment = "".join(str((call.get("function") or {}).get("arguments") or "") for call in calls)
        if calls:
            return APPEND, f"{where} arguments", fragment, ""
        if choice.get("finish_reason") is not None:
            return CLOSE, where, "", f"finish_reason {choice['finish_reason']}"
        return OPEN, where, "", f"role {delta.get('role')}"

    def parts(self) -> list[Part]:
        """What the message consists of, as far as it came."""
        blocks = [Part(str(block.get("type")), _block_text(block)) for block in self.messages.message.content]
        for choice in self.chunks.completion.choices.values():
            blocks += [Part("reasoning", choice.reasoning)] if choice.reasoning else []
            blocks += [Part("content", choice.content)] if choice.content or not choice.tool_calls else []
            blocks += [Part(f"call of {call.name}", call.text) for call in choice.tool_calls]
        return blocks


def whole(text: str) -> Assembly:
    """A reply that came as one JSON body, for either protocol."""
    assembly = Assembly()
    try:
        data = json.loads(text)
        message = assembly.messages.message
        message.content = [b for b in data.get("content") or () if isinstance(b, dict)]
        for choice in data.get("choices") or ():
            content = choice["message"].get("content")
            message.content.append({"type": "content", "text": content if isinstance(content, str) else ""})
            assembly.stop_reason = choice.get("finish_reason")
        assembly.stop_reason = data.get("stop_reason") or assembly.stop_reason
        assembly.usage = data["usage"] if isinstance(data.get("usage"), dict) else {}
    except (ValueError, RecursionError, LookupError, TypeError, AttributeError):
        assembly.is_cut = cut_at(text) is not None
        assembly.problem = "cut in the record" if assembly.is_cut else "the body is not a reply in JSON"
    assembly.characters = sum(len(part.text) for part in assembly.parts())
    assembly.tail = "".join(part.text for part in assembly.parts())[-TAIL:]
    return assembly


def counts(usage: dict[str, Any]) -> str:
    """The numbers of a usage object by their own names, zeros left out."""
    found = [f"{name} {value}" for name, value in usage.items() if type(value) is int and value]
    return ", ".join(found) or "no counts"


def _where(delta: Delta) -> str:
    return f"block {delta.index}" if delta.index >= 0 else "message" if delta.kind != "ping" else ""


def _note(delta: Delta, data: dict) -> str:
    if delta.kind in ("message_start", "message_delta"):
        usage = data.get("usage") or (data.get("message") or {}).get("usage") or {}
        reason = (data.get("delta") or {}).get("stop_reason")
        said = f"stop_reason {reason}; " if reason else ""
        return f"{said}usage: {counts(usage)}" if isinstance(usage, dict) else said
    if delta.kind == "block_start":
        return f"a {data['content_block'].get('type')} block"
    if delta.kind == "signature":
        return f"signature, {len(delta.text)} characters"
    return ""


def _block_text(block: dict) -> str:
    if "partial_json" in block:
        return str(block["partial_json"])
    if "input" in block:
        return json.dumps(block["input"], ensure_ascii=False)
    value = block.get(str(block.get("type")), block.get("text"))
    return value if isinstance(value, str) else ""
