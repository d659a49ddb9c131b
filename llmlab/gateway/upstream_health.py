"""Whether another server can be used, as far as requests to it have shown."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from time import monotonic

from llmlab.api.errors import ApiError

FIRST_REST_S = 1.0
MAX_REST_S = 30.0
DOWN = frozenset({502, 503, 504, 529})


@dataclass(slots=True)
class Health:
    """After a failure an upstream rests: it is asked again only when nobody else has its models.

    A rest lasts 1 s, twice as long after each further failure in a row, 30 s at most. An upstream that names a time
    itself (``retry-after``) rests as long, within the same limit. ``clock`` returns seconds.
    """

    clock: Callable[[], float] = monotonic
    failures: int = 0
    problem: str = ""
    _until: float = 0.0

    @property
    def rest_s(self) -> float:
        """Seconds of the present rest that are left; 0 for an upstream that can be used."""
        return max(0.0, self._until - self.clock())

    def succeeded(self) -> None:
        """It did what it was asked for."""
        self.failures, self.problem, self._until = 0, "", 0.0

    def failed(self, error: ApiError) -> None:
        """Take a failure. Requests that fail together during one rest count once: they failed for one reason.

        A refusal of the request alone shows that the upstream works; an error of status 500 shows nothing.
        """
        if error.status < 500 and error.status != 429:
            self.succeeded()
        elif self.rest_s == 0 and (error.status == 429 or self._is_down(error)):
            self.failures += 1
            self.problem = error.message
            self._until = self.clock() + self._rest(error)

    @staticmethod
    def _is_down(error: ApiError) -> bool:
        """A reply that could not be read (502 without a word on trying again) may be that one request's fault."""
        return error.status in DOWN and not (error.status == 502 and error.should_retry is None)

    def _rest(self, error: ApiError) -> float:
        if error.retry_after is not None:
            return min(error.retry_after, MAX_REST_S)
        return min(FIRST_REST_S * 2 ** min(self.failures - 1, 10), MAX_REST_S)
