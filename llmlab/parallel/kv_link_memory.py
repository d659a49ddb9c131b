"""Memory that two processes share and that has no name, so nothing is left of it when both have ended."""

from __future__ import annotations

import mmap
import os
import tempfile
import weakref
from bisect import insort

PAGE = mmap.ALLOCATIONGRANULARITY


class SharedMemory:
    """Pages of an unnamed file. The owner gives out ranges ``(offset, size)``; both sides map them.

    The file descriptor is inherited by the other process. Only the owner calls :meth:`take` and :meth:`give_back`,
    from one thread; a range is given back only when the other side will not write to it any more.
    """

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self._close = weakref.finalize(self, os.close, fd)
        self._size = 0
        self._free: list[tuple[int, int]] = []

    @classmethod
    def create(cls) -> SharedMemory:
        """Fresh memory without a name; it takes room only where something was written."""
        if hasattr(os, "memfd_create"):
            return cls(os.memfd_create("llmlab-kv"))
        with tempfile.TemporaryFile() as file:
            return cls(os.dup(file.fileno()))

    def take(self, nbytes: int) -> tuple[int, int]:
        """A range of at least ``nbytes``, whole pages: the first free one that is large enough, or a new one."""
        size = -(-nbytes // PAGE) * PAGE
        for i, (offset, room) in enumerate(self._free):
            if room >= size:
                rest = [(offset + size, room - size)] if room > size else []
                self._free[i : i + 1] = rest
                return offset, size
        offset, self._size = self._size, self._size + size
        os.ftruncate(self.fd, self._size)
        return offset, size

    def give_back(self, place: tuple[int, int]) -> None:
        """Make a range free, joined with free neighbours."""
        insort(self._free, place)
        joined: list[tuple[int, int]] = []
        for offset, size in self._free:
            if joined and sum(joined[-1]) == offset:
                joined[-1] = (joined[-1][0], joined[-1][1] + size)
            else:
                joined.append((offset, size))
        self._free = joined

    @property
    def nbytes_taken(self) -> int:
        """Bytes of the ranges that are given out."""
        return self._size - sum(size for _, size in self._free)

    @property
    def is_closed(self) -> bool:
        """Whether :meth:`close` was called."""
        return not self._close.alive

    def map(self, place: tuple[int, int]) -> mmap.mmap:
        """The bytes of a range, shared with whoever else maps it. Close it when nothing points into it any more."""
        offset, size = place
        return mmap.mmap(self.fd, size, offset=offset)

    def close(self) -> None:
        """Give up the file; ranges that are mapped stay until they are closed. Harmless when done before."""
        self._close()
