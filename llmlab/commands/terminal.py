"""Writing text of unknown origin to a terminal, and our own tables and messages beside it."""

from __future__ import annotations

import re
import sys
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

# C0 and C1 controls except tab and newline can move the cursor, retitle the window or type keys; the bidirectional
# overrides can make a line read as something it is not.
_UNSAFE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")


def escape_controls(text: str) -> str:
    r"""``text`` with control characters spelled out (``\x1b``, ``\u202e``); tabs and newlines stay."""
    return _UNSAFE.sub(lambda match: _spelled(ord(match[0])), text)


def _spelled(code: int) -> str:
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"


class TextStream:
    """Model output on its way to ``out``: flushed piece by piece, harmless where ``out`` is a terminal.

    A file or a pipe gets the text unchanged; characters that its encoding lacks are spelled out.
    """

    def __init__(self, out: TextIO) -> None:
        self.out = out
        self.is_terminal = out.isatty()
        self.at_line_start = True
        if hasattr(out, "reconfigure"):
            out.reconfigure(errors="backslashreplace")

    def write(self, text: str) -> None:
        """Show ``text`` now."""
        if text:
            self.out.write(escape_controls(text) if self.is_terminal else text)
            self.out.flush()
            self.at_line_start = text.endswith("\n")

    def end_line(self) -> None:
        """A newline, unless the text ended with one or nothing was written."""
        if not self.at_line_start:
            self.write("\n")


def stderr_console() -> Console:
    """A console for messages and tables beside the output; it interprets no markup in what it is given."""
    from rich.console import Console

    return Console(file=sys.stderr, markup=False, highlight=False, emoji=False)


def stdout_console() -> Console:
    """A console for tables that are the output."""
    from rich.console import Console

    return Console(file=sys.stdout, markup=False, highlight=False, emoji=False)


def print_error(message: str) -> None:
    """One message on standard error."""
    print(f"llmlab: {escape_controls(message)}", file=sys.stderr)


def two_columns(rows: dict[str, str], title: str | None = None) -> Table:
    """A table of names and values; both are plain text."""
    from rich.table import Table
    from rich.text import Text

    table = Table(show_header=False, box=None, padding=(0, 2, 0, 0), title=title, title_justify="left")
    for name, value in rows.items():
        table.add_row(Text(name, style="dim"), Text(escape_controls(value)))
    return table
