"""Finding tool calls in a model's text while it is being written."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from llmlab.engine.detokenizer import partial_stop_length

OPEN, CLOSE = "<tool_call>", "</tool_call>"
MAX_HEAD = 4096
"""Characters after the opening marker within which a call must have named its tool."""

_NAME = re.compile(r'\s*\{\s*"name"\s*:\s*("(?:[^"\\]|\\.)*")')
_BRACE = re.compile(r"^\s*(?:\}\s*)?")
_ARGUMENTS = re.compile(r'\s*,\s*"arguments"\s*:\s*(?=\{)')


@dataclass(frozen=True, slots=True)
class Piece:
    """A part of an answer. ``text``: plain text; ``call``: a call begins, ``text`` is the tool's name;
    ``arguments``: a fragment of its JSON; ``end``: its arguments are complete, or the answer was cut.
    """

    kind: Literal["text", "call", "arguments", "end"]
    text: str = ""


class ToolCallParser:
    """Splits ``text<tool_call>{"name": N, "arguments": {...}}</tool_call>text...`` fed in any pieces.

    The markers are never given out, not even in part; white space around calls is dropped; arguments come out
    character for character as they were written. What begins like a call but names no tool comes out as text.
    ``num_calls`` counts the calls whose arguments are complete.
    """

    def __init__(self) -> None:
        self.num_calls = 0
        self._state: Literal["text", "head", "arguments", "tail"] = "text"
        self._buffer = ""
        self._after_call = False
        self._depth, self._in_string, self._escaped = 0, False, False

    def feed(self, text: str) -> Iterator[Piece]:
        """The pieces that became certain with this text."""
        self._buffer += text
        step = {"text": self._text, "head": self._head, "arguments": self._arguments, "tail": self._tail}
        while self._buffer:
            state, size = self._state, len(self._buffer)
            yield from step[state]()
            if (state, size) == (self._state, len(self._buffer)):
                return

    def finish(self, cut: bool) -> Iterator[Piece]:
        """The rest. ``cut``: the answer ended in the middle, so a beginning marker is a call that never came."""
        rest, self._buffer = self._buffer, ""
        if self._state == "text":
            if cut and (held := partial_stop_length(rest, (OPEN,))):
                rest = rest[:-held].rstrip()
            yield from self._plain(rest)
        elif self._state == "head":
            yield from self._finish_head(rest, cut)
        elif self._state == "arguments":
            yield Piece("end")
        self._state = "text"

    # -- states ---------------------------------------------------------------------------------------------

    def _text(self) -> Iterator[Piece]:
        before, marker, after = self._buffer.partition(OPEN)
        if marker:
            yield from self._plain(before.rstrip())
            self._state, self._buffer = "head", after
            return
        held = partial_stop_length(before, (OPEN,))
        sure = before[: len(before) - held].rstrip()
        yield from self._plain(sure)
        self._buffer = before[len(sure) :]

    def _plain(self, text: str) -> Iterator[Piece]:
        if self._after_call:
            text = text.lstrip()
        if text:
            self._after_call = False
            yield Piece("text", text)

    def _head(self) -> Iterator[Piece]:
        named = _NAME.match(self._buffer)
        begun = named and _ARGUMENTS.match(self._buffer, named.end())
        name = _string(named[1]) if named else None
        if begun and name is not None:
            self._state, self._buffer = "arguments", self._buffer[begun.end() :]
            yield Piece("call", name)
        elif CLOSE in self._buffer:
            head, _, self._buffer = self._buffer.partition(CLOSE)
            self._state = "text"
            yield from self._whole(head)
        elif len(self._buffer) > MAX_HEAD:
            rest, self._buffer, self._state = self._buffer, "", "text"
            yield from self._plain(OPEN + rest)

    def _arguments(self) -> Iterator[Piece]:
        end = self._object_end(self._buffer)
        fragment, self._buffer = self._buffer[:end], self._buffer[end:]
        yield Piece("arguments", fragment)
        if self._depth == 0:
            self._state = "tail"
            yield self._end_of_call()

    def _tail(self) -> Iterator[Piece]:
        rest = _BRACE.sub("", self._buffer, count=1)
        if rest.startswith(CLOSE):
            self._state, self._buffer = "text", rest[len(CLOSE) :]
        elif not CLOSE.startswith(rest):
            self._state, self._buffer = "text", rest
        yield from ()

    def _end_of_call(self) -> Piece:
        self.num_calls += 1
        self._after_call = True
        return Piece("end")

    def _object_end(self, text: str) -> int:
        """Where the object that is being read ends in ``text``: behind its last brace, or at the end of the text."""
        for i, character in enumerate(text):
            if self._in_string:
                if self._escaped:
                    self._escaped = False
                elif character == "\\":
                    self._escaped = True
                elif character == '"':
                    self._in_string = False
            elif character == '"':
                self._in_string = True
            elif character in "{[":
                self._depth += 1
            elif character in "}]":
                self._depth -= 1
                if self._depth == 0:
                    return i + 1
        return len(text)

    # -- calls in another form ------------------------------------------------------------------------------

    def _whole(self, text: str) -> Iterator[Piece]:
        """A closed call in any key order; text when it is none."""
        found = _call_in(text)
        if found is None:
            yield from self._plain(OPEN + text + CLOSE)
            return
        yield Piece("call", found[0])
        yield Piece("arguments", found[1])
        yield self._end_of_call()

    def _finish_head(self, rest: str, cut: bool) -> Iterator[Piece]:
        named = _NAME.match(rest)
        if cut:
            if named and (name := _string(named[1])) is not None:
                yield Piece("call", name)
                yield Piece("end")
        elif _call_in(rest) is not None:
            yield from self._whole(rest)
        else:
            yield from self._plain(OPEN + rest)


def _string(quoted: str) -> str | None:
    """The string that a JSON literal spells; ``None`` for a malformed or empty one."""
    try:
        return json.loads(quoted) or None
    except ValueError:
        return None


def _call_in(text: str) -> tuple[str, str] | None:
    """Name and arguments (as JSON) of a call written as one JSON object."""
    try:
        call = json.loads(text)
    except (ValueError, RecursionError):
        return None
    if not isinstance(call, dict) or not isinstance(name := call.get("name"), str) or not name:
        return None
    arguments = call.get("arguments", {})
    return (name, json.dumps(arguments, ensure_ascii=False)) if isinstance(arguments, dict) else None
