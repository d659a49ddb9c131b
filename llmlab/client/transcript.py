"""A session on disk: one file, one JSON object a line, only ever appended to."""

from __future__ import annotations

import hashlib
import json
import os
import re
import threading
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from llmlab.client.entry import KINDS, Entry
from llmlab.client.plain_file import NO_LINKS, read_plain
from llmlab.errors import TranscriptError

MAX_BYTES = 64_000_000
MAX_NAME = 80


def safe_name(session: str) -> str:
    """A file name for a session: letters, digits, dash and underscore, and nothing that could be a path.

    A name that had to be changed gets a digest of the original, so that two sessions never share a file.
    """
    clean = re.sub(r"[^A-Za-z0-9_-]", "-", session)[:MAX_NAME]
    if clean == session and clean:
        return clean
    return f"{clean or 'session'}-{hashlib.sha256(session.encode(errors='surrogatepass')).hexdigest()[:8]}"


class Transcript:
    """The entries of one session, loaded when opened and written one by one.

    A line is written by one call in append mode. A line that was torn by a crash, or damaged, is passed over: its
    number is in ``damaged`` and the rest is kept. One process at a time may write to a session.

    Raises ``TranscriptError`` when the file is not a plain file or larger than ``max_bytes``.
    """

    def __init__(
        self, folder: str | os.PathLike[str], session: str, *, fsync: bool = False, max_bytes: int = MAX_BYTES
    ) -> None:
        self.path = Path(folder) / f"{safe_name(session)}.jsonl"
        self.fsync, self.max_bytes = fsync, max_bytes
        self.damaged: list[int] = []
        self._lock = threading.Lock()
        self._entries, self._size, self._is_torn = self._load()

    @property
    def entries(self) -> tuple[Entry, ...]:
        """All entries, oldest first."""
        return tuple(self._entries)

    def __len__(self) -> int:
        return len(self._entries)

    def append(self, entry: Entry) -> None:
        """Write one entry. Raises ``TranscriptError`` when it cannot be written or the file would grow too large."""
        line = _line(entry)
        with self._lock:
            line = b"\n" + line if self._is_torn else line
            if self._size + len(line) > self.max_bytes:
                raise TranscriptError(f"{self.path.name} would grow beyond {self.max_bytes} bytes; start a new session")
            self._write(line)
            self._size, self._is_torn = self._size + len(line), False
            self._entries.append(entry)

    def _write(self, line: bytes) -> None:
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            descriptor = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | NO_LINKS, 0o600)
        except OSError as error:
            raise TranscriptError(f"{self.path} cannot be written: {error.strerror}") from error
        try:
            if os.write(descriptor, line) != len(line):
                self._is_torn = True
                raise TranscriptError(f"{self.path} took only a part of an entry: is the disk full?")
            if self.fsync:
                os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def _load(self) -> tuple[list[Entry], int, bool]:
        """Entries, size in bytes, and whether the last line lacks its end."""
        data = self._read()
        entries = []
        for number, line in enumerate(data.split(b"\n"), 1):
            entry = parse_line(line) if line else None
            if entry is not None:
                entries.append(entry)
            elif line:
                self.damaged.append(number)
        return entries, len(data), bool(data) and not data.endswith(b"\n")

    def _read(self) -> bytes:
        try:
            data = read_plain(self.path, self.max_bytes)
        except FileNotFoundError:
            return b""
        except OSError as error:
            raise TranscriptError(f"{self.path} cannot be read: {error.strerror}") from error
        if len(data) > self.max_bytes:
            raise TranscriptError(f"{self.path} is larger than {self.max_bytes} bytes")
        return data


def _line(entry: Entry) -> bytes:
    try:
        return (json.dumps(asdict(entry), separators=(",", ":"), allow_nan=False) + "\n").encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise TranscriptError(f"the entry is not plain JSON data: {error}") from error


def parse_line(line: bytes) -> Entry | None:
    """The entry in a line of a session file, or ``None`` if the line does not hold one."""
    try:
        data = json.loads(line, parse_constant=_refuse)
    except (ValueError, RecursionError):
        return None
    return _entry(data) if isinstance(data, dict) else None


def _refuse(constant: str) -> Any:
    """NaN and infinities are no JSON, and could not be sent."""
    raise ValueError(constant)


def _entry(data: Mapping[str, Any]) -> Entry | None:
    known = set(Entry.__dataclass_fields__)
    content = data.get("content")
    is_sound = (
        set(data) <= known
        and data.get("kind") in KINDS
        and isinstance(content, list)
        and all(isinstance(block, dict) and isinstance(block.get("type"), str) for block in content)
        and all(isinstance(data.get(name, ""), str) for name in ("model", "stop_reason"))
        and isinstance(data.get("usage", {}), dict)
        and type(data.get("keeps", 0)) is int
        and data.get("keeps", 0) >= 0
        and type(data.get("at", 0.0)) in (int, float)
    )
    return Entry(**{**data, "content": tuple(content)}) if is_sound else None


class MemoryTranscript:
    """The same without a file, for sessions nobody wants to keep."""

    def __init__(self) -> None:
        self._entries: list[Entry] = []

    @property
    def entries(self) -> tuple[Entry, ...]:
        """All entries, oldest first."""
        return tuple(self._entries)

    def append(self, entry: Entry) -> None:
        """Add one entry."""
        self._entries.append(entry)
