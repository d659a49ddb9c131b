"""What the tests of the notebooks share: the sources, the stored notebooks, and running nbval on one."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import nbformat
from nbformat import NotebookNode

from llmlab.labs.sources import LABS, SOURCES, built_path, sources

SANITIZE = Path(__file__).with_name("sanitize.cfg")
TRAIN_SECONDS = "4"  # what is two minutes for a reader
LAB_SOURCES = sources()
LAB_NAMES = [path.stem for path in LAB_SOURCES]
__all__ = ["LABS", "LAB_NAMES", "LAB_SOURCES", "SANITIZE", "SOURCES", "TRAIN_SECONDS", "nbval", "stored"]


def stored(source: Path) -> NotebookNode:
    """The notebook kept beside its source."""
    return nbformat.read(built_path(source), as_version=4)


def nbval(path: Path, *options: str) -> subprocess.CompletedProcess[str]:
    """Run a notebook again and compare every output with the stored one; a test per cell."""
    command = [
        *(sys.executable, "-m", "pytest", "--nbval", "--nbval-current-env"),
        *("--nbval-sanitize-with", str(SANITIZE), "--nbval-cell-timeout", "300"),
        *(
            "-p",
            "no:cacheprovider",
            "--rootdir",
            str(path.parent),
            "-c",
            os.devnull,
            "--color=no",
            *options,
            str(path),
        ),
    ]
    environment = {**os.environ, "LLMLAB_TRAIN_SECONDS": TRAIN_SECONDS}
    return subprocess.run(command, capture_output=True, encoding="utf-8", check=False, timeout=900, env=environment)
