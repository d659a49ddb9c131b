"""What the reader points at: one selection, shared by all panels of a lab or a trace."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

from llmlab.errors import InvalidParameter

MAX_ID = 200  # characters of an id: keys come back from a browser


@dataclass(frozen=True, slots=True)
class Point:
    """Request and wire are ids, the rest numbers; ``None`` where nothing is selected."""

    request: str | None = None
    step: int | None = None
    position: int | None = None
    layer: int | None = None
    head: int | None = None
    block: int | None = None
    wire: str | None = None

    def key(self) -> dict[str, Any]:
        """The fields that are set, as marks name them."""
        return {name: value for name, value in asdict(self).items() if value is not None}


FIELDS = tuple(field.name for field in fields(Point))
_IDS = ("request", "wire")
_OF_A_REQUEST = ("position", "block", "wire")  # mean another thing, or nothing, for another request


class Selection:
    """A :class:`Point` that any thread may read and change; observers are called with the new one.

    ``version`` counts the changes.
    """

    def __init__(self, **start: Any) -> None:
        self._lock = threading.Lock()
        self._point = Point(**_checked(start))
        self._observers: list[Callable[[Point], None]] = []
        self.version = 0

    @property
    def point(self) -> Point:
        """What is selected now."""
        return self._point

    def pick(self, key: Mapping[str, Any]) -> None:
        """Take over the fields of ``key``. Another request leaves behind what belonged to the one before.

        Raises ``InvalidParameter`` for a field or value that no mark can have.
        """
        changes = _checked(key)
        with self._lock:
            point = self._point
            if changes.get("request", point.request) != point.request:
                point = replace(point, **dict.fromkeys(_OF_A_REQUEST))
            self._set(replace(point, **changes))

    def clear(self) -> None:
        """Select nothing."""
        with self._lock:
            self._set(Point())

    def _set(self, point: Point) -> None:
        changed = point != self._point
        self._point = point
        self.version += changed
        if changed:
            for observer in list(self._observers):
                observer(point)

    def observe(self, observer: Callable[[Point], None]) -> None:
        """Call ``observer`` after every change, on the thread that made it; it must be quick."""
        with self._lock:
            self._observers.append(observer)

    def unobserve(self, observer: Callable[[Point], None]) -> None:
        """Stop calling ``observer``; harmless when it is not known."""
        with self._lock:
            if observer in self._observers:
                self._observers.remove(observer)

    def __repr__(self) -> str:
        chosen = ", ".join(f"{name}={value!r}" for name, value in self._point.key().items())
        return f"Selection({chosen})"


def _checked(key: Mapping[str, Any]) -> dict[str, Any]:
    for name, value in key.items():
        if name not in FIELDS:
            raise InvalidParameter(f"{name!r} cannot be selected: choose from {', '.join(FIELDS)}")
        if value is None:
            continue
        if name in _IDS and not (isinstance(value, str) and len(value) <= MAX_ID and _is_text(value)):
            raise InvalidParameter(f"{name}={value!r} must be an id of at most {MAX_ID} characters")
        if name not in _IDS and not (type(value) is int and -1 <= value < 2**53):
            raise InvalidParameter(f"{name}={value!r} must be a whole number of at least -1")
    return dict(key)


def _is_text(text: str) -> bool:
    """Whether it can be sent to a page: half a surrogate pair cannot."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
