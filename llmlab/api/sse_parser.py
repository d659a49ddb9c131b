"""Reading server-sent events (WHATWG HTML, section 9.2.6) from pieces of any size."""

from __future__ import annotations

import re
from dataclasses import dataclass

from llmlab.errors import LabError

BOM = b"\xef\xbb\xbf"
MAX_EVENT_BYTES = 16 * 1024 * 1024
"""Default limit of one event: far above any frame of the two protocols, far below the memory of a machine."""
MAX_RETRY_DIGITS = 12
"""Longer ``retry`` values, thirty years and more, are ignored; the standard sets no limit."""

_LINE_END = re.compile(rb"\r\n|\n|\r")


class EventTooLarge(LabError, ValueError):
    """A stream went on for more bytes than allowed without finishing an event."""


@dataclass(frozen=True, slots=True)
class SseEvent:
    """One dispatched event. ``id`` and ``retry`` (ms) are the stream's latest ones, as the standard has it."""

    name: str
    data: str
    id: str = ""
    retry: int | None = None


class SseParser:
    """Turns the bytes of an event stream into events, whatever the sizes of the pieces they come in.

    Lines end with LF, CRLF or CR and with nothing else. UTF-8 is decoded line by line, which is the same as decoding
    the whole stream, because no byte of a line end occurs inside a character; invalid bytes become U+FFFD. An event
    without a ``data`` field is not dispatched. ``max_event_bytes`` bounds what may be held back for one event.
    """

    def __init__(self, max_event_bytes: int = MAX_EVENT_BYTES) -> None:
        self.max_event_bytes = max_event_bytes
        self._pieces: list[bytes] = []  # of the line that has no end yet
        self._after_cr = False
        self._at_start = True
        self._held = 0  # bytes since the last blank line
        self._name = ""
        self._data: list[str] = []
        self._in_event = False
        self._id = ""
        self._retry: int | None = None

    def feed(self, chunk: bytes) -> list[SseEvent]:
        """The events that ``chunk`` completes.

        Raises ``EventTooLarge``; the stream cannot be read any further then.
        """
        if self._after_cr and chunk:
            chunk = chunk.removeprefix(b"\n")
            self._after_cr = False
        self._after_cr = self._after_cr or chunk.endswith(b"\r")
        *lines, rest = _LINE_END.split(chunk)
        found = [event for line in lines if (event := self._end_line(line)) is not None]
        self._hold(rest)
        return found

    def close(self) -> bool:
        """Whether the stream ended inside an event; what there was of it is discarded."""
        rest = self._without_bom(b"".join(self._pieces))
        inside = self._in_event or not (rest == b"" or rest.startswith(b":"))
        self._pieces.clear()
        self._reset_event()
        return inside

    def _hold(self, piece: bytes) -> None:
        if piece:
            self._pieces.append(piece)
            self._held += len(piece)
        if self._held > self.max_event_bytes:
            raise EventTooLarge(
                f"one server-sent event is longer than {self.max_event_bytes:,} bytes; "
                "raise max_event_bytes if the server is meant to send events that large"
            )

    def _end_line(self, piece: bytes) -> SseEvent | None:
        self._hold(piece)
        line = self._without_bom(b"".join(self._pieces))
        self._pieces.clear()
        self._at_start = False
        if not line:
            return self._dispatch()
        if not line.startswith(b":"):
            self._field(line.decode("utf-8", "replace"))
        return None

    def _without_bom(self, line: bytes) -> bytes:
        return line.removeprefix(BOM) if self._at_start else line

    def _field(self, line: str) -> None:
        name, _, value = line.partition(":")
        value = value.removeprefix(" ")
        self._in_event = True
        if name == "data":
            self._data.append(value)
        elif name == "event":
            self._name = value
        elif name == "id" and "\0" not in value:
            self._id = value
        elif name == "retry" and value.isascii() and value.isdigit() and len(value) <= MAX_RETRY_DIGITS:
            self._retry = int(value)

    def _dispatch(self) -> SseEvent | None:
        event = SseEvent(self._name or "message", "\n".join(self._data), self._id, self._retry) if self._data else None
        self._reset_event()
        return event

    def _reset_event(self) -> None:
        self._name, self._in_event, self._held = "", False, 0
        self._data.clear()
