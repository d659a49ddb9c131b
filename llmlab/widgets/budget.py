"""How much the panels of a page may send: a token bucket over messages and bytes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from time import monotonic

MESSAGES_PER_S = 20
BYTES_PER_S = 200_000
LARGEST_DEBT_S = 2.0  # a message larger than what is left goes out when the bucket is full, and is paid off after


@dataclass(slots=True)
class Budget:
    """Holds at most one second's worth of messages and bytes.

    A jupyter server drops messages above 1,000 a second and shows nothing of it, so the panels stay far below.
    """

    messages_per_s: float = MESSAGES_PER_S
    bytes_per_s: float = BYTES_PER_S
    clock: Callable[[], float] = monotonic
    _messages: float = field(init=False)
    _bytes: float = field(init=False)
    _at: float = field(init=False)

    def __post_init__(self) -> None:
        self._messages, self._bytes, self._at = self.messages_per_s, self.bytes_per_s, self.clock()

    def allows(self, num_bytes: int) -> bool:
        """Whether a message of this size may go out now."""
        self._refill()
        enough = min(num_bytes, self.bytes_per_s)
        return self._messages >= 1 and self._bytes >= enough

    def spend(self, num_bytes: int) -> None:
        """A message of this size went out."""
        self._messages -= 1
        self._bytes = max(self._bytes - num_bytes, -LARGEST_DEBT_S * self.bytes_per_s)

    def _refill(self) -> None:
        now = self.clock()
        passed, self._at = max(now - self._at, 0), now
        self._messages = min(self._messages + passed * self.messages_per_s, self.messages_per_s)
        self._bytes = min(self._bytes + passed * self.bytes_per_s, self.bytes_per_s)
