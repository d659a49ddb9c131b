"""A trace as a file: gzipped JSON lines, a header first, then one event per line.

The header names the format and its version, and holds what is about the whole trace: ``only``, the requests it was
restricted to, and ``pieces``, the bytes of its tokens. A reader that does not know a key of it goes on without.
"""

from __future__ import annotations

import gzip
import json
import os
import zlib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Any, BinaryIO
from uuid import uuid4

from llmlab.errors import TraceFormatError
from llmlab.trace import pieces as token_pieces
from llmlab.trace.codec import decode, encode, parse
from llmlab.trace.events import Event

FORMAT = "llmlab-trace"
VERSION = 1
MAX_LINE = 16_000_000
"""Bytes of one event: parsing can take a hundred times as much memory, so a longer line is not even tried."""
MAX_BYTES = 1_000_000_000


def save(
    path: str | os.PathLike,
    events: Iterable[Event],
    only: tuple[str, ...] = (),
    pieces: Mapping[int, bytes] = MappingProxyType({}),
) -> Path:
    """Write events to ``path``, all or nothing; equal events give equal bytes. Returns the path.

    ``only`` records that the events were restricted to these requests, ``pieces`` are the bytes of their tokens.
    """
    header: dict[str, object] = {"format": FORMAT, "version": VERSION}
    if only:
        header["only"] = list(only)
    if pieces:
        header["pieces"] = token_pieces.to_json(pieces)
    with replacing(path) as raw, gzip.GzipFile(filename="", mode="wb", fileobj=raw, mtime=0) as file:
        file.write(json.dumps(header).encode() + b"\n")
        for event in events:
            file.write(encode(event).encode() + b"\n")
    return Path(path)


def load(path: str | os.PathLike, max_bytes: int = MAX_BYTES) -> tuple[list[Event], tuple[str, ...], dict[int, bytes]]:
    """Read ``(events, only, pieces)`` back. At most ``max_bytes`` are unpacked, whatever the file claims to hold.

    Raises ``TraceFormatError`` for a file that is not a trace, damaged, too large or of a newer version, and
    ``OSError`` for one that cannot be opened.
    """
    with gzip.open(path, "rb") as file:
        lines = _lines(file, path, max_bytes)
        header = _read_header(next(lines, b"{}"), path)
        events = []
        for number, line in enumerate(lines, start=2):
            try:
                events.append(decode(parse(line)))
            except TraceFormatError as error:
                raise TraceFormatError(f"{os.fspath(path)}, line {number}: {error}") from None
    return events, tuple(header.get("only", ())), _pieces_of(header, path)


def _lines(file: BinaryIO, path: str | os.PathLike, max_bytes: int) -> Iterator[bytes]:
    left = max_bytes
    try:
        while line := file.readline(min(left, MAX_LINE) + 1):
            left -= len(line)
            if len(line) > MAX_LINE:
                raise TraceFormatError(f"{os.fspath(path)} holds a line of more than {MAX_LINE:,} bytes: not a trace")
            if left < 0:
                raise TraceFormatError(
                    f"{os.fspath(path)} unpacks to more than {max_bytes:,} bytes: pass a larger "
                    "max_bytes if you trust it"
                )
            yield line
    except (gzip.BadGzipFile, zlib.error, EOFError) as error:
        raise TraceFormatError(f"{os.fspath(path)} is not a saved trace, or is damaged: {error}") from None


def _read_header(line: bytes, path: str | os.PathLike) -> dict[str, Any]:
    try:
        header = parse(line)
    except TraceFormatError:
        header = {}
    version, only = header.get("version"), header.get("only", [])
    if header.get("format") != FORMAT or type(version) is not int:
        raise TraceFormatError(f"{os.fspath(path)} is not a trace: its first line does not say {FORMAT!r}")
    if version > VERSION:
        raise TraceFormatError(
            f"{os.fspath(path)} has format version {version}, newer than {VERSION}: update llmlab to read it"
        )
    if not isinstance(only, list) or not all(isinstance(i, str) for i in only):
        raise TraceFormatError(f"{os.fspath(path)}: 'only' in the header must be a list of request ids")
    return header


def _pieces_of(header: dict[str, Any], path: str | os.PathLike) -> dict[int, bytes]:
    try:
        return token_pieces.from_json(header.get("pieces", {}))
    except TraceFormatError as error:
        raise TraceFormatError(f"{os.fspath(path)}: {error}") from None


@contextmanager
def replacing(path: str | os.PathLike) -> Iterator[BinaryIO]:
    """A file that takes the place of ``path`` when the body ends, and vanishes when it fails."""
    target = Path(path).resolve()  # through a symbolic link, which stays
    if target.exists() and not target.is_file():  # /dev/null, a pipe: written to, never replaced
        with open(target, "wb") as file:
            yield file
        return
    temporary = target.with_name(f".{target.name}.{uuid4().hex}.tmp")
    try:
        with open(temporary, "xb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, target)
    finally:
        temporary.unlink(missing_ok=True)
