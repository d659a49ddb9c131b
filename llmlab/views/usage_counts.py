"""The tokens of one request, as the engine counted them, and as the wire said."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from llmlab.api.usage import Usage
from llmlab.trace.exchange import CLIENT, GATEWAY, Exchange
from llmlab.trace.index import Index
from llmlab.trace.requests import cached_tokens, num_prompt

MESSAGES, CHAT = "Messages", "Chat Completions"
MOST = 10**12  # a larger count is no count of tokens


@dataclass(frozen=True, slots=True)
class Counts:
    """What the engine did for one request. ``cached + computed + rest = prompt``, all in tokens.

    ``rest`` are prompt tokens that the request neither computed nor had from the cache at its first admission;
    ``rest_name`` says why. ``total`` is what its rows computed in all steps, the sum of ``computed``, ``fed_back``,
    ``again`` and ``rejected``: ``fed_back`` are output tokens (their K/V is computed to go on), ``again`` those
    computed once more after a preemption, ``rejected`` drafts that are not in the output; ``accepted`` ones are.
    """

    prompt: int
    cached: int
    computed: int
    rest: int
    rest_name: str
    output: int
    accepted: int
    rejected: int
    fed_back: int
    again: int
    total: int


def counts_of(index: Index, request_id: str) -> Counts:
    """The engine's counts, from the rows of its steps and the tokens it chose."""
    rows = index.rows
    mine = rows.request == index.code[request_id]
    prompt, cached = num_prompt(index, request_id), cached_tokens(index)[request_id]
    first = rows.start[mine] + rows.recomputed[mine]
    last = rows.start[mine] + rows.num_tokens[mine] - rows.num_rejected[mine]
    new = int((last - first).sum())
    computed = int((np.minimum(last, prompt) - np.minimum(first, prompt)).sum())
    tokens = [token for token in index.tokens if token.request_id == request_id]
    return Counts(
        prompt=prompt,
        cached=cached,
        computed=computed,
        rest=prompt - cached - computed,
        rest_name=_rest_name(index, request_id),
        output=len(tokens),
        accepted=sum(token.source == "accepted" for token in tokens),
        rejected=int(rows.num_rejected[mine].sum()),
        fed_back=new - computed,
        again=int(rows.recomputed[mine].sum()),
        total=int(rows.num_tokens[mine].sum()),
    )


def _rest_name(index: Index, request_id: str) -> str:
    submitted = index.submitted.get(request_id)
    if submitted is not None and submitted.parent_id:
        return "shared with the first sample"
    return "cached when let in again" if request_id in index.finished else "not computed yet"


# -- the wire ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Said:
    """Usage that crossed the wire in one protocol's words; ``usage`` is ``None`` when its numbers are none."""

    protocol: str
    usage: Usage | None


def said_on_the_wire(exchange: Exchange) -> Said | None:
    """The last word of an exchange about its tokens: the client's record of it, else the gateway's."""
    for side in (CLIENT, GATEWAY):
        found: dict[str, Any] = {}
        for usage in _usages(exchange, side):
            found |= usage
        if found:
            return _read(found)
    return None


def _usages(exchange: Exchange, side: str) -> Iterator[Mapping[str, Any]]:
    """Usage objects in order of time. A later one of a stream overwrites the fields it has."""
    for event in exchange.of(side):
        if event.kind not in ("frame", "response") or '"usage"' not in (event.text or ""):
            continue
        body = _object(event.text if event.kind == "frame" else event.text.partition("\n\n")[2])
        message = body.get("message")
        for holder in (message if isinstance(message, dict) else {}, body):
            if isinstance(holder.get("usage"), dict):
                yield holder["usage"]


def _object(text: str) -> dict[str, Any]:
    """A JSON object, empty for what is none, such as a body that was cut in the record."""
    try:
        body = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return body if isinstance(body, dict) else {}


def _read(usage: Mapping[str, Any]) -> Said:
    protocol = CHAT if "prompt_tokens" in usage else MESSAGES
    try:
        return Said(protocol, _chat(usage) if protocol == CHAT else _messages(usage))
    except ValueError:
        return Said(protocol, None)


def _messages(usage: Mapping[str, Any]) -> Usage:
    written = _count(usage, "cache_creation_input_tokens", 0)
    hour = min(_count(_details(usage, "cache_creation"), "ephemeral_1h_input_tokens", 0), written)
    return Usage(
        uncached=_count(usage, "input_tokens"),
        cache_read=_count(usage, "cache_read_input_tokens", 0),
        cache_write_5m=written - hour,
        cache_write_1h=hour,
        output=_count(usage, "output_tokens"),
        thinking=_count(_details(usage, "output_tokens_details"), "thinking_tokens", 0),
    )


def _chat(usage: Mapping[str, Any]) -> Usage:
    read = _count(_details(usage, "prompt_tokens_details"), "cached_tokens", 0)
    return Usage(
        uncached=_count(usage, "prompt_tokens") - read,
        cache_read=read,
        output=_count(usage, "completion_tokens"),
        thinking=_count(_details(usage, "completion_tokens_details"), "reasoning_tokens", 0),
    )


def _details(usage: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    details = usage.get(name)
    return details if isinstance(details, dict) else {}


def _count(fields: Mapping[str, Any], name: str, default: int | None = None) -> int:
    """Raises ``ValueError`` for what is no count; ``None`` is as good as absent."""
    value = fields.get(name)
    value = default if value is None else value
    if type(value) is not int or not 0 <= value <= MOST:
        raise ValueError(name)
    return value
