"""What of a request's wait was work in the prefill process: its prompt computed there, its K/V on the way."""

from __future__ import annotations

from llmlab.trace.index import Index

PREFILL_PROCESS, TRANSFER = "prefill process", "K/V transfer"
"""Names of the spans: the first is recorded as one, the second is a ``send`` among the transfers."""


def elsewhere(index: Index) -> dict[str, list[tuple[str, int, int]]]:
    """Request id -> ``(name, begin, end)`` in nanoseconds, in order and without overlap."""
    found = [(s.t_ns, s.end_ns, s.request_id, PREFILL_PROCESS) for s in index.spans if s.name == PREFILL_PROCESS]
    found += [(t.t_ns, t.end_ns, t.request_id, TRANSFER) for t in index.transfers if t.action == "send"]
    parts: dict[str, list[tuple[str, int, int]]] = {}
    for begin, end, request_id, name in sorted(found):
        parts.setdefault(request_id, []).append((name, begin, end))
    return parts


def divide(begin: int, end: int, parts: list[tuple[str, int, int]], rest: str) -> list[tuple[str, int, int]]:
    """Cut ``begin .. end`` at the parts that lie in it; what none of them covers is called ``rest``."""
    pieces, cursor = [], begin
    for name, start, stop in parts:
        low, high = max(start, cursor), min(stop, end)
        if low < high:
            pieces += [(rest, cursor, low), (name, low, high)]
            cursor = high
    return [*pieces, (rest, cursor, end)]
