"""Whether to try again, and when (article A, section 3.6; the constants are those of the public clients).

Everything here is a pure function of its arguments: the client sleeps, these decide.
"""

from __future__ import annotations

import math
import random
from collections.abc import Mapping
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from typing import Literal

from llmlab.client.stream_errors import (
    TRANSIENT_KINDS,
    ApiFailure,
    ClientError,
    ConnectionLost,
    IdleTimeout,
    ServerUnreachable,
    StreamIncomplete,
)
from llmlab.errors import InvalidParameter

MAX_RETRIES = 10
MAX_UNREACHED = 2
MAX_RETRIES_CAP = 15
BASE_S = 0.5
CAP_S = 8.0
CLI_CAP_S = 32.0
RETRY_AFTER_CAP_S = 120.0
MAX_OVERLOADED = 3
OVERLOADED = 529

Phase = Literal["nothing", "thinking", "tool_use", "shown"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryPolicy:
    """How stubborn a client is.

    ``max_retries``: attempts after the first, at most 15. The computed delay doubles from ``base_s`` to ``cap_s``,
    then is multiplied by a random factor between the two of ``jitter``: after the cap, so that clients at the cap are
    spread too. A wait that the server asked for is kept to as it is, beyond ``cap_s`` but not beyond
    ``retry_after_cap_s``: longer ones are cut to that, and the cut is reported. ``max_unreached`` is the limit while
    no connection was made at all, neither by this request nor by an earlier one of the client: more likely than a
    server that is starting is a wrong address, and who typed it is waiting; ``None`` makes no difference there. After
    ``max_overloaded`` times 529 in a row the fallback model, if there is one, is asked instead. ``mid_stream``:
    ``phases`` retries a broken stream while nothing or only thinking was shown, and keeps complete tool calls;
    ``never`` retries only while nothing was shown and keeps nothing.

    Raises ``InvalidParameter``.
    """

    max_retries: int = MAX_RETRIES
    base_s: float = BASE_S
    cap_s: float = CAP_S
    jitter: tuple[float, float] = (0.75, 1.0)
    retry_after_cap_s: float = RETRY_AFTER_CAP_S
    max_overloaded: int = MAX_OVERLOADED
    max_unreached: int | None = MAX_UNREACHED
    mid_stream: Literal["phases", "never"] = "phases"

    def __post_init__(self) -> None:
        if type(self.max_retries) is not int or not 0 <= self.max_retries <= MAX_RETRIES_CAP:
            raise InvalidParameter(f"max_retries={self.max_retries!r} must be an integer from 0 to {MAX_RETRIES_CAP}")
        if self.max_unreached is not None and (type(self.max_unreached) is not int or self.max_unreached < 0):
            raise InvalidParameter(f"max_unreached={self.max_unreached!r} must be an integer of at least 0, or None")
        if not (0 < self.base_s <= self.cap_s and 0 < self.jitter[0] <= self.jitter[1]):
            raise InvalidParameter("delays need 0 < base_s <= cap_s and a jitter of two rising positive factors")
        if self.mid_stream not in ("phases", "never"):
            raise InvalidParameter(f"mid_stream={self.mid_stream!r} must be 'phases' or 'never'")

    def limit_for(self, failure: ClientError, was_reached: bool) -> int:
        """Retries a request has, given its latest failure and whether the client ever reached the server."""
        is_unreached = isinstance(failure, ServerUnreachable) and not was_reached
        if is_unreached and self.max_unreached is not None:
            return min(self.max_unreached, self.max_retries)
        return self.max_retries

    def delay_for(self, attempt: int, rng: random.Random) -> float:
        """Computed delay (s) after failed attempt number ``attempt``, counted from 0."""
        delay = min(self.base_s * 2.0 ** min(attempt, 60), self.cap_s)
        return delay * rng.uniform(*self.jitter)


INTERACTIVE = RetryPolicy()
"""For a person at a keyboard: delays as ``SDK_STYLE``, but an address at which nothing answers fails within seconds."""

SDK_STYLE = RetryPolicy(max_unreached=None)
"""Delays of the public SDKs (cap 8 s, jitter only shortens) and the number of retries article A gives."""

CLI_STYLE = RetryPolicy(cap_s=CLI_CAP_S, jitter=(1.0, 1.25), max_unreached=None)
"""As article A describes the command line client: cap 32 s, jitter only lengthens, so up to 40 s."""


@dataclass(frozen=True, slots=True)
class Wait:
    """A decision to wait: ``seconds``, and why that long. ``asked_s`` is what the server asked for, if it did."""

    seconds: float
    reason: str
    asked_s: float | None = None


def retry_after(headers: Mapping[str, str], now: float) -> float | None:
    """Seconds the server asks to wait, or ``None`` if it does not or what it says makes no sense.

    ``headers`` have lower-case names; ``now`` is seconds since the epoch. ``retry-after-ms`` goes before
    ``retry-after``, which may be a number or an HTTP date. Zero, the past, ``nan`` and garbage are no answer;
    infinity is one.
    """
    milliseconds = _number(headers.get("retry-after-ms"))
    if milliseconds is not None and milliseconds > 0:
        return milliseconds / 1000
    text = headers.get("retry-after")
    seconds = _number(text)
    if seconds is None and text:
        seconds = _until(text, now)
    return seconds if seconds is not None and seconds > 0 else None


def _number(text: str | None) -> float | None:
    try:
        value = float(text) if text else math.nan
    except ValueError:
        return None
    return None if math.isnan(value) else value


def _until(date: str, now: float) -> float | None:
    try:
        return parsedate_to_datetime(date).timestamp() - now
    except (ValueError, OverflowError, IndexError):
        return None


def wait_before(policy: RetryPolicy, attempt: int, headers: Mapping[str, str], rng: random.Random, now: float) -> Wait:
    """How long to wait after failed attempt ``attempt`` (from 0), given the headers of its response."""
    asked = retry_after(headers, now)
    if asked is None:
        return Wait(policy.delay_for(attempt, rng), "exponential backoff")
    if asked > policy.retry_after_cap_s:
        return Wait(policy.retry_after_cap_s, f"retry-after of {asked:g} s cut to the longest wait allowed", asked)
    return Wait(asked, "retry-after", asked)


def is_retryable(failure: ClientError) -> tuple[bool, str]:
    """Whether the same request may succeed later, and the reason, for a failure before or inside a stream."""
    if isinstance(failure, ApiFailure):
        return _is_answer_retryable(failure)
    if isinstance(failure, ConnectionLost | StreamIncomplete | IdleTimeout):
        return True, "the connection broke"
    return False, f"{type(failure).__name__} would happen again"


def _is_answer_retryable(failure: ApiFailure) -> tuple[bool, str]:
    if failure.status == 200:
        return failure.kind in TRANSIENT_KINDS, f"{failure.kind} inside a stream"
    told = failure.headers.get("x-should-retry", "").strip().lower()
    if told in ("true", "false"):
        return told == "true", f"the server said x-should-retry: {told}"
    return failure.status in (408, 409, 429) or failure.status >= 500, f"status {failure.status}"


Action = Literal["retry", "keep", "raise"]


def after_break(policy: RetryPolicy, phase: Phase) -> Action:
    """What to do with a stream that broke when ``phase`` had been reached.

    ``nothing``: no block had begun. ``thinking``: only thinking was shown. ``tool_use``: a tool call is whole, so the
    turn is worth keeping. ``shown``: the reader has seen an answer that another attempt would contradict.
    """
    if phase == "nothing":
        return "retry"
    if policy.mid_stream == "never" or phase == "shown":
        return "raise"
    return "retry" if phase == "thinking" else "keep"
