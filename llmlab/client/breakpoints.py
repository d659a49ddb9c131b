"""Where the cache markers of a request go: at most four, on the ends of its stable parts.

The rules are those of Anthropic's documentation of prompt caching: a prefix is written to the cache only at a marked
block, in the order tools, system, messages; a read looks back from each marker over 20 blocks, the marked one
included; a longer time to live comes before a shorter one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from llmlab.api.conversation import Ttl
from llmlab.errors import InvalidParameter

MAX_MARKERS = 4
LOOK_BACK = 20
"""Blocks a read checks for an earlier entry, counted from the marked block, which is the first of them."""

UNMARKABLE = frozenset({"thinking", "redacted_thinking"})

Path = tuple[str, int] | tuple[str, int, int]


@dataclass(frozen=True, slots=True)
class Spot:
    """One block of the prefix. ``position`` counts from 0 over tools, system and messages; ``path`` leads to it."""

    position: int
    path: Path
    block: Mapping[str, Any]

    @property
    def markable(self) -> bool:
        """Whether servers accept a marker here."""
        kind = self.block.get("type", "")
        return kind not in UNMARKABLE and not (kind == "text" and not self.block.get("text"))


@dataclass(frozen=True, slots=True)
class Mark:
    """A marker that was placed, and why there."""

    path: Path
    position: int
    ttl: Ttl
    why: str


@dataclass(frozen=True, slots=True)
class Marked:
    """A request with markers. ``last_position`` is what the next request of the session passes as ``previous``."""

    request: dict[str, Any]
    marks: tuple[Mark, ...]
    last_position: int | None


def spots(request: Mapping[str, Any]) -> Iterator[Spot]:
    """All blocks of the prefix in cache order; a string counts as one text block."""
    paths: list[tuple[Path, Mapping[str, Any]]] = []
    paths += [(("tools", at), tool) for at, tool in enumerate(request.get("tools", ()))]
    paths += [(("system", at), block) for at, block in enumerate(_in_place(request.get("system", ())))]
    for at, message in enumerate(request.get("messages", ())):
        paths += [(("messages", at, inner), block) for inner, block in enumerate(_in_place(message["content"]))]
    return (Spot(position, path, block) for position, (path, block) in enumerate(paths))


def as_blocks(content: str | Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Content in block form, copied; a string becomes one text block, an empty one none."""
    if isinstance(content, str):
        return [{"type": "text", "text": content}] if content else []
    return [dict(block) for block in content]


def _in_place(content: str | Iterable[Mapping[str, Any]]) -> Iterable[Mapping[str, Any]]:
    return as_blocks(content) if isinstance(content, str) else content


def place(
    request: Mapping[str, Any],
    *,
    stable_system: int | None = None,
    previous: int | None = None,
    stable_ttl: Ttl = "5m",
    messages_ttl: Ttl = "5m",
) -> Marked:
    """Mark the last tool, the last stable system block, the last message block and, if need be, one further back.

    ``stable_system`` is the number of system blocks that do not change from turn to turn (all of them when ``None``).
    ``previous`` is the position the session's last request marked in its messages. When so many blocks have come
    after it that a read from the new marker would not see it, it is marked again. Returns a new request.

    Raises ``InvalidParameter`` for a time to live that grows along the prefix.
    """
    if stable_ttl == "5m" and messages_ttl == "1h":
        raise InvalidParameter("the messages' time to live is 1h and the prefix's 5m: longer ones must come first")
    found = list(spots(request))
    marks = [_last(found, "tools", None, stable_ttl), _last(found, "system", stable_system, stable_ttl)]
    last = _last(found, "messages", None, messages_ttl)
    marks += [_further_back(found, previous, last, messages_ttl), last]
    placed = tuple(mark for mark in marks if mark is not None)
    return Marked(_with_markers(request, placed), placed, None if last is None else last.position)


def _last(found: list[Spot], part: str, count: int | None, ttl: Ttl) -> Mark | None:
    """The last block of a part, or of its first ``count`` blocks, that can carry a marker."""
    able = [spot for spot in found if spot.path[0] == part and (count is None or spot.path[1] < count)]
    able = [spot for spot in able if spot.markable]
    if not able:
        return None
    why = {"tools": "last tool", "system": "last stable system block", "messages": "last message block"}[part]
    return Mark(able[-1].path, able[-1].position, ttl, why)


def _further_back(found: list[Spot], previous: int | None, last: Mark | None, ttl: Ttl) -> Mark | None:
    """The former marker again, if it is out of the new one's sight."""
    if previous is None or last is None or last.position - previous < LOOK_BACK:
        return None
    able = [s for s in found[: previous + 1] if s.path[0] == "messages" and s.markable]
    if not able:
        return None
    why = f"the last marker is {last.position - previous} blocks back, a read sees {LOOK_BACK - 1}"
    return Mark(able[-1].path, able[-1].position, ttl, why)


def _with_markers(request: Mapping[str, Any], marks: tuple[Mark, ...]) -> dict[str, Any]:
    copy = dict(request)
    if "tools" in copy:
        copy["tools"] = [dict(tool) for tool in copy["tools"]]
    if "system" in copy:
        copy["system"] = as_blocks(copy["system"])
    copy["messages"] = [{**m, "content": as_blocks(m["content"])} for m in copy.get("messages", ())]
    for mark in marks:
        part, at, *inner = mark.path
        block = copy[part][at]["content"][inner[0]] if inner else copy[part][at]
        block["cache_control"] = _marker(mark.ttl)
    return copy


def _marker(ttl: Ttl) -> dict[str, str]:
    return {"type": "ephemeral"} if ttl == "5m" else {"type": "ephemeral", "ttl": ttl}


def without_markers(request: Mapping[str, Any]) -> dict[str, Any]:
    """A copy without any marker: what the model is to read, whatever is cached of it."""
    copy = _with_markers(request, ())
    for spot in spots(copy):
        spot.block.pop("cache_control", None)  # blocks of the copy are its own
    return copy


def marker_problems(request: Mapping[str, Any]) -> list[str]:
    """What a server would refuse about the markers, as sentences; empty when they are fine."""
    marked = [spot for spot in spots(request) if "cache_control" in spot.block]
    found = [f"{_dotted(spot.path)} cannot carry a marker" for spot in marked if not spot.markable]
    count = len(marked) + ("cache_control" in request)
    if count > MAX_MARKERS:
        found.append(f"{count} markers, and {MAX_MARKERS} are the most")
    ttls = [spot.block["cache_control"].get("ttl", "5m") for spot in marked]
    if ttls != sorted(ttls):
        found.append("a 1h marker comes after a 5m one")
    return found


def _dotted(path: Path) -> str:
    part, at, *inner = path
    return f"{part}.{at}.content.{inner[0]}" if inner else f"{part}.{at}"
