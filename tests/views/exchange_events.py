"""Exchanges written by hand, for what a well-behaved lab does not do: long streams, splits, cuts, faults, retries."""

from __future__ import annotations

import json

from llmlab.trace import Trace
from llmlab.trace.events import WireEvent, WireLink

MS = 1_000_000


def request(
    body: str, *, side: str = "client", wire_id: str = "c", size: int | None = None, t_ns: int = 0
) -> WireEvent:
    """A request with a one-line head, as either side records it."""
    direction = "sent" if side == "client" else "received"
    length = len(body.encode()) if size is None else size
    return WireEvent(t_ns, wire_id, side, "request", direction, length, "POST /v1/messages", f"host: h\n\n{body}")


def hello(texts: list[str]) -> list[dict]:
    """The events of a message of one text block."""
    deltas = [
        {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": text}} for text in texts
    ]
    return [
        {"type": "message_start", "message": {"id": "m", "usage": {"input_tokens": 3}}},
        {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
        *deltas,
        {"type": "content_block_stop", "index": 0},
        {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {"output_tokens": len(texts)}},
        {"type": "message_stop"},
    ]


def stream(events: list[dict], *, split: int = 0, gateway: bool = True, more: tuple[WireEvent, ...] = ()) -> Trace:
    """An exchange ``c`` (``g`` to the gateway) whose frames are ``events``; pieces of ``split`` bytes when given."""
    found: list = [request("{}"), WireEvent(MS, "c", "client", "response", "received", 0, "200", "a: b")]
    if gateway:
        found += [request("{}", side="gateway", wire_id="g", t_ns=10), WireLink(10, "g", "client", "c")]
    for number, event in enumerate(events, 2):
        data, at = json.dumps(event), number * MS
        whole = f"event: {event['type']}\ndata: {data}\n\n"
        if gateway:
            found.append(WireEvent(at, "g", "gateway", "frame", "sent", len(whole), event["type"], data))
        parts = [whole[i : i + split] for i in range(0, len(whole), split)] if split else [whole]
        for i, part in enumerate(parts, 1):
            found.append(WireEvent(at + 100 * i, "c", "client", "bytes", "received", len(part), "", part))
        last = at + 100 * len(parts)
        found.append(WireEvent(last, "c", "client", "frame", "received", len(data), event["type"], data))
    return Trace([*found, *more])
