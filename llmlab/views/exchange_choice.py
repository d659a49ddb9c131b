"""Which exchange a view is about, and how it is named."""

from __future__ import annotations

from llmlab.errors import UnknownRequest
from llmlab.trace.exchange import Exchange
from llmlab.trace.trace import Trace


def choose_exchange(trace: Trace, any_id: str | None = None) -> tuple[int, Exchange]:
    """Place (from 0) and exchange of an id: the gateway's, the client's, or that of an engine request; ``None`` for
    the one that began last.

    Raises ``UnknownRequest`` for an id that is not there, and for a trace without exchanges.
    """
    found = trace.index.exchanges
    if any_id is None and found.all:
        return len(found.all) - 1, found.all[-1]
    chosen = None if any_id is None else found.find(any_id) or found.by_request_id.get(any_id)
    for place, exchange in enumerate(found.all):
        if exchange is chosen:
            return place, exchange
    known = ", ".join(each.id for each in found.all[:8]) or "no exchange"
    more = f" and {len(found.all) - 8} more" if len(found.all) > 8 else ""
    raise UnknownRequest(f"exchange {any_id!r} is not in the trace: it has {known}{more}")


def has_exchanges(trace: Trace) -> bool:
    """Whether anything crossed a wire while the trace was recorded."""
    return bool(trace.index.exchanges.all)


HOW_TO_RECORD = "No exchange is recorded here: serve the lab and send a request, as lab.client().send(...) does."
