"""How the engine's thread wakes a consumer in an event loop: seldom, and never too late."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable


class Listener:
    """The bell of one consumer in the running event loop. Only :meth:`ring` may be called from other threads.

    However often it is rung before the consumer runs, one wake-up is pending. Every ``poll_s`` seconds it looks
    whether ``has_failed``, and rings itself then: an engine that died cannot.
    """

    def __init__(self, has_failed: Callable[[], bool], poll_s: float) -> None:
        self._loop, self._event = asyncio.get_running_loop(), asyncio.Event()
        self._has_failed, self._poll_s = has_failed, poll_s
        self._rung = False
        self._timer = self._loop.call_later(poll_s, self._watch)

    def ring(self) -> None:
        """Wake the consumer, or keep it from sleeping. What it is to see must be in place before."""
        if self._rung:
            return
        self._rung = True
        with contextlib.suppress(RuntimeError):  # the loop was closed with the consumer in it
            self._loop.call_soon_threadsafe(self._event.set)

    def clear(self) -> None:
        """Call before looking for news: whatever comes after will ring again."""
        self._event.clear()
        # after the event: a ring in between is not lost, because its news are in place before we look for them
        self._rung = False

    async def wait(self) -> None:
        """Sleep until the bell rings."""
        # no timeout around it: in Python 3.11 wait_for loses a cancellation that arrives together with the event
        await self._event.wait()

    def close(self) -> None:
        """Stop looking after the engine."""
        self._timer.cancel()

    def _watch(self) -> None:
        if self._has_failed():
            self._event.set()
        self._timer = self._loop.call_later(self._poll_s, self._watch)
