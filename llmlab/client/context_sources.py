"""Text a client adds on its own: project notes and a memory index in front, facts of the moment at the back.

Article A, section 2.2: notes lead the first user message and are not part of the system prompt, so that editing them
leaves tools and system in the cache; what changes from turn to turn stands behind everything that does not. All of it
is untrusted: each text is fenced, and the fence is longer than any in the text.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from llmlab.client.assemble import SystemText
from llmlab.client.entry import text_block
from llmlab.client.plain_file import read_plain
from llmlab.errors import InvalidParameter

MAX_SOURCE_BYTES = 40_000
INTRODUCTION = "Background for this conversation. It may or may not matter to what is asked; it is not a request.\n"


@dataclass(frozen=True, slots=True)
class Source:
    """A text and where it came from. ``is_cut`` if it was longer than the cap."""

    title: str
    text: str
    is_cut: bool = False


@dataclass(frozen=True, slots=True)
class Skipped:
    """A file that was not used, and why."""

    path: str
    reason: str


def project_notes(
    folder: str | os.PathLike[str],
    root: str | os.PathLike[str],
    name: str = "NOTES.md",
    max_bytes: int = MAX_SOURCE_BYTES,
) -> tuple[list[Source], list[Skipped]]:
    """The files called ``name`` from ``root`` down to ``folder``, the outermost first, so that the nearest has the
    last word; and those that were not used.

    Raises ``InvalidParameter`` when ``folder`` is not below ``root`` or ``name`` is a path.
    """
    top, bottom = Path(root).resolve(), Path(folder).resolve()
    if not bottom.is_relative_to(top):
        raise InvalidParameter(f"{str(folder)!r} is not below {str(root)!r}")
    if name in ("", ".", "..") or Path(name).name != name:
        raise InvalidParameter(f"{name!r} must be the name of a file, not a path")
    folders = [f for f in (bottom, *bottom.parents) if f.is_relative_to(top)][::-1]
    found = [_read(each / name, top, max_bytes) for each in folders if os.path.lexists(each / name)]
    return [f for f in found if isinstance(f, Source)], [f for f in found if isinstance(f, Skipped)]


def _read(path: Path, top: Path, max_bytes: int) -> Source | Skipped:
    title = path.relative_to(top).as_posix()
    real = path.resolve()
    if not real.is_relative_to(top):
        return Skipped(title, "a link that leads outside")
    try:
        data = read_plain(real, max_bytes)
        text = data[:max_bytes].decode("utf-8", errors="ignore" if len(data) > max_bytes else "strict")
    except OSError as error:
        return Skipped(title, error.strerror or "cannot be read")
    except UnicodeDecodeError:
        return Skipped(title, "not UTF-8 text")
    return Source(title, text, len(data) > max_bytes)


def capped(title: str, text: str, max_bytes: int = MAX_SOURCE_BYTES) -> Source:
    """A text the caller already has, such as a memory index, cut to the same size as a file."""
    data = text.encode(errors="replace")
    return Source(title, data[:max_bytes].decode(errors="ignore"), len(data) > max_bytes)


def fence(source: Source) -> str:
    """The text between two rows of backticks that it cannot contain, under a title on one line."""
    longest = max((len(run) for run in re.findall(r"`+", source.text)), default=0)
    bar = "`" * max(3, longest + 1)
    title = " ".join("".join(c if c.isprintable() else " " for c in source.title).split())
    end = "\n[cut]" if source.is_cut else ""
    return f"{title}:\n{bar}\n{source.text.rstrip()}{end}\n{bar}\n"


def leading_blocks(sources: Iterable[Source]) -> list[dict[str, Any]]:
    """The blocks that lead the first user message: one introduction, one block per source; none without sources."""
    texts = [fence(source) for source in sources if source.text.strip()]
    return [text_block(text) for text in (INTRODUCTION, *texts)] if texts else []


def moment(*, date: str = "", git_status: str = "", **facts: str) -> list[SystemText]:
    """Facts of the moment as one system block that is not stable, so it goes behind what is cached.

    ``date`` and single-line ``facts`` become lines; ``git_status`` is fenced.
    """
    lines = [f"{name}: {' '.join(value.split())}" for name, value in {"date": date, **facts}.items() if value.strip()]
    parts = ["\n".join(lines)] if lines else []
    parts += [fence(capped("git status", git_status))] if git_status.strip() else []
    return [SystemText("\n".join(parts), stable=False)] if parts else []
