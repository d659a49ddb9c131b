"""Draws ``ask.svg``: what a terminal shows for one question, recorded from a real run in a pseudo-terminal."""

from __future__ import annotations

import os
import pty
import sys
from io import StringIO
from pathlib import Path

from rich.console import Console
from rich.terminal_theme import MONOKAI
from rich.text import Text

QUESTION = "Explain the KV cache in one sentence."
COMMAND = [sys.executable, "-m", "llmlab", "ask", QUESTION]
FRAME = """\
<svg class="rich-terminal" viewBox="0 0 {width} {height}" xmlns="http://www.w3.org/2000/svg">
<style>
.{unique_id}-matrix {{ font-family: Menlo, Consolas, "DejaVu Sans Mono", monospace; font-size: {char_height}px;
  line-height: {line_height}px; }}
{styles}
</style>
<defs><clipPath id="{unique_id}-clip-terminal">
<rect x="0" y="0" width="{terminal_width}" height="{terminal_height}" /></clipPath>{lines}</defs>
{chrome}
<g transform="translate({terminal_x}, {terminal_y})" clip-path="url(#{unique_id}-clip-terminal)">
{backgrounds}<g class="{unique_id}-matrix">{matrix}</g></g>
</svg>
"""


def recorded() -> str:
    """Everything the command wrote to its terminal."""
    chunks: list[bytes] = []

    def read(descriptor: int) -> bytes:
        chunks.append(os.read(descriptor, 4096))
        return chunks[-1]

    os.environ |= {"COLUMNS": "96", "TERM": "xterm-256color"}
    status = pty.spawn(COMMAND, read)
    assert os.waitstatus_to_exitcode(status) == 0, "the command failed"
    return b"".join(chunks).decode().replace("\r\n", "\n")


def main() -> None:
    """Run the command and write the picture beside this file."""
    console = Console(record=True, width=96, file=StringIO(), force_terminal=True)
    console.print(Text(f'$ llmlab ask "{QUESTION}"\n', style="bold green"), Text.from_ansi(recorded()), sep="")
    title = "llmlab"
    Path(__file__).with_name("ask.svg").write_text(
        console.export_svg(title=title, theme=MONOKAI, code_format=FRAME, unique_id="ask")
    )


if __name__ == "__main__":
    main()
