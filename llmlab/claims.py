"""What the article this lab follows says about the wire, claim by claim, with what holds today."""

from __future__ import annotations

import os
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path

import pandas as pd

from llmlab.errors import ClaimsError

COLUMNS = ("id", "article", "section", "claim", "verdict", "evidence", "correction", "check")
VERDICTS = ("confirmed", "partly", "contradicted", "outdated", "unverifiable")
EVIDENCE = ("measured here", "computed", "public documentation", "unverifiable")


def claims(path: str | os.PathLike | None = None) -> pd.DataFrame:
    """One row per claim; all columns are text.

    ``id``; ``article`` and ``section`` that make the ``claim``; ``verdict``, one of :data:`VERDICTS`; ``evidence`` for
    it, one of :data:`EVIDENCE`; ``correction``: what holds today, or under which version the claim held; ``check``: the
    file in this repository that shows it, empty when there is none. Without ``path`` the file of the installation is
    read. Raises ``ClaimsError`` when there is no such file or its columns are others.
    """
    source = _installed() if path is None else Path(path)
    try:
        with source.open(encoding="utf-8", newline="") as file:
            table = pd.read_csv(file, dtype=str, keep_default_na=False)
    except (OSError, ValueError) as error:
        raise ClaimsError(f"the claims cannot be read from {source}: {error}") from None
    if tuple(table) != COLUMNS:
        raise ClaimsError(f"{source} has columns {', '.join(table)}; claims have {', '.join(COLUMNS)}")
    return table


def _installed() -> Traversable:
    """The file inside the installed package, or in the checkout that an editable installation points to."""
    package = files("llmlab")
    places = [package / "data" / "claims.csv", Path(str(package)).parent / "data" / "claims.csv"]
    for place in places:
        if place.is_file():
            return place
    raise ClaimsError(f"no claims.csv at {' or '.join(map(str, places))}: reinstall llmlab, or pass its path")
