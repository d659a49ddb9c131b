"""The order of the tools, and proof that a prefix has stayed the same (article A, section 2.7)."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from llmlab.api.sse import to_json
from llmlab.client.breakpoints import spots, without_markers
from llmlab.errors import InvalidParameter


def order_tools(tools: Iterable[Mapping[str, Any]], builtin: Sequence[str] = ()) -> list[dict[str, Any]]:
    """Built-in tools first, in the order of ``builtin``; the others after them, by name.

    Adding an external tool then leaves the prefix up to the last built-in one as it was. Raises ``InvalidParameter``
    for two tools of one name.
    """
    named: dict[str, dict[str, Any]] = {}
    for tool in tools:
        if tool["name"] in named:
            raise InvalidParameter(f"two tools are called {tool['name']!r}; a model could not tell them apart")
        named[tool["name"]] = dict(tool)
    first = [name for name in dict.fromkeys(builtin) if name in named]
    return [named[name] for name in (*first, *sorted(set(named) - set(first)))]


@dataclass(frozen=True, slots=True)
class PrefixDigest:
    """One digest per block, in cache order: two requests share a prefix as far as these agree.

    ``model`` and ``settings`` (tool choice, thinking, effort, speed) take part in the cache key without being blocks.
    """

    model: str
    tools: tuple[str, ...]
    system: tuple[str, ...]
    messages: tuple[str, ...]
    settings: tuple[tuple[str, str], ...]

    @property
    def blocks(self) -> tuple[str, ...]:
        """All blocks."""
        return self.tools + self.system + self.messages


def prefix_digest(request: Mapping[str, Any]) -> PrefixDigest:
    """Digests of the request's bytes, block by block. Cache markers do not count; the order of JSON keys does."""
    plain = without_markers(request)
    parts: dict[str, list[str]] = {"tools": [], "system": [], "messages": []}
    for spot in spots(plain):
        role = plain["messages"][spot.path[1]]["role"] if spot.path[0] == "messages" else ""
        parts[spot.path[0]].append(_digest([role, spot.block]))
    kept = ("tool_choice", "thinking", "output_config", "speed")
    settings = tuple((name, _digest(plain[name])) for name in kept if name in plain)
    return PrefixDigest(plain["model"], *(tuple(parts[name]) for name in parts), settings)


def _digest(value: Any) -> str:
    return hashlib.sha256(to_json(value).encode()).hexdigest()[:16]


@dataclass(frozen=True, slots=True)
class Change:
    """How a request's prefix differs from an earlier one's.

    ``kind`` is ``none`` (equal, or only longer), ``model_changed``, ``tools_changed``, ``system_changed`` or
    ``messages_changed``: the names of the public API's cache diagnostics. ``shared`` blocks at the front are still
    usable, ``lost`` blocks of the earlier request are not.
    """

    kind: str
    shared: int
    lost: int
    reason: str


def what_changed(before: Mapping[str, Any], after: Mapping[str, Any]) -> Change:
    """The first difference between the prefixes of two requests of one session."""
    old, new = prefix_digest(before), prefix_digest(after)
    total = len(old.blocks)
    if old.model != new.model:
        return Change("model_changed", 0, total, "another model has no use for these keys and values")
    shared, kind, reason = _first_difference(old, new)
    return Change(kind, shared, total - shared if kind != "none" else 0, reason)


def _first_difference(old: PrefixDigest, new: PrefixDigest) -> tuple[int, str, str]:
    offset = 0
    for part in ("tools", "system"):
        mine, theirs = getattr(old, part), getattr(new, part)
        same = _common(mine, theirs)
        if mine != theirs:
            return offset + same, f"{part}_changed", f"{part} differ from block {same} on"
        offset += len(mine)
    changed = _changed_settings(old, new)
    if "speed" in changed:
        return len(old.tools), "system_changed", "speed is part of the key of everything after the tools"
    if changed:
        return offset, "messages_changed", f"{', '.join(changed)} changed, which the messages' key includes"
    same = _common(old.messages, new.messages)
    if same < len(old.messages):
        return offset + same, "messages_changed", f"the conversation differs from block {same} on"
    return offset + same, "none", "the earlier request is a prefix of this one"


def _common(one: Sequence[str], other: Sequence[str]) -> int:
    differing = (at for at, (a, b) in enumerate(zip(one, other, strict=False)) if a != b)
    return next(differing, min(len(one), len(other)))


def _changed_settings(old: PrefixDigest, new: PrefixDigest) -> list[str]:
    mine, theirs = dict(old.settings), dict(new.settings)
    names = dict.fromkeys([*mine, *theirs])
    return [name for name in names if mine.get(name) != theirs.get(name)]
