"""The tables of what crossed the wire: events, stages and whole exchanges."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

import numpy as np
import pandas as pd

from llmlab.trace.columns import integers, objects, table
from llmlab.trace.events import Stage, WireEvent
from llmlab.trace.exchange import CLIENT, GATEWAY, Exchange
from llmlab.trace.index import Index

FINAL = ("end", "error", "disconnect")
STATUS = re.compile(r"\b[1-5][0-9]{2}\b", re.ASCII)


def wire(index: Index) -> pd.DataFrame:
    """One row per wire event, in the order in which they were recorded."""
    events = index.wire
    names = ("side", "kind", "direction", "name", "text")
    return table(
        "wire",
        {
            "time_s": index.seconds([e.t_ns for e in events]),
            **_ids(index, events),
            **{name: objects([getattr(e, name) for e in events]) for name in names},
            "size": np.array([e.size for e in events], dtype=np.int64),
        },
    )


def stages(index: Index) -> pd.DataFrame:
    """One row per stage of an exchange, in the order in which they were recorded."""
    found = index.stages
    start = np.array([s.t_ns for s in found], dtype=np.int64)
    end = np.array([s.end_ns for s in found], dtype=np.int64)
    names = ("side", "name", "outcome", "reason", "details")
    return table(
        "stages",
        {
            **_ids(index, found),
            **{name: objects([getattr(s, name) for s in found]) for name in names},
            "start_s": index.seconds(start),
            "end_s": index.seconds(end),
            "duration_ms": (end - start) / 1e6,
        },
    )


def _ids(index: Index, events: list[WireEvent] | list[Stage]) -> dict[str, pd.Series]:
    owners = [index.exchanges.owner(event) for event in events]
    return {
        "wire_id": objects([owner.wire_id for owner in owners]),
        "client_id": objects([owner.client_id for owner in owners]),
        "request_ids": objects([owner.request_ids for owner in owners]),
    }


# -- exchanges -----------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Moments:
    """One side's view of an exchange; times in nanoseconds, ``None`` for what did not happen there.

    A client that tries again records all its attempts: ``sent`` is the first one's, the rest describes the last.
    """

    sent: int | None = None
    head: int | None = None
    first_frame: int | None = None
    first_delta: int | None = None
    end: int | None = None
    final: str | None = None
    status: int | None = None
    num_frames: int = 0
    request_bytes: int = 0
    response_bytes: dict[str, int] = field(default_factory=dict)
    name: str = ""

    def add(self, event: WireEvent) -> None:
        """Take the side's next event."""
        if event.kind == "request":
            self._begin(event)
        elif event.kind == "response":
            self.head, self.status = event.t_ns, _status(event.name)
        elif event.kind == "frame":
            self.num_frames += 1
            self.first_frame = event.t_ns if self.first_frame is None else self.first_frame
        elif event.kind == "delta":
            self.first_delta = event.t_ns if self.first_delta is None else self.first_delta
        elif event.kind in FINAL:
            # an end may follow the failure that led to it, and a closed connection the end
            self.end, self.final = event.t_ns, self.final or event.kind
        if event.kind in ("response", "bytes", "frame"):
            self.response_bytes[event.kind] = self.response_bytes.get(event.kind, 0) + event.size

    def _begin(self, event: WireEvent) -> None:
        self.sent = event.t_ns if self.sent is None else self.sent
        self.name, self.request_bytes = event.name, event.size
        self.head = self.first_frame = self.first_delta = self.end = self.final = self.status = None
        self.num_frames, self.response_bytes = 0, {}

    @property
    def num_response_bytes(self) -> int:
        """Of the pieces that passed the socket; without a record of those, of the frames."""
        found = self.response_bytes
        return found.get("response", 0) + found.get("bytes", found.get("frame", 0))

    @property
    def outcome(self) -> str | None:
        """``complete``, ``disconnected`` or ``error``; ``None`` when no end was recorded."""
        if self.final == "end":
            return "complete" if (self.status or 0) < 400 else "error"
        return {"disconnect": "disconnected", "error": "error"}.get(self.final)


def moments(exchange: Exchange, side: str) -> Moments:
    """What one side recorded about an exchange."""
    found = Moments()
    for event in exchange.of(side):
        found.add(event)
    return found


def exchanges(index: Index) -> pd.DataFrame:
    """One row per exchange, in the order in which they began; the client's view where it was recorded."""
    found = index.exchanges.all
    client = [moments(exchange, CLIENT) for exchange in found]
    gateway = [moments(exchange, GATEWAY) for exchange in found]
    both = [c if c.sent is not None else g for c, g in zip(client, gateway, strict=True)]
    return table(
        "exchanges",
        {
            "wire_id": objects([e.wire_id for e in found]),
            "client_id": objects([e.client_id for e in found]),
            "request_ids": objects([e.request_ids for e in found]),
            "path": objects([m.name.rpartition(" ")[2] for m in both]),
            "status": integers([m.status for m in both]),
            "stream": np.array([m.num_frames > 0 for m in both], dtype=bool),
            "bytes_sent": np.array([m.request_bytes for m in both], dtype=np.int64),
            "bytes_received": np.array([m.num_response_bytes for m in both], dtype=np.int64),
            "frames": np.array([m.num_frames for m in both], dtype=np.int64),
            **{f"{name}_s": _seconds(index, both, name) for name in ("sent", "head", "first_frame")},
            "first_delta_s": _seconds(index, client, "first_delta"),
            "end_s": _seconds(index, both, "end"),
            "ttft_ms": (_seconds(index, client, "first_delta") - _seconds(index, client, "sent")) * 1e3,
            "outcome": objects([c.outcome or g.outcome for c, g in zip(client, gateway, strict=True)]),
        },
    )


def _seconds(index: Index, found: list[Moments], name: str) -> np.ndarray:
    times = [getattr(m, name) for m in found]
    return np.array([np.nan if t is None else (t - index.start_ns) / 1e9 for t in times], dtype=np.float64)


def _status(name: str) -> int | None:
    digits = STATUS.search(name)
    return int(digits.group()) if digits else None
