"""K/V transfers in the Chrome trace JSON: asynchronous slices on the request they are about, or on the engine."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from llmlab.trace.index import Index

Track = tuple[int, int]


def transfer_events(index: Index, tracks: dict[str, Track], engine: Track) -> Iterator[dict[str, Any]]:
    """A begin and an end per transfer; ``tracks`` are the (pid, tid) of the requests."""
    for number, transfer in enumerate(index.transfers):
        pid, tid = tracks.get(transfer.request_id, engine)
        args = {
            "step": transfer.step,
            "blocks": len(transfer.blocks),
            "tokens": transfer.num_tokens,
            "bytes": transfer.nbytes,
            "from": transfer.source,
            "to": transfer.target,
            "reason": transfer.reason,
        }
        name = transfer.action.replace("_", " ")
        event = {"pid": pid, "tid": tid, "cat": "transfer", "name": name, "id": f"transfer {number}"}
        yield {**event, "ph": "b", "ts": (transfer.t_ns - index.start_ns) / 1e3, "args": args}
        yield {**event, "ph": "e", "ts": (transfer.end_ns - index.start_ns) / 1e3}
