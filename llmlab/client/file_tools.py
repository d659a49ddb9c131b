"""Reading files and folders under one root, and nothing outside it."""

from __future__ import annotations

import os
from pathlib import Path

from llmlab.client.plain_file import read_plain
from llmlab.client.tool import ToolFailed
from llmlab.errors import InvalidParameter

MAX_BYTES = 64_000
MAX_ENTRIES = 500


class Root:
    """A folder tools may read from. Links are followed first and checked after, so none leads out of it.

    Raises ``InvalidParameter`` when ``path`` is not a folder.
    """

    def __init__(self, path: str | os.PathLike[str], max_bytes: int = MAX_BYTES) -> None:
        self.path = Path(path).resolve()
        self.max_bytes = max_bytes
        if not self.path.is_dir():
            raise InvalidParameter(f"{str(path)!r} is not a folder")

    def resolve(self, name: str) -> Path:
        """The real path of ``name`` below the root. Raises ``ToolFailed`` for one outside or one that is not there."""
        try:
            found = (self.path / name).resolve(strict=True)
        except (OSError, ValueError, RuntimeError):
            raise ToolFailed(f"there is no {name!r}") from None
        if not found.is_relative_to(self.path):
            raise ToolFailed(f"{name!r} is outside the folder that may be read")
        return found

    def read_file(self, path: str) -> str:
        """A UTF-8 text file, cut after ``max_bytes``. Raises ``ToolFailed`` for anything but text."""
        data = self._bytes(self.resolve(path), path)
        is_cut, data = len(data) > self.max_bytes, data[: self.max_bytes]
        try:
            text = data.decode("utf-8", errors="strict" if not is_cut else "ignore")
        except UnicodeDecodeError:
            raise ToolFailed(f"{path!r} is not UTF-8 text") from None
        if "\0" in text:
            raise ToolFailed(f"{path!r} is not text")
        return text + (f"\n[cut after {self.max_bytes} bytes]" if is_cut else "")

    def _bytes(self, found: Path, name: str) -> bytes:
        """At most one byte more than the cap."""
        try:
            return read_plain(found, self.max_bytes)
        except OSError as error:
            raise ToolFailed(f"{name!r} cannot be read: {error.strerror}") from None

    def list_folder(self, path: str = ".") -> str:
        """Names in a folder, one a line and sorted, folders with a slash at the end."""
        found = self.resolve(path)
        if not found.is_dir():
            raise ToolFailed(f"{path!r} is not a folder")
        try:
            names = sorted(item.name + ("/" if item.is_dir() else "") for item in found.iterdir())
        except OSError as error:
            raise ToolFailed(f"{path!r} cannot be listed: {error.strerror}") from None
        more = [f"[{len(names) - MAX_ENTRIES} more]"] if len(names) > MAX_ENTRIES else []
        shown = [name.encode(errors="replace").decode() for name in names[:MAX_ENTRIES]]
        return "\n".join([*shown, *more]) or "[empty]"
