"""Do the records of the two sides of each HTTP exchange agree, with each other and with the engine's?

What an exchange lost in a gap, injected faults and proxies excuse it from the checks they could disturb.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from llmlab.trace.events import Gap, Stage, WireEvent, WireLink
from llmlab.trace.exchange import CLIENT, GATEWAY, Exchange
from llmlab.trace.index import Index
from llmlab.trace.wire import FINAL, Moments, moments

GRACE_NS = 1_000_000_000
"""How long a gateway may take to record the end of an exchange that is over for its client."""

INCOMPLETE = ("more characters]", "characters cut)", "[key]")
"""What stands in a recorded text where something was cut out or a credential removed."""

FRAGMENTS = ("text", "thinking", "partial_json")
"""Where the deltas of an Anthropic stream have their text."""


def wire_violations(index: Index) -> Iterator[str]:
    """All contradictions about the wire, one sentence each."""
    for stage in index.stages:
        if stage.end_ns < stage.t_ns:
            yield f"exchange {stage.wire_id}: stage {stage.name!r} ends before it begins"
    broken = _broken_by_gaps(index)
    last_ns = max((event.t_ns for event in index.events), default=0)
    for exchange in index.exchanges.all:
        if id(exchange) not in broken:
            found = _Sides(index, exchange, moments(exchange, CLIENT), moments(exchange, GATEWAY), last_ns)
            yield from (f"exchange {exchange.id}: {text}" for text in found.violations())


def _broken_by_gaps(index: Index) -> set[int]:
    """Identities of the exchanges of which something may have been lost: all that began before the last gap."""
    gaps = [i for i, event in enumerate(index.events) if isinstance(event, Gap)]
    if not gaps:
        return set()
    whole: set[int] = set()
    early: set[int] = set()
    for i, event in enumerate(index.events):
        if isinstance(event, (WireEvent, Stage)):
            owner = index.exchanges.owner(event)
        elif isinstance(event, WireLink):
            owner = index.exchanges.by_wire_id[event.wire_id]
        else:
            continue
        if i < gaps[-1]:
            early.add(id(owner))
        elif isinstance(event, WireEvent) and event.kind == "request":
            whole.add(id(owner))
    return {id(exchange) for exchange in index.exchanges.all} - whole | early


class _Sides:
    """One exchange as both sides saw it."""

    def __init__(self, index: Index, exchange: Exchange, client: Moments, gateway: Moments, last_ns: int) -> None:
        self.index, self.exchange, self.client, self.gateway = index, exchange, client, gateway
        self.last_ns = last_ns
        self.is_disturbed = any(e.kind == "fault" or e.side not in (CLIENT, GATEWAY) for e in exchange.events)

    def violations(self) -> Iterator[str]:
        for side in (CLIENT, GATEWAY):
            yield from self._order(side)
        yield from self._links()
        yield from self._end()
        if not self.is_disturbed:
            yield from self._bytes()
            if self.client.outcome == self.gateway.outcome == "complete":
                yield from self._same_answer()

    def _order(self, side: str) -> Iterator[str]:
        """Nothing is sent or received after the end, unless the client asks again."""
        ended = None
        for event in self.exchange.of(side):
            if event.kind == "request":
                ended = None
            elif event.kind in FINAL:
                ended = event.kind if event.kind == "end" else ended
            elif ended and event.kind in ("response", "bytes", "frame", "delta"):
                yield f"the {side} recorded {event.kind} {event.name!r} after its end"

    def _links(self) -> Iterator[str]:
        """An engine request it names was submitted, unless the gateway refused in the end."""
        if self.index.info is None or self.gateway.outcome != "complete":
            return
        for request_id in self.exchange.request_ids:
            if request_id not in self.index.code:
                yield f"it is linked to request {request_id}, which is not in the trace"

    def _end(self) -> Iterator[str]:
        is_over = self.client.final is not None and self.client.end + GRACE_NS < self.last_ns
        if is_over and self.gateway.sent is not None and self.gateway.final is None:
            yield "it is over for the client, but the gateway recorded no end"

    def _bytes(self) -> Iterator[str]:
        """Frames are part of what was sent, and all that was sent to the end was received."""
        sizes = self.gateway.response_bytes
        framed = sizes.get("response", 0) + sizes.get("frame", 0)
        ends = [e.size for e in self.exchange.of(GATEWAY) if e.kind == "end"]
        sent = max([sizes.get("response", 0) + sizes["bytes"] if "bytes" in sizes else 0, *ends])
        if sent and self.gateway.outcome == "complete" and framed > sent:
            yield f"its frames have {framed} bytes, more than the {sent} that the gateway sent"
        if self.client.outcome == "complete" and "bytes" in self.client.response_bytes:
            received = self.client.num_response_bytes
            if framed > received:
                yield f"the gateway sent {framed} bytes, the client received {received}"

    def _same_answer(self) -> Iterator[str]:
        sent = [e.text for e in self.exchange.of(GATEWAY) if e.kind == "frame" and e.name != "comment"]
        received = _last_attempt(self.exchange.of(CLIENT), "frame")
        if not all(map(_is_whole, sent)) or not sent or not received:
            return
        if all(map(_is_whole, received)) and len(sent) != len(received):
            yield f"the gateway sent {len(sent)} frames, the client read {len(received)}"
        deltas = _last_attempt(self.exchange.of(CLIENT), "delta")
        expected = "".join(map(_fragment, sent))
        if deltas and all(map(_is_whole, deltas)) and expected and expected != "".join(deltas):
            yield "the text of the client's deltas is not the text of the gateway's frames"


def _last_attempt(events: list[WireEvent], kind: str) -> list[str | None]:
    """Texts of the events of a kind since the last request."""
    begin = max((i for i, e in enumerate(events) if e.kind == "request"), default=0)
    return [event.text for event in events[begin:] if event.kind == kind]


def _is_whole(text: str | None) -> bool:
    return text is not None and not any(mark in text for mark in INCOMPLETE)


def _fragment(data: str) -> str:
    """The text that the data of one frame adds to the answer."""
    try:
        parsed: Any = json.loads(data)
    except (ValueError, RecursionError):
        return ""
    delta = parsed.get("delta") if isinstance(parsed, dict) else None
    found = [delta.get(name) for name in FRAGMENTS] if isinstance(delta, dict) else []
    return "".join(text for text in found if isinstance(text, str))
