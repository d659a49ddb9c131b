"""Reading a file that somebody else may have prepared: no links, no pipes, no devices, and never without a limit."""

from __future__ import annotations

import os
import stat
from pathlib import Path

NO_LINKS = getattr(os, "O_NOFOLLOW", 0)


def read_plain(path: Path, limit: int) -> bytes:
    """The first ``limit + 1`` bytes, so that a longer file can be told from one that fits.

    Raises ``OSError`` when ``path`` cannot be opened, is a link, or is anything but a regular file.
    """
    descriptor = os.open(path, os.O_RDONLY | NO_LINKS | getattr(os, "O_NONBLOCK", 0))
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError(None, "not a plain file")
        with os.fdopen(descriptor, "rb", closefd=False) as file:
            return file.read(limit + 1)
    finally:
        os.close(descriptor)
