"""Every field of a request: what it is, what it does, and what happens without it (article A, sections 2 and 3.7)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from llmlab.api.sse import to_json
from llmlab.client.breakpoints import spots
from llmlab.client.estimate import estimate, estimate_text
from llmlab.client.field_data import FIELDS
from llmlab.errors import InvalidParameter

Evidence = Literal["public documentation", "measured here", "article only, unverifiable", "contradicted"]


@dataclass(frozen=True, slots=True)
class Field:
    """A field of the Messages API. ``where`` is ``body``, ``header`` or the rule it is about.

    ``kind``: ``content`` is what the model reads; ``policy`` is how the request is handled (article A, section 2.13).
    ``evidence`` says what stands behind the description. ``example`` is a value as JSON, or a header's text.
    """

    name: str
    kind: Literal["content", "policy"]
    evidence: Evidence
    what: str
    does: str
    if_left_out: str
    example: str
    where: str = "body"


def fields() -> tuple[Field, ...]:
    """All fields, in the order in which a body is sent, headers last."""
    return tuple(Field(**row) for row in FIELDS)


def field(name: str) -> Field:
    """The field of this name. Raises ``InvalidParameter`` for one that is not described."""
    found = {each.name: each for each in fields()}
    if name not in found:
        raise InvalidParameter(f"no field is called {name!r}; there are: {', '.join(found)}")
    return found[name]


@dataclass(frozen=True, slots=True)
class FieldUse:
    """One field of a request. ``bytes`` as sent, key included; ``share`` of the whole body; ``tokens`` estimated.

    ``tokens`` is 0 for policy: the model never reads it. ``why`` is what the field does, or that it is unknown.
    """

    name: str
    where: str
    kind: str
    bytes: int
    share: float
    tokens: int
    evidence: str
    why: str


def explain(request: Mapping[str, Any], headers: Mapping[str, str] | None = None) -> list[FieldUse]:
    """One row per field that is there, in the order sent, cache markers in a row of their own, headers last.

    The bytes of the body's rows, with the markers counted inside their parts, add up to those of the body: a byte per
    field for its comma or brace, and one for the brace that opens.
    """
    total = len(to_json(request).encode())
    tokens = estimate(request).by_section()
    rows = [_row(name, "body", _size(name, value), total, tokens.get(name, 0)) for name, value in request.items()]
    markers = [spot.block["cache_control"] for spot in spots(request) if "cache_control" in spot.block]
    if markers and "cache_control" not in request:
        size = sum(len(to_json({"cache_control": marker}).encode()) - 1 for marker in markers)
        rows.append(_row("cache_control", "inside tools, system and messages", size, total, 0))
    sent = [_row(name, "header", len(f"{name}: {value}\r\n".encode()), 0, 0) for name, value in (headers or {}).items()]
    return rows + sent


def _size(name: str, value: Any) -> int:
    """Bytes of ``"name":value`` and the comma or brace after it."""
    return len(to_json({name: value}).encode()) - 1


def _row(name: str, where: str, size: int, total: int, tokens: int) -> FieldUse:
    known = {each.name: each for each in fields()}.get(name.lower() if where == "header" else name)
    share = size / total if total else 0.0
    if known is None:
        return FieldUse(name, where, "policy", size, share, tokens, "unknown", "not described: passed on as it is")
    return FieldUse(name, where, known.kind, size, share, tokens, known.evidence, known.does)


def prompt_share(request: Mapping[str, Any], prompt: str) -> float:
    """How much of a request, in estimated tokens, is what the person typed."""
    total = estimate(request).total
    return estimate_text(prompt) / total if total else 0.0
