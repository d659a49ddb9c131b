"""What a client without a tokenizer knows about the size of a request (article A, section 5.2).

Characters are divided by a constant, which is wrong by up to several times for text unlike English prose; so the
estimate only fills the gap behind the last count that came from a server.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from llmlab.api.sse import to_json
from llmlab.client.breakpoints import as_blocks, spots

CHARS_PER_TOKEN = 4.0
JSON_CHARS_PER_TOKEN = 2.0
TOOL_CHARS_PER_TOKEN = 2.5

OPAQUE = frozenset({"image", "document", "redacted_thinking"})


@dataclass(frozen=True, slots=True)
class Part:
    """One piece of a request. ``rule`` is ``text``, ``json``, ``tool`` or ``not counted``; ``path`` is dotted."""

    path: str
    rule: str
    chars: int
    tokens: int


@dataclass(frozen=True, slots=True)
class Estimate:
    """Estimated tokens by part."""

    parts: tuple[Part, ...]

    @property
    def total(self) -> int:
        """Tokens of all parts that were counted."""
        return sum(part.tokens for part in self.parts)

    @property
    def uncounted(self) -> tuple[str, ...]:
        """Paths of what characters say nothing about: images, documents, redacted thinking."""
        return tuple(part.path for part in self.parts if part.rule == "not counted")

    def by_section(self) -> dict[str, int]:
        """Tokens of tools, system and messages."""
        sums = {"tools": 0, "system": 0, "messages": 0}
        for part in self.parts:
            sums[part.path.split(".", 1)[0]] += part.tokens
        return sums


def estimate_text(text: str) -> int:
    """Tokens of a text: four characters each, or two where the text is a JSON object or array."""
    return _tokens(len(text), JSON_CHARS_PER_TOKEN if is_json(text) else CHARS_PER_TOKEN)


def estimate(request: Mapping[str, Any]) -> Estimate:
    """Tokens of a request body, part by part."""
    return Estimate(tuple(part for spot in spots(request) for part in _parts(_dotted(spot.path), spot.block)))


def estimate_messages(messages: Sequence[Mapping[str, Any]]) -> Estimate:
    """Tokens of some messages alone."""
    return estimate({"messages": messages})


def is_json(text: str) -> bool:
    """Whether a text is a JSON object or array."""
    if text.lstrip()[:1] not in ("{", "["):
        return False
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return False
    return True


def _parts(path: str, block: Mapping[str, Any]) -> Iterator[Part]:
    kind = block.get("type")
    if path.startswith("tools."):
        bare = {key: value for key, value in block.items() if key != "cache_control"}
        yield _part(path, "tool", to_json(bare))
    elif kind in OPAQUE:
        yield Part(path, "not counted", 0, 0)
    elif kind == "tool_use":
        yield _part(path, "json", str(block.get("name", "")) + to_json(block.get("input", {})))
    elif kind == "tool_result":
        for at, inner in enumerate(as_blocks(block.get("content") or "")):
            yield from _parts(f"{path}.content.{at}", inner)
    else:
        text = str(block.get("thinking" if kind == "thinking" else "text", ""))
        yield _part(path, "json" if is_json(text) else "text", text)


def _part(path: str, rule: str, text: str) -> Part:
    rates = {"text": CHARS_PER_TOKEN, "json": JSON_CHARS_PER_TOKEN, "tool": TOOL_CHARS_PER_TOKEN}
    return Part(path, rule, len(text), _tokens(len(text), rates[rule]))


def _tokens(chars: int, rate: float) -> int:
    """Rounded half up, as a client in JavaScript would."""
    return int(chars / rate + 0.5)


def _dotted(path: tuple[Any, ...]) -> str:
    part, at, *inner = path
    return f"{part}.{at}.content.{inner[0]}" if inner else f"{part}.{at}"


@dataclass(frozen=True, slots=True)
class Reconciliation:
    """An estimate beside the count of a server. ``error`` is relative: +0.25 means a quarter too high."""

    estimated: int
    exact: int
    error: float
    chars_per_token: float


def reconcile(estimated: Estimate, exact: int) -> Reconciliation:
    """Compare with ``count_tokens`` or with the prompt's usage. ``exact`` must be at least 1."""
    assert exact >= 1, "a request has at least one token"
    chars = sum(part.chars for part in estimated.parts)
    return Reconciliation(estimated.total, exact, estimated.total / exact - 1, chars / exact)


@dataclass(frozen=True, slots=True)
class Layered:
    """Context size as ``trusted`` tokens from the last usage plus ``added`` estimated ones."""

    trusted: int
    added: int

    @property
    def total(self) -> int:
        """Tokens the next request will hold, about."""
        return self.trusted + self.added


def layered(usage: Mapping[str, Any] | None, request: Mapping[str, Any], answered: int) -> Layered:
    """Trust the last usage for what it covers, estimate only what came after.

    ``usage`` is that of the last reply, in Anthropic's form; ``answered`` the number of ``request``'s messages it
    covers, that reply included. Without usage everything is estimated.
    """
    if not usage:
        return Layered(0, estimate(request).total)
    return Layered(context_tokens(usage), estimate_messages(request["messages"][answered:]).total)


def context_tokens(usage: Mapping[str, Any]) -> int:
    """Prompt and output of a reply: what the next turn starts from. ``input_tokens`` alone leaves out the cache."""
    names = ("input_tokens", "cache_creation_input_tokens", "cache_read_input_tokens", "output_tokens")
    return sum(int(usage.get(name) or 0) for name in names)
