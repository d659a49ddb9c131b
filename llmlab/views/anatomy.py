"""What a request's body consists of: every field, its bytes, what it is for, and where the cache markers are."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import pandas as pd

from llmlab.api.sse import to_json
from llmlab.errors import InvalidParameter
from llmlab.trace.exchange import CLIENT, GATEWAY, Exchange
from llmlab.trace.requests import cached_tokens
from llmlab.trace.trace import Trace
from llmlab.views.anatomy_scene import Heading, anatomy_scene, windowed
from llmlab.views.body_rows import MARKER, NOT_KNOWN, Body, BodyRow, read_body, utf8
from llmlab.views.exchange_choice import HOW_TO_RECORD, choose_exchange, has_exchanges
from llmlab.views.glyphs import visible
from llmlab.views.missing import missing_view
from llmlab.views.phrases import count as counted
from llmlab.views.phrases import some
from llmlab.views.view import View

COLUMNS = ("path", "part", "depth", "bytes", "share", "role", "tokens", "breakpoint", "is_leaf", "value", "why")


@dataclass(frozen=True, slots=True)
class Source:
    """Where a body comes from. ``prompt_tokens`` and ``cached_tokens`` are the engine's, ``None`` when it says none."""

    title: str
    name: str
    where: str
    text: str
    size: int
    wire_id: str = ""
    request_id: str = ""
    prompt_tokens: int | None = None
    cached_tokens: int | None = None


def anatomy(
    trace: Trace | None,
    wire_id: str | None = None,
    *,
    body: Mapping[str, Any] | None = None,
    count: Callable[[str], int] | None = None,
    width: float = 960,
) -> View:
    """The JSON of a request as a tree of its parts, with the bytes of each as it was sent.

    ``wire_id``: the gateway's or the client's id of an exchange, or an engine request it was served by; the exchange
    that began last when ``None``. ``body``: a request that was not sent, in place of a recorded one (then ``trace`` may
    be ``None``). ``count`` says how many tokens a text has; without it the only count of tokens is the engine's, of the
    whole prompt. Leaves and rows of syntax add up to the body. Raises ``UnknownRequest``, and ``InvalidParameter`` for
    a body that is no JSON object.
    """
    if body is None and trace is None:
        raise InvalidParameter("anatomy() needs a trace, or the body of a request: anatomy(None, body={...})")
    if body is None and wire_id is None and not has_exchanges(trace):
        return missing_view("anatomy", "Anatomy of a request", HOW_TO_RECORD, COLUMNS, width)
    source = _recorded(trace, wire_id) if body is None else _unsent(body)
    parts = read_body(source.text, source.size, count)
    facts = _facts(source, parts, count is not None)
    return View(
        name="anatomy",
        title=source.title,
        alt=f"{counted(parts.size, 'byte')} of a request's body: {_roles(parts)}.",
        text="\n".join(facts),
        scene=anatomy_scene(parts, _heading(source, parts, count is not None), width),
        frame=_table(parts),
        notes=_notes(source, parts),
    )


def _unsent(body: Mapping[str, Any]) -> Source:
    if not isinstance(body, Mapping):
        raise InvalidParameter(f"body is a {type(body).__name__}: give the request's JSON object as a dict")
    try:
        text = to_json(dict(body))
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidParameter(f"body cannot be written as JSON: {error}") from None
    return Source("Anatomy of a request that was not sent", "request", "not sent", text, utf8(text))


def _recorded(trace: Trace, wire_id: str | None) -> Source:
    place, exchange = choose_exchange(trace, wire_id)
    number, total = place + 1, len(trace.index.exchanges.all)
    name, text, size, side = _body_of(exchange)
    request_id = exchange.request_ids[0] if exchange.request_ids else ""
    submitted = trace.index.submitted.get(request_id)
    return Source(
        f"Anatomy of the request of exchange {number} of {total}",
        name,
        f"exchange {number} of {total}, recorded by the {side}",
        text,
        size,
        exchange.id or "",
        request_id,
        len(submitted.prompt_token_ids) if submitted else None,
        cached_tokens(trace.index).get(request_id) if request_id in trace.index.finished else None,
    )


def _body_of(exchange: Exchange) -> tuple[str, str, int, str]:
    """Name, recorded text, size and side of the last request; of two records the one that holds more."""
    found = []
    for side in (CLIENT, GATEWAY):
        events = [event for event in exchange.of(side) if event.kind == "request"]
        if events:
            text = (events[-1].text or "").partition("\n\n")[2] or _headless(events[-1].text or "")
            found.append((events[-1].name, text, events[-1].size, side))
    if not found:
        return "the request was not recorded", "", 0, "other side"
    return max(found, key=lambda each: (utf8(each[1]) == each[2], len(each[1])))


def _headless(text: str) -> str:
    """A record that has no head is all body."""
    return text if text.lstrip()[:1] in ("{", "[") else ""


# -- text ----------------------------------------------------------------------------------------------------


def _roles(parts: Body) -> str:
    return ", ".join(f"{role} {size:,}" for role, size in parts.by_role().items())


def _facts(source: Source, parts: Body, has_counts: bool) -> list[str]:
    facts = [f"{visible(source.name, limit=120)} ({source.where}): a body of {counted(parts.size, 'byte')}"]
    facts.append(f"bytes by role: {_roles(parts)}")
    fields = [f"{visible(row.label, limit=40)} {row.bytes:,}" for row in parts.rows if row.depth == 0]
    facts.append(f"bytes by field: {some(fields, 24)}")
    if parts.is_cut:
        facts.append(f"cut in the record: {counted(parts.by_role().get(NOT_KNOWN, 0), 'byte')}")
    markers = [f"{_marked(row)} ({visible(row.breakpoint, limit=8)})" for row in parts.breakpoints]
    facts.append(f"cache breakpoints: {some(markers, 8) if markers else 'none'}")
    return [*facts, *_token_facts(source, parts, has_counts)]


def _marked(row: BodyRow) -> str:
    """What a cache marker is on."""
    return "the whole request" if row.path == MARKER else row.path.removesuffix(f".{MARKER}")


def _token_facts(source: Source, parts: Body, has_counts: bool) -> list[str]:
    facts = []
    inside = sum(row.tokens for row in parts.leaves if row.tokens is not None)
    if has_counts:
        facts.append(f"counted in the parts: {counted(inside, 'token')}")
    if source.prompt_tokens is None:
        return [*facts, "tokens of the prompt: no engine recorded this request"]
    cached = "" if source.cached_tokens is None else f", {source.cached_tokens:,} of them from the prefix cache"
    facts.append(f"the engine's prompt: {counted(source.prompt_tokens, 'token')}{cached}, chat template included")
    return facts


def _heading(source: Source, parts: Body, has_counts: bool) -> Heading:
    keys = {"wire": source.wire_id, "request": source.request_id}
    return Heading(
        source.name,
        source.where,
        "  ·  ".join([f"body {counted(parts.size, 'byte')}", *_token_facts(source, parts, has_counts)]),
        {name: value for name, value in keys.items() if value},
        has_counts,
    )


def _notes(source: Source, parts: Body) -> tuple[str, ...]:
    notes = []
    if not source.size:
        notes.append("This request has no body.")
    elif not source.text:
        notes.append("The record lacks this request's body: use the lab's client, or serve with recording on.")
    if parts.is_cut and source.text:
        left = parts.by_role().get(NOT_KNOWN, 0)
        notes.append(f"{left:,} of {parts.size:,} bytes are cut in the record, so what they hold is not known.")
    elif parts.sent != parts.size and source.text:
        notes.append(f"The record has {parts.size:,} bytes, {parts.sent:,} were sent: it was changed, as for a key.")
    if any(not isinstance(item, int) for item in windowed(parts.rows)) and len(windowed(parts.rows)) < len(parts.rows):
        notes.append("Rows in the middle of long lists are drawn as one; the table has all of them.")
    return tuple(notes)


def _table(parts: Body) -> pd.DataFrame:
    """A row per part, none left out; ``bytes`` of the rows with ``is_leaf`` add up to the body."""
    rows = [
        (
            row.path,
            row.label,
            row.depth,
            row.bytes,
            row.bytes / parts.size if parts.size else 0.0,
            row.role,
            pd.NA if row.tokens is None else row.tokens,
            row.breakpoint or None,
            row.is_leaf,
            row.value,
            row.why,
        )
        for row in parts.rows
    ]
    frame = pd.DataFrame(rows, columns=list(COLUMNS))
    return frame.astype({"tokens": "Int64"})
