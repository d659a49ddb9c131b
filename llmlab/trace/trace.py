"""A recorded trace: tidy tables over its events, saving, loading, export and consistency checks."""

from __future__ import annotations

import os
from collections.abc import Iterable
from functools import cached_property
from pathlib import Path
from typing import Any

import pandas as pd

from llmlab.errors import InvalidParameter, UnknownRequest
from llmlab.trace import blocks, check, frames, perfetto, requests, schedule, spans, store
from llmlab.trace.columns import COLUMNS
from llmlab.trace.events import EngineInfo, Event
from llmlab.trace.index import Index, build_index
from llmlab.trace.part import events_of


class Trace:
    """What happened, from a list of events. Live recordings and loaded files are the same object.

    The tables ``requests``, ``steps``, ``schedule``, ``blocks``, ``tokens`` and ``spans`` are computed when
    first asked for; times are seconds since the first event (``*_s``), durations milliseconds (``*_ms``), and
    :meth:`columns` explains every column. ``only`` names the requests the events were restricted to (see
    :meth:`for_request`); it is empty for a whole trace.
    """

    def __init__(self, events: Iterable[Event], only: Iterable[str] = ()) -> None:
        self.events: tuple[Event, ...] = tuple(events)
        self.only = tuple(only)

    def __repr__(self) -> str:
        index = self._index
        model = index.info.model if index.info else "unknown"
        parts = [
            f"{len(index.request_ids)} requests",
            f"{len(index.steps)} steps",
            f"{len(self.events)} events",
        ]
        if index.gaps:
            parts.append(f"{sum(gap.dropped for gap in index.gaps)} dropped")
        return f"<Trace of {model}: {', '.join(parts)}>"

    def __len__(self) -> int:
        return len(self.events)

    @cached_property
    def _index(self) -> Index:
        return build_index(self.events, self.only)

    @property
    def info(self) -> EngineInfo | None:
        """The engine it was recorded on, ``None`` when the events do not say."""
        return self._index.info

    # -- tables ---------------------------------------------------------------------------------------------

    @cached_property
    def requests(self) -> pd.DataFrame:
        """One row per request."""
        return requests.requests(self._index)

    @cached_property
    def steps(self) -> pd.DataFrame:
        """One row per engine step."""
        return frames.steps(self._index)

    @cached_property
    def schedule(self) -> pd.DataFrame:
        """One row per step and request: what it did and why, waiting included."""
        return schedule.schedule(self._index)

    @cached_property
    def blocks(self) -> pd.DataFrame:
        """One row per change of a K/V block."""
        return frames.blocks(self._index)

    @cached_property
    def tokens(self) -> pd.DataFrame:
        """One row per position of every request."""
        return frames.tokens(self._index)

    @cached_property
    def spans(self) -> pd.DataFrame:
        """Nested spans: a tree per request whose leaves add up to it, and a tree per step."""
        return spans.spans(self._index)

    def leaves(self, request_id: str | None = None) -> pd.DataFrame:
        """The innermost spans, of all trees or of one request; their durations add up to their roots'."""
        if request_id is not None:
            self._check_known(request_id)
        return spans.leaves(self.spans, request_id)

    def block_map(self, step: int) -> pd.DataFrame:
        """State, owners and hash of every block of the pool after ``step``.

        Raises ``InvalidParameter`` for a step outside the trace.
        """
        numbers = self._index.step_numbers
        if not len(numbers) or not numbers[0] <= step <= numbers[-1]:
            known = f"{numbers[0]} to {numbers[-1]}" if len(numbers) else "none"
            raise InvalidParameter(f"step={step!r} is not in the trace: its steps are {known}")
        return blocks.block_map(self._index, step)

    @staticmethod
    def columns(name: str) -> dict[str, str]:
        """What each column of table ``name`` means; also in the table's ``attrs["columns"]``."""
        if name not in COLUMNS:
            raise InvalidParameter(f"{name!r} is no table: choose one of {', '.join(COLUMNS)}")
        return dict(COLUMNS[name])

    # -- parts and checks -----------------------------------------------------------------------------------

    def for_request(self, *request_ids: str) -> Trace:
        """The part about some requests: their events, and the steps that ran from submission to end.

        Raises ``UnknownRequest`` for an id that is not in the trace.
        """
        if not request_ids:
            raise InvalidParameter("for_request() needs at least one request id")
        request_ids = tuple(dict.fromkeys(request_ids))
        for request_id in request_ids:
            self._check_known(request_id)
        return Trace(events_of(self._index, request_ids), only=request_ids)

    def _check_known(self, request_id: str) -> None:
        known = self._index.request_ids
        if request_id not in self._index.code:
            some = ", ".join(known[:8]) + (", ..." if len(known) > 8 else "")
            raise UnknownRequest(f"request {request_id!r} is not in the trace, which has: {some or 'none'}")

    def check(self) -> list[str]:
        """Contradictions between events, one sentence each; empty when everything adds up."""
        return check.check(self._index)

    # -- files ----------------------------------------------------------------------------------------------

    def save(self, path: str | os.PathLike) -> Path:
        """Write the trace as gzipped JSON lines, all or nothing (usual name: ``NAME.trace.jsonl.gz``)."""
        return store.save(path, self.events, self.only)

    @classmethod
    def load(cls, path: str | os.PathLike, max_bytes: int = store.MAX_BYTES) -> Trace:
        """Read a saved trace, without a model or torch. At most ``max_bytes`` are unpacked.

        Raises ``TraceFormatError`` when the file is not a trace, damaged, too large or of a newer version.
        """
        return cls(*store.load(path, max_bytes))

    def to_perfetto(self, path: str | os.PathLike | None = None) -> dict[str, Any]:
        """Chrome trace JSON for ui.perfetto.dev, written to ``path`` when given (``*.gz``: gzipped)."""
        trace = perfetto.to_perfetto(self._index, self.spans)
        if path is not None:
            perfetto.write(path, trace)
        return trace
