"""Spans in the making, as arrays."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

NO_REQUEST = -1
NO_STEP = -1
NO_EXCHANGE = -1
ROOT = -1
NUM_COLUMNS = 8


@dataclass(slots=True)
class SpanTable:
    """Spans as chunks of arrays. Names, requests and exchanges are codes, times nanoseconds."""

    names: dict[str, int] = field(default_factory=dict)
    chunks: list[tuple[np.ndarray, ...]] = field(default_factory=list)
    size: int = 0

    def name(self, text: str) -> int:
        """The code of a span name."""
        return self.names.setdefault(text, len(self.names))

    def add(self, request, step, name, start, end, *, parent=ROOT, depth=0, exchange=NO_EXCHANGE) -> np.ndarray:
        """Append spans (scalars are repeated) and return their ids."""
        columns = (parent, exchange, request, step, name, start, end, depth)
        chunk = np.broadcast_arrays(*map(np.atleast_1d, columns))
        self.chunks.append(tuple(np.asarray(column, dtype=np.int64) for column in chunk))
        ids = np.arange(self.size, self.size + len(chunk[0]))
        self.size += len(ids)
        return ids

    def columns(self) -> tuple[np.ndarray, ...]:
        """``parent, exchange, request, step, name, start, end, depth``: trees of exchanges, then of requests, then the
        rest, each by time and depth.
        """
        empty = (np.zeros(0, dtype=np.int64),) * NUM_COLUMNS
        columns = [np.concatenate(parts) for parts in zip(empty, *self.chunks, strict=True)]
        parent, exchange, request, _, _, start, _, depth = columns
        num_exchanges = exchange.max(initial=NO_EXCHANGE) + 1
        last = num_exchanges + request.max(initial=0) + 1
        tree = np.where(request == NO_REQUEST, last, num_exchanges + request)
        order = np.lexsort((depth, start, np.where(exchange == NO_EXCHANGE, tree, exchange)))
        new_id = np.empty(self.size + 1, dtype=np.int64)
        new_id[order], new_id[ROOT] = np.arange(self.size), ROOT
        columns[0] = new_id[parent]
        return tuple(column[order] for column in columns)


@dataclass(frozen=True, slots=True)
class Places:
    """Where the requests' trees hang: per request code the span above, its depth and its exchange."""

    parent: np.ndarray
    depth: np.ndarray
    exchange: np.ndarray

    def below(self, request: np.ndarray, levels: int, parent: np.ndarray | None = None) -> dict[str, np.ndarray]:
        """Keyword arguments of :meth:`SpanTable.add` for spans of requests, ``levels`` under ``parent`` of them."""
        above = self.parent[request] if parent is None else parent
        return {"parent": above, "depth": self.depth[request] + levels, "exchange": self.exchange[request]}


def free_standing(count: int) -> Places:
    """Places of ``count`` requests that are trees of their own."""
    none = np.full(count, ROOT, dtype=np.int64)
    return Places(none, np.zeros(count, dtype=np.int64), np.full(count, NO_EXCHANGE, dtype=np.int64))
