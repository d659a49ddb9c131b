"""The bounded log that the engine writes and every view reads."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice
from time import perf_counter_ns

from llmlab.errors import InvalidParameter
from llmlab.trace.events import EngineInfo, Event, Gap, Span


class Recorder:
    """A ring of the last ``capacity`` events; any thread may write and any thread may read.

    The oldest events are dropped when the ring is full. Nothing is lost silently: a reader that missed events
    gets one :class:`Gap` in their place, and the :class:`EngineInfo` is kept for ever. Code on the hot path
    tests ``recorder.enabled`` before it builds an event.

    A token of a request that runs alone is about four events. Streamed over the wire it is one more at the gateway (its
    frame) and three at a client in the same process (bytes, frame, delta), so the default capacity holds about 25,000
    tokens seen from both sides; a wire event takes some 300 bytes with a short text.

    Raises ``InvalidParameter`` for a capacity below 1.
    """

    def __init__(self, capacity: int = 200_000, enabled: bool = True) -> None:
        if not isinstance(capacity, int) or capacity < 1:
            raise InvalidParameter(f"capacity={capacity!r} must be an integer of at least 1 event")
        self.capacity = capacity
        self._enabled = enabled
        self._ring: deque[Event] = deque(maxlen=capacity)
        self._lock = threading.Lock()
        self._count = 0  # events ever emitted: the number of the next one
        self._info: EngineInfo | None = None
        self._info_number = 0

    @property
    def enabled(self) -> bool:
        """Whether :meth:`emit` keeps events. Switching on after a pause leaves a ``Gap`` of 0 events."""
        return self._enabled

    @enabled.setter
    def enabled(self, value: bool) -> None:
        resumed = value and not self._enabled and self._info is not None
        self._enabled = value
        if resumed:
            self.emit(Gap(perf_counter_ns(), 0))

    @property
    def info(self) -> EngineInfo | None:
        """The latest engine description, even if it fell out of the ring."""
        return self._info

    @property
    def dropped(self) -> int:
        """Events that can no longer be read, because the ring was full or was cleared."""
        with self._lock:
            return self._lost(0)

    def __len__(self) -> int:
        return len(self._ring)

    def __repr__(self) -> str:
        state = "on" if self._enabled else "off"
        return f"<Recorder {state}: {len(self)} of {self.capacity} events, {self.dropped} dropped>"

    # -- writing --------------------------------------------------------------------------------------------

    def emit(self, event: Event) -> None:
        """Append one event; when disabled, anything but an ``EngineInfo`` is ignored."""
        is_info = type(event) is EngineInfo
        if not (self._enabled or is_info):
            return
        with self._lock:
            if is_info:
                self._info, self._info_number = event, self._count
            self._ring.append(event)
            self._count += 1

    @contextmanager
    def span(self, name: str, request_id: str | None = None) -> Iterator[None]:
        """Record the body of a ``with`` statement as one :class:`Span`, also when it raises."""
        start = perf_counter_ns()
        try:
            yield
        finally:
            if self._enabled:
                self.emit(Span(start, perf_counter_ns(), name, request_id))

    def clear(self) -> None:
        """Forget all events but the ``EngineInfo``; readers that had not seen them get a ``Gap``."""
        with self._lock:
            self._ring.clear()

    # -- reading --------------------------------------------------------------------------------------------

    def read_since(self, cursor: int) -> tuple[list[Event], int]:
        """Events from number ``cursor`` (0: from the beginning) and the cursor to pass next time.

        Events that are gone are replaced by one ``Gap``; an ``EngineInfo`` among them is given before it.
        """
        with self._lock:
            available = min(max(self._count - cursor, 0), len(self._ring))
            events = list(islice(reversed(self._ring), available))
            lost, end = self._lost(cursor), self._count
            info = self._info if self._is_info_lost(cursor) else None
        events.reverse()
        if lost:
            events.insert(0, Gap(events[0].t_ns if events else perf_counter_ns(), lost))
        if info is not None:
            events.insert(0, info)
        return events, end

    def snapshot(self) -> list[Event]:
        """Everything that is left: the ``EngineInfo``, a ``Gap`` if events were dropped, the rest."""
        return self.read_since(0)[0]

    @property
    def _oldest(self) -> int:
        return self._count - len(self._ring)

    def _is_info_lost(self, cursor: int) -> bool:
        """Whether the info lies between ``cursor`` and the oldest event that is left."""
        return self._info is not None and cursor <= self._info_number < self._oldest

    def _lost(self, cursor: int) -> int:
        return max(self._oldest - cursor - self._is_info_lost(cursor), 0)
