"""A recorded trace: tidy tables over its events, saving, loading, export and consistency checks."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from llmlab.errors import InvalidParameter, UnknownRequest
from llmlab.trace import arrays as array_files
from llmlab.trace import blocks, check, drafts, frames, perfetto, requests, schedule, spans, splits, store, wire
from llmlab.trace import pieces as token_pieces
from llmlab.trace.captures import Captures
from llmlab.trace.columns import COLUMNS
from llmlab.trace.events import Captured, EngineInfo, Event
from llmlab.trace.index import Index, build_index
from llmlab.trace.part import events_of, resolve


class Trace:
    """What happened, from a list of events. Live recordings and loaded files are the same object.

    The tables ``requests``, ``steps``, ``schedule``, ``blocks``, ``tokens``, ``drafts``, ``draft_policies``, ``wire``,
    ``stages``, ``exchanges``, ``spans``, ``captures``, ``ranks``, ``collectives`` and ``transfers`` are computed when
    first asked for; times are seconds since the first event (``*_s``), durations milliseconds (``*_ms``), and
    :meth:`columns` explains every column. ``only`` names the requests (and exchanges) the events were restricted to
    (see :meth:`for_request`); it is empty for a whole trace.

    What was recorded inside the model is in ``arrays``, by the ``array_id`` of its ``Captured`` event; see
    :meth:`captured`. ``pieces`` are the bytes of its tokens by id; see :meth:`piece`.
    """

    def __init__(
        self,
        events: Iterable[Event],
        only: Iterable[str] = (),
        arrays: Mapping[str, np.ndarray] | None = None,
        pieces: Mapping[int, bytes] | None = None,
    ) -> None:
        self.events: tuple[Event, ...] = tuple(events)
        self.only = tuple(only)
        self.arrays: Mapping[str, np.ndarray] = {} if arrays is None else arrays
        self.pieces: Mapping[int, bytes] = {} if pieces is None else pieces

    def __repr__(self) -> str:
        index = self._index
        model = index.info.model if index.info else "unknown"
        parts = [
            f"{len(index.request_ids)} requests",
            f"{len(index.steps)} steps",
            f"{len(self.events)} events",
        ]
        if index.exchanges.all:
            parts.insert(0, f"{len(index.exchanges.all)} exchanges")
        if index.gaps:
            parts.append(f"{sum(gap.dropped for gap in index.gaps)} dropped")
        return f"<Trace of {model}: {', '.join(parts)}>"

    def __len__(self) -> int:
        return len(self.events)

    @cached_property
    def _index(self) -> Index:
        return build_index(self.events, self.only)

    @property
    def index(self) -> Index:
        """The events sorted by kind: what every table and view is computed from."""
        return self._index

    @property
    def info(self) -> EngineInfo | None:
        """The engine it was recorded on, ``None`` when the events do not say."""
        return self._index.info

    def piece(self, token_id: int) -> bytes | None:
        """The bytes a token stands for, perhaps part of a character; a special token's are its name.

        ``None`` where the trace does not know them: an id its events do not mention, or a file without them.
        """
        return self.pieces.get(token_id)

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
    def drafts(self) -> pd.DataFrame:
        """One row per verification of a draft; ``attrs["summary"]`` has acceptance by place in the draft and the mean
        acceptance length, see :func:`llmlab.trace.drafts.summary`."""
        return drafts.drafts(self._index)

    @cached_property
    def draft_policies(self) -> pd.DataFrame:
        """One row per change of how much is drafted."""
        return drafts.policies(self._index)

    @cached_property
    def wire(self) -> pd.DataFrame:
        """One row per event on a connection: requests, responses, pieces, frames, ends."""
        return wire.wire(self._index)

    @cached_property
    def stages(self) -> pd.DataFrame:
        """One row per decision of the client or the gateway about an exchange."""
        return wire.stages(self._index)

    @cached_property
    def exchanges(self) -> pd.DataFrame:
        """One row per HTTP exchange, both sides joined."""
        return wire.exchanges(self._index)

    @cached_property
    def ranks(self) -> pd.DataFrame:
        """One row per piece of work, or of waiting, of each process a model is divided over."""
        return splits.ranks(self._index)

    @cached_property
    def collectives(self) -> pd.DataFrame:
        """One row per communication between those processes, for each that took part."""
        return splits.collectives(self._index)

    @cached_property
    def transfers(self) -> pd.DataFrame:
        """One row per copy of K/V blocks to another pool or process."""
        return splits.transfers(self._index)

    @cached_property
    def spans(self) -> pd.DataFrame:
        """Nested spans: a tree per exchange and per request whose leaves add up to it, and a tree per step."""
        return spans.spans(self._index)

    def leaves(self, request_id: str | None = None) -> pd.DataFrame:
        """The innermost spans, of all trees, or of one request or exchange; their durations add up to their roots'.

        Raises ``UnknownRequest`` for an id that is not in the trace.
        """
        if request_id is None:
            return spans.leaves(self.spans)
        first = resolve(self._index, request_id)[0]
        return spans.leaves(self.spans, **{"request_id" if first in self._index.code else "wire_id": first})

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

    # -- inside the model -----------------------------------------------------------------------------------

    @cached_property
    def captures(self) -> pd.DataFrame:
        """One row per array recorded inside the model."""
        return frames.captures(self._index, self.arrays)

    def captured(self, request_id: str | None = None) -> Captures:
        """What was recorded inside the model for a request (default: the first that has anything).

        Raises ``UnknownRequest`` when nothing was recorded for it.
        """
        index = self._index
        known = list(dict.fromkeys(event.request_id for event in (*index.probe_notes, *index.captured)))
        chosen = request_id if request_id is not None else next(iter(known), None)
        if chosen is None or chosen not in known:
            raise UnknownRequest(f"nothing was captured for {chosen!r}, only for: {', '.join(known) or 'no request'}")
        return Captures(
            chosen,
            (event for event in index.captured if event.request_id == chosen),
            self.arrays,
            (note for note in index.probe_notes if note.request_id == chosen),
        )

    def array(self, event: Captured | str) -> np.ndarray:
        """The numbers of a ``Captured`` event, or of its ``array_id``.

        Raises ``InvalidParameter`` when they are not there: saved without ``captures=True``, or dropped since.
        """
        array_id = event if isinstance(event, str) else event.array_id
        if array_id not in self.arrays:
            raise InvalidParameter(f"array {array_id!r} is not beside this trace: save it with captures=True")
        return self.arrays[array_id]

    # -- parts and checks -----------------------------------------------------------------------------------

    def for_request(self, *request_ids: str) -> Trace:
        """The part about some requests: their events, the steps that ran from submission to end, and the HTTP
        exchanges that carried them.

        An id may also be that of an exchange, the gateway's or the client's: it stands for all requests that served
        it. Raises ``UnknownRequest`` for an id that is not in the trace.
        """
        if not request_ids:
            raise InvalidParameter("for_request() needs at least one request id")
        ids = tuple(dict.fromkeys(i for any_id in request_ids for i in resolve(self._index, any_id)))
        return Trace(events_of(self._index, ids), only=ids, arrays=self.arrays, pieces=self.pieces)

    def check(self) -> list[str]:
        """Contradictions between events, one sentence each; empty when everything adds up."""
        return check.check(self._index)

    # -- files ----------------------------------------------------------------------------------------------

    def save(self, path: str | os.PathLike, *, captures: bool = False) -> Path:
        """Write the trace as gzipped JSON lines, all or nothing (usual name: ``NAME.trace.jsonl.gz``).

        With ``captures`` the arrays recorded inside the model go into ``PATH.npz`` beside it, where :meth:`load`
        finds them. The bytes of the tokens that the events, and saved arrays, mention go with them.
        """
        if captures:
            array_files.save(path, self._index.captured, self.arrays)
        pieces = token_pieces.mentioned(self.events, self.arrays if captures else {}, self.pieces)
        return store.save(path, self.events, self.only, pieces)

    @classmethod
    def load(cls, path: str | os.PathLike, max_bytes: int = store.MAX_BYTES) -> Trace:
        """Read a saved trace, and the arrays beside it, without a model or torch. At most ``max_bytes`` are unpacked
        of each.

        Raises ``TraceFormatError`` when the file is not a trace, damaged, too large or of a newer version.
        """
        events, only, pieces = store.load(path, max_bytes)
        captured = [event for event in events if isinstance(event, Captured)]
        return cls(events, only, array_files.load(path, captured, max_bytes) if captured else None, pieces)

    def to_perfetto(self, path: str | os.PathLike | None = None) -> dict[str, Any]:
        """Chrome trace JSON for ui.perfetto.dev, written to ``path`` when given (``*.gz``: gzipped)."""
        trace = perfetto.to_perfetto(self._index, self.spans)
        if path is not None:
            perfetto.write(path, trace)
        return trace
