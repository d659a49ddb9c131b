"""Running the command line as people do: another process, its two streams and its exit status."""

from __future__ import annotations

import re
import subprocess
import sys

COMMAND = [sys.executable, "-m", "llmlab"]


def llmlab(*arguments: str, **options) -> subprocess.CompletedProcess:
    """Run ``llmlab ARGUMENTS`` to its end; text streams unless ``options`` say otherwise."""
    settings = {"capture_output": True, "encoding": "utf-8", "timeout": 300, **options}
    return subprocess.run([*COMMAND, *arguments], check=False, **settings)


def uncoloured(text: str) -> str:
    """``text`` without colours, which some environments force on usage messages."""
    return re.sub("\x1b\\[[0-9;]*m", "", text)


def ask_mock(*arguments: str, **options) -> subprocess.CompletedProcess:
    """``llmlab ask`` on the model without weights."""
    return llmlab("ask", "--model", "mock", *arguments, **options)
