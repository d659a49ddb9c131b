"""Which request a view is about, and how its tokens are written."""

from __future__ import annotations

from llmlab.errors import UnknownRequest
from llmlab.trace.trace import Trace
from llmlab.views.glyphs import visible_bytes


def choose_request(trace: Trace, request_id: str | None = None) -> str:
    """``request_id``, or the one submitted last when it is ``None``.

    Raises ``UnknownRequest`` for an id that is not in the trace, and for a trace without requests.
    """
    known = trace.index.request_ids
    if request_id is None and known:
        return known[-1]
    if request_id not in known:
        raise UnknownRequest(f"request {request_id!r} is not in the trace: it has {', '.join(known) or 'no request'}")
    return request_id


def token_label(trace: Trace, token_id: int) -> str:
    """The token's text with visible whitespace, bytes that are no character as ``<0xF0>``; ``#id`` when the trace does
    not know its bytes."""
    piece = trace.piece(token_id)
    return f"#{token_id}" if piece is None else visible_bytes(piece) or "∅"
