"""What several commands do with their arguments: a prompt, and a file to save the trace to."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from llmlab.errors import InvalidParameter, LabError

if TYPE_CHECKING:
    from llmlab.trace.trace import Trace

FROM_STDIN = "-"


def prompt_text(argument: str) -> str:
    """The prompt an argument stands for: itself, or standard input for ``-``."""
    return _read_stdin() if argument == FROM_STDIN else clean(argument)


def some_prompt(argument: str) -> str:
    """As :func:`prompt_text`; raises ``InvalidParameter`` for one that is empty or blank."""
    text = prompt_text(argument)
    if not text.strip():
        source = " on standard input" if argument == FROM_STDIN else ""
        raise InvalidParameter(f"the prompt is empty: give some text{source}")
    return text


def _read_stdin() -> str:
    """Standard input as UTF-8 without its last newline; bytes that are not UTF-8 become U+FFFD."""
    return sys.stdin.buffer.read().decode("utf-8", errors="replace").removesuffix("\n").removesuffix("\r")


def clean(argument: str) -> str:
    """An argument whose bytes are not UTF-8 holds lone surrogates, which no tokenizer takes."""
    return argument.encode("utf-8", errors="surrogateescape").decode("utf-8", errors="replace")


def check_trace_target(path: Path | None) -> None:
    """Refuse a trace file that could not be written before any work is done. Raises ``BadParameter``."""
    if path is not None and (path.is_dir() or not path.absolute().parent.is_dir()):
        problem = "it is a folder" if path.is_dir() else f"there is no folder {path.absolute().parent}"
        raise typer.BadParameter(f"{path} cannot be written: {problem}", param_hint="--trace")


def save_trace(trace: Trace, path: Path) -> None:
    """Write ``trace`` to ``path``. Raises ``LabError`` when that fails."""
    try:
        trace.save(path)
    except OSError as error:
        raise LabError(f"the trace was not saved to {path}: {error.strerror or error}") from error
