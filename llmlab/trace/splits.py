"""The tables of models split over processes and of K/V that moves: work of ranks, collectives, transfers."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd

from llmlab.trace.columns import COLUMNS, objects, table
from llmlab.trace.index import Index


def ranks(index: Index) -> pd.DataFrame:
    """One row per piece of work, or of waiting, of a process of a group."""
    return _timed(index, "ranks", index.rank_work, ("role", "name"))


def collectives(index: Index) -> pd.DataFrame:
    """One row per communication and process that took part in it."""
    return _timed(index, "collectives", index.collectives, ("role", "kind", "place"))


def transfers(index: Index) -> pd.DataFrame:
    """One row per copy of K/V blocks between pools or processes."""
    names = ("request_id", "action", "source", "target", "medium", "blocks", "reason", "host_blocks")
    return _timed(index, "transfers", index.transfers, names)


def _timed(index: Index, name: str, events: Sequence, texts: tuple[str, ...]) -> pd.DataFrame:
    """Start, duration, and every other documented column from the events' fields of that name."""
    start = np.array([e.t_ns for e in events], dtype=np.int64)
    end = np.array([e.end_ns for e in events], dtype=np.int64)
    data: dict[str, object] = {"start_s": index.seconds(start), "duration_ms": (end - start) / 1e6}
    for field in [column for column in COLUMNS[name] if column not in data]:
        values = [getattr(e, field) for e in events]
        data[field] = objects(values) if field in texts else np.array(values, dtype=np.int64)
    return table(name, data)
