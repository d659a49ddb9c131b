"""Where the arrays of one captured request are kept while it runs and afterwards."""

from __future__ import annotations

from collections import OrderedDict
from time import perf_counter_ns

import numpy as np

from llmlab.trace.captures import Captures
from llmlab.trace.events import Captured, ProbeNote

SHELF_BYTES = 512_000_000


class CaptureStore:
    """Arrays of one request and the events that describe them.

    The stepping thread writes, anybody reads: an array is there before its event is, and both only ever grow.
    ``cost_ns`` is the time spent looking (nanoseconds).
    """

    def __init__(self, request_id: str, max_bytes: int, dtype: str = "float32") -> None:
        self.request_id, self.max_bytes, self.dtype = request_id, max_bytes, np.dtype(dtype)
        self.arrays: dict[str, np.ndarray] = {}
        self.events: list[Captured] = []
        self.notes: list[ProbeNote] = []
        self.nbytes = self.cost_ns = 0
        self.is_stopped = False
        self._told = [0, 0]

    def add(
        self,
        step: int,
        kind: str,
        layer: int,
        dims: tuple[str, ...],
        values: np.ndarray,
        positions: tuple[int, ...],
        labels: tuple[int, ...] = (),
        layers: tuple[int, ...] = (),
    ) -> None:
        """Keep one array, floats in the store's dtype; past the budget it is dropped and nothing more is kept."""
        if self.is_stopped:
            return
        values = values.astype(self.dtype if values.dtype.kind == "f" else np.int32, order="C")
        if self.nbytes + values.nbytes > self.max_bytes:
            self.stop(step, f"max_bytes={self.max_bytes:,} is reached: {kind} needs {values.nbytes:,} bytes more")
            return
        array_id = f"{self.request_id}/{kind}/{layer}/{len(self.events)}"
        values.flags.writeable = False
        self.arrays[array_id] = values
        self.nbytes += values.nbytes
        self.events.append(
            Captured(
                perf_counter_ns(),
                step,
                self.request_id,
                array_id,
                kind,
                layer,
                dims,
                values.shape,
                str(values.dtype),
                values.nbytes,
                positions,
                labels,
                layers,
            )
        )

    def stop(self, step: int, reason: str) -> None:
        """Keep nothing more, and say why."""
        if not self.is_stopped:
            self.is_stopped = True
            self.note(step, "stopped", reason)

    def note(self, step: int, action: str, reason: str, positions: tuple[int, ...] = (), num_cached: int = 0) -> None:
        """Record something that is no array."""
        self.notes.append(ProbeNote(perf_counter_ns(), step, self.request_id, action, reason, positions, num_cached))

    def take_news(self) -> list[Captured | ProbeNote]:
        """Notes and events that were not taken before."""
        notes, events = self.notes[self._told[0] :], self.events[self._told[1] :]
        self._told = [len(self.notes), len(self.events)]
        return [*notes, *events]

    def view(self) -> Captures:
        """What there is so far."""
        return Captures(self.request_id, list(self.events), self.arrays, list(self.notes), self.cost_ns / 1e6)


class Shelf:
    """The stores of an engine's requests, so that its trace can find them; the oldest go when ``limit`` is passed."""

    def __init__(self, limit: int = SHELF_BYTES) -> None:
        self.limit = limit
        self._stores: OrderedDict[str, CaptureStore] = OrderedDict()

    def put(self, store: CaptureStore) -> None:
        """Remember a new store; forget old ones while all together hold more than the limit."""
        self._stores.pop(store.request_id, None)
        while self._stores and sum(s.nbytes for s in self._stores.values()) + store.max_bytes > self.limit:
            self._stores.popitem(last=False)
        self._stores[store.request_id] = store

    def arrays(self) -> dict[str, np.ndarray]:
        """All arrays by id."""
        return {name: array for store in list(self._stores.values()) for name, array in dict(store.arrays).items()}
