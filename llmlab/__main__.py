"""``python -m llmlab``: the command line without its console script."""

from __future__ import annotations

from llmlab.cli import app

if __name__ == "__main__":
    app(prog_name="llmlab")
