"""How long a client waits, and for what (article A, section 3.5, with the thresholds documented since).

Three mechanisms, none of them for the first token: a long prefill and a dead server look the same from here, so the
time to the first token is measured and only the total timeout bounds it.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from llmlab.client.stream_errors import IdleTimeout, TotalTimeout
from llmlab.errors import InvalidParameter

TOTAL_S = 600.0
IDLE_S = 300.0
WARN_S = 45.0
STALL_S = 30.0
CONNECT_S = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeouts:
    """Limits of one attempt, all in seconds; ``None`` switches one off.

    ``total_s`` ends the attempt whatever it is doing. ``idle_s`` ends a stream that has begun and fell silent;
    ``warn_s`` of silence are reported once per silence, while it lasts. ``stall_s``: longer gaps are reported when
    they are over, and nothing else happens. ``reset_by``: what ends a silence. ``bytes`` is any byte, a comment line
    too; ``events`` is a whole event, so that half-sent or comment-only streams are still found. Pings are events.

    Raises ``InvalidParameter`` for a limit that is not a positive number.
    """

    connect_s: float = CONNECT_S
    total_s: float | None = TOTAL_S
    idle_s: float | None = IDLE_S
    warn_s: float | None = WARN_S
    stall_s: float | None = STALL_S
    reset_by: Literal["bytes", "events"] = "events"

    def __post_init__(self) -> None:
        for name in ("connect_s", "total_s", "idle_s", "warn_s", "stall_s"):
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise InvalidParameter(f"{name}={value!r} must be a positive number of seconds, or None for no limit")
        if self.reset_by not in ("bytes", "events"):
            raise InvalidParameter(f"reset_by={self.reset_by!r} must be 'bytes' or 'events'")


@dataclass(frozen=True, slots=True)
class Notice:
    """Something worth reporting that ends nothing: ``kind`` is ``idle`` (still silent) or ``stall`` (was silent)."""

    kind: Literal["idle", "stall"]
    seconds: float


class Watchdog:
    """The three clocks of one attempt, as a state machine: tell it what arrives, ask it what is due.

    ``clock`` gives seconds and never goes back. The attempt begins when the watchdog is made; the idle clock begins
    with the first arrival.
    """

    def __init__(self, timeouts: Timeouts, clock: Callable[[], float] = time.perf_counter) -> None:
        self.timeouts, self.clock = timeouts, clock
        self.started = clock()
        self.last: float | None = None  # arrival that last reset the idle clock
        self._has_warned = False

    def on_bytes(self, at: float | None = None) -> list[Notice]:
        """Bytes of the body arrived, at ``at`` on the clock or now; gives a stall notice if the gap was long."""
        return self._arrived(at) if self.timeouts.reset_by == "bytes" else []

    def on_event(self, at: float | None = None) -> list[Notice]:
        """A whole event arrived, a ping included."""
        return self._arrived(at) if self.timeouts.reset_by == "events" else []

    def check_total(self) -> None:
        """Raises ``TotalTimeout`` when it is due, also while things arrive."""
        limit = self.timeouts.total_s
        if limit is not None and self.clock() - self.started >= limit:
            raise TotalTimeout.after(limit)

    def check(self) -> list[Notice]:
        """Notices that are due, nothing having arrived up to now. Raises ``TotalTimeout`` or ``IdleTimeout``."""
        self.check_total()
        now, limits = self.clock(), self.timeouts
        silence = self._silence(now)
        if limits.idle_s is not None and silence >= limits.idle_s:
            raise IdleTimeout(f"no {limits.reset_by} for {limits.idle_s:g} s in a stream that had begun")
        if limits.warn_s is not None and silence >= limits.warn_s and not self._has_warned:
            self._has_warned = True
            return [Notice("idle", silence)]
        return []

    def remaining(self) -> float | None:
        """Seconds until :meth:`check` has something to say if nothing arrives; ``None``: never."""
        limits, now = self.timeouts, self.clock()
        dues = [] if limits.total_s is None else [self.started + limits.total_s]
        if self.last is not None:
            warn = None if self._has_warned else limits.warn_s
            dues += [self.last + limit for limit in (limits.idle_s, warn) if limit is not None]
        return max(min(dues) - now, 0.0) if dues else None

    def _silence(self, now: float) -> float:
        return 0.0 if self.last is None else now - self.last

    def _arrived(self, at: float | None) -> list[Notice]:
        now, limit = self.clock() if at is None else at, self.timeouts.stall_s
        silence, self.last, self._has_warned = self._silence(now), now, False
        return [Notice("stall", silence)] if limit is not None and silence >= limit else []
