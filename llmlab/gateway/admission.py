"""How many requests may be open at the backends at a time."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass

from llmlab.api.errors import ApiError

RETRY_AFTER_S = 1


@dataclass(slots=True)
class Admission:
    """Counts open requests. What does not fit is refused at once: a queue would only make everybody time out."""

    max_open: int
    open: int = 0

    def slot(self) -> AbstractContextManager[None]:
        """Take a place, to be held until the end of a ``with``. Raises ``ApiError`` 529 when all are taken."""
        if self.open >= self.max_open:
            raise ApiError(
                "overloaded_error",
                f"{self.open} open, the most requests this server takes at once: try again soon",
                retry_after=RETRY_AFTER_S,
                should_retry=True,
            )
        self.open += 1
        return self._held()

    @contextmanager
    def _held(self) -> Iterator[None]:
        try:
            yield
        finally:
            self.open -= 1
