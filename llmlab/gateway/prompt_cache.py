"""What a request may count as read from, and written to, the prompt cache: the rules of Anthropic's breakpoints.

The ledger knows no K/V. It remembers which prefixes were marked, for how long, and turns that into token counts; what
the engine's prefix cache really held limits what may be counted as read.
"""

from __future__ import annotations

from array import array
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from time import monotonic
from types import MappingProxyType

from llmlab.api.conversation import Ttl
from llmlab.api.usage import Usage

LOOKBACK = 20
"""Block positions one marker looks at for an earlier entry, itself included."""
SECONDS = MappingProxyType({"5m": 300.0, "1h": 3600.0})


@dataclass(frozen=True, slots=True)
class Position:
    """A block that can carry a marker: ``tokens`` is the length of the prefix that ends with it."""

    tokens: int
    ttl: Ttl | None = None


@dataclass(slots=True)
class Entry:
    """A remembered prefix. ``expires`` is on the ledger's clock (s)."""

    ttl: Ttl
    expires: float


@dataclass(frozen=True, slots=True)
class CachePlan:
    """What a request found on arrival: ``found`` tokens could be read, the ``marked`` positions may be written.

    ``keys`` are the ledger's keys of the marked positions.
    """

    prompt: int
    found: int
    marked: tuple[Position, ...]
    keys: tuple[bytes, ...]

    def usage(self, engine_cached: int) -> Usage:
        """Counts of the prompt, of which the engine's prefix cache held ``engine_cached`` tokens.

        With A read, B the last one-hour marker past A and C the last marker: B - A are one-hour writes, C - B
        five-minute writes. What was promised but is gone from the engine counts as written again.
        """
        read = min(self.found, engine_cached)
        hour = max((p.tokens for p in self.marked if p.ttl == "1h"), default=0)
        last = max((p.tokens for p in self.marked), default=0)
        b = max(read, hour)
        c = max(b, last)
        return Usage(self.prompt - c, read, c - b, b - read, engine_cached=engine_cached)


class PromptCache:
    """The ledger of marked prefixes; at most ``capacity`` of them, the least recently used forgotten first.

    ``min_tokens``: shorter prefixes are not kept. ``clock`` gives seconds. Used from one thread.
    """

    def __init__(self, min_tokens: int, clock: Callable[[], float] = monotonic, capacity: int = 10_000) -> None:
        self.min_tokens, self.clock, self.capacity = min_tokens, clock, capacity
        self._entries: OrderedDict[bytes, Entry] = OrderedDict()

    def __len__(self) -> int:
        return len(self._entries)

    def look_up(self, salt: str, ids: Sequence[int], positions: Sequence[Position]) -> CachePlan:
        """What can be read now. Entries that are hit live on for their whole time to live again."""
        marked = [i for i, position in enumerate(positions) if position.ttl and position.tokens >= self.min_tokens]
        seen = {i for mark in marked for i in range(max(0, mark - LOOKBACK + 1), mark + 1)}
        keys = _prefix_keys(salt, ids, {positions[i].tokens for i in seen})
        hits = [hit for mark in marked if (hit := self._hit(keys, positions, mark)) is not None]
        return CachePlan(
            len(ids),
            max(hits, default=0),
            tuple(positions[i] for i in marked),
            tuple(keys[positions[i].tokens] for i in marked),
        )

    def begin(self, plan: CachePlan) -> None:
        """The response has begun: from now on the marked prefixes can be read."""
        for position, key in zip(plan.marked, plan.keys, strict=True):
            entry = self._live(key)
            longest = max((position.ttl, entry.ttl if entry else position.ttl), key=SECONDS.__getitem__)
            self._entries[key] = Entry(longest, self.clock() + SECONDS[longest])
            self._entries.move_to_end(key)
        while len(self._entries) > self.capacity:
            self._entries.popitem(last=False)

    def _hit(self, keys: dict[int, bytes], positions: Sequence[Position], mark: int) -> int | None:
        for i in range(mark, max(-1, mark - LOOKBACK), -1):
            key = keys[positions[i].tokens]
            entry = self._live(key)
            if entry is not None:
                entry.expires = self.clock() + SECONDS[entry.ttl]
                self._entries.move_to_end(key)
                return positions[i].tokens
        return None

    def _live(self, key: bytes) -> Entry | None:
        entry = self._entries.get(key)
        if entry is not None and entry.expires <= self.clock():
            del self._entries[key]
            return None
        return entry


def _prefix_keys(salt: str, ids: Sequence[int], lengths: set[int]) -> dict[int, bytes]:
    """Keys of the prefixes of these lengths, hashed in one pass over ``ids``."""
    digest = blake2b(salt.encode("utf-8", "surrogatepass"), digest_size=16, person=b"llmlab-prompt")
    keys, done = {}, 0
    for length in sorted(lengths):
        digest.update(array("q", ids[done:length]).tobytes())
        keys[length], done = digest.copy().digest() + length.to_bytes(8, "little"), length
    return keys
