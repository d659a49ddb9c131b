"""The ledger of claims: what the two articles that the labs follow say, what holds, and where a lab shows it.

``python -m llmlab.claims`` prints how far the labs cover it.
"""

from __future__ import annotations

import os
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path

import pandas as pd

from llmlab.errors import ClaimsError

COLUMNS = (
    *("id", "article", "section", "area", "claim", "kind", "verdict", "evidence", "correction"),
    *("lab", "cell", "status", "ours", "check"),
)
VERDICTS = ("confirmed", "partly", "contradicted", "outdated", "unverifiable", "open")
EVIDENCE = ("measured here", "computed", "simulated", "public documentation", "unverifiable")
SHOWN = ("measured", "computed", "on the wire", "simulated", "corrected")
STATUSES = (*SHOWN, "unverifiable")


def claims(path: str | os.PathLike | None = None) -> pd.DataFrame:
    """One row per claim; all columns are text.

    What is claimed: ``id``; ``article`` and ``section`` that make the ``claim``, which is in our words; its ``area``,
    such as kv or transport; ``kind``: mechanism, number, rule, phenomenon, comparison or open-question.

    What holds: ``verdict``, one of :data:`VERDICTS`, where ``open`` is what nobody has looked at yet; ``evidence`` for
    it, one of :data:`EVIDENCE`, empty while open; ``correction``: what holds today, under which version the claim
    held, or what limits it; ``check``: the files in this repository that test it, separated by spaces.

    Where it is shown: ``lab``, the notebook's number, and the id of its ``cell``; ``status``, one of :data:`STATUSES`:
    how that cell shows what the claim is about; ``ours``: what was found there, or why nothing can be. A status without
    a lab means that only ``check`` shows it; no status, that it is not shown yet. The verdict is about the sentence in
    the article: what one closed client does stays unverifiable when a lab shows the same at work.

    Without ``path`` the file of the installation is read. Raises ``ClaimsError`` when there is no such file or its
    columns are others.
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


def coverage(path: str | os.PathLike | None = None) -> pd.DataFrame:
    """How far the labs cover the claims: a row per area, in the ledger's order, and one for all of them.

    ``claims`` counts them; a column per status of :data:`SHOWN`; ``unverifiable``: with the reason why; ``not yet``:
    the rest. The columns after the first add up to it.
    """
    table = claims(path)
    told = table.status.where((table.status != "unverifiable") | (table.ours != ""), "").replace("", "not yet")
    counts = pd.crosstab(table.area, told).reindex(index=table.area.unique(), columns=[*STATUSES, "not yet"])
    counts = counts.fillna(0).astype(int).rename_axis(columns=None)
    counts.loc["all"] = counts.sum()
    counts.insert(0, "claims", counts.sum(axis=1))
    return counts


def _markdown(table: pd.DataFrame) -> str:
    """A table with its index as a Markdown table."""
    lines = [[str(table.index.name), *table], ["---", *("--:" for _ in table)]]
    lines += [[str(name), *map(str, row)] for name, row in zip(table.index, table.to_numpy(), strict=True)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _installed() -> Traversable:
    """The file inside the installed package, or in the checkout that an editable installation points to."""
    package = files("llmlab")
    places = [package / "data" / "claims.csv", Path(str(package)).parent / "data" / "claims.csv"]
    for place in places:
        if place.is_file():
            return place
    raise ClaimsError(f"no claims.csv at {' or '.join(map(str, places))}: reinstall llmlab, or pass its path")


if __name__ == "__main__":
    print(_markdown(coverage()))
