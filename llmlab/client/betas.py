"""Beta switches of one session: once sent, always sent (article A, section 2.11).

The set of switches takes part in the key of the server's prompt cache, so taking one back in mid-session would throw
away everything that is cached.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from llmlab.errors import InvalidParameter

NAME = re.compile(r"[a-z0-9][a-z0-9.-]{0,99}")


@dataclass(frozen=True, slots=True)
class Held:
    """A switch that was no longer asked for and was sent all the same."""

    name: str
    request: int
    since: int

    @property
    def reason(self) -> str:
        """Why, as a sentence."""
        return f"{self.name} was sent with request {self.since}; dropping it would change the cache key"


class BetaLatch:
    """Remembers every switch it ever let through, in the order of their first use. One latch per session."""

    def __init__(self) -> None:
        self._since: dict[str, int] = {}
        self._requests = 0
        self.held: list[Held] = []

    @property
    def names(self) -> tuple[str, ...]:
        """Switches that every further request will carry."""
        return tuple(self._since)

    def header(self, wanted: Iterable[str] = ()) -> str | None:
        """Value of ``anthropic-beta`` for the next request, or ``None`` to leave the header out.

        Records in ``held`` what was kept against the caller's wish. Raises ``InvalidParameter`` for a name that could
        not be part of a header.
        """
        wanted = list(dict.fromkeys(wanted))
        for name in wanted:
            if not NAME.fullmatch(name):
                raise InvalidParameter(f"{name!r} is not a beta name: lower-case letters, digits, dots and dashes")
        dropped = [name for name in self._since if name not in wanted]
        self.held += [Held(name, self._requests, self._since[name]) for name in dropped]
        for name in wanted:
            self._since.setdefault(name, self._requests)
        self._requests += 1
        return ",".join(self._since) or None
