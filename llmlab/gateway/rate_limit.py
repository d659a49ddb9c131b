"""Token buckets per key, and the headers that tell clients how much is left."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from time import monotonic, time

from llmlab.api.errors import ApiError
from llmlab.api.reply import BlockDelta, Ended, ReplyEvent, Started
from llmlab.api.usage import Usage
from llmlab.gateway.settings import Settings

KINDS = ("requests", "input-tokens", "output-tokens")


@dataclass(slots=True)
class TokenBucket:
    """Holds up to ``limit`` units and gains ``limit`` a minute. It may go below zero: a debt that time pays off."""

    limit: int
    level: float
    updated: float

    def refill(self, now: float) -> None:
        """Add what has been gained since the last call (``now`` in s)."""
        self.level = min(self.limit, self.level + (now - self.updated) * self.limit / 60)
        self.updated = now

    def wait_for(self, amount: float) -> float:
        """Seconds until ``amount`` units are there."""
        return max(0.0, (amount - self.level) * 60 / self.limit)


@dataclass(slots=True)
class Charge:
    """What one reply has been charged so far. Output counts as it is produced, one unit for a piece of unknown size."""

    buckets: Mapping[str, TokenBucket]
    output: int = 0

    def add(self, event: ReplyEvent) -> None:
        """Charge what an event shows to have been computed; at the end the ledger's count replaces the estimate."""
        if isinstance(event, Started):
            self._take("input-tokens", billed_input(event.usage))
        elif isinstance(event, BlockDelta):
            self._take_output(len(event.token_ids) or bool(event.text))
        elif isinstance(event, Ended):
            self._take_output(event.usage.output - self.output)

    def _take_output(self, amount: int) -> None:
        self.output += amount
        self._take("output-tokens", amount)

    def _take(self, kind: str, amount: int) -> None:
        if kind in self.buckets:
            self.buckets[kind].level -= amount


def billed_input(usage: Usage) -> int:
    """Input tokens that count towards the limit: all but those read from the cache."""
    return usage.prompt - usage.cache_read


@dataclass(slots=True)
class RateLimiter:
    """Limits per key, of the requests and tokens of a minute; all calls come from one event loop.

    The length of a prompt is known only once it has been rendered, so a request is let in while the token buckets hold
    anything, and its tokens may put them into debt. ``clock`` and ``wall`` return seconds.
    """

    settings: Settings
    clock: Callable[[], float] = monotonic
    wall: Callable[[], float] = time
    _buckets: dict[str, dict[str, TokenBucket]] = field(default_factory=dict)

    def admit(self, key: str) -> Charge:
        """Count one request of ``key``. Raises ``ApiError`` 429 with ``retry_after`` when a bucket is empty."""
        buckets = self._refilled(key)
        waits = {kind: bucket.wait_for(1) for kind, bucket in buckets.items()}
        if waits and (worst := max(waits, key=waits.__getitem__)) and waits[worst] > 0:
            limit = buckets[worst].limit
            raise ApiError(
                "rate_limit_error",
                f"this key is limited to {limit} {worst.replace('-', ' ')} per minute",
                retry_after=math.ceil(waits[worst]),
                code="rate_limit_exceeded",
            )
        if "requests" in buckets:
            buckets["requests"].level -= 1
        return Charge(buckets)

    def _refilled(self, key: str) -> dict[str, TokenBucket]:
        now = self.clock()
        buckets = self._buckets.setdefault(key, self._fresh(now))
        for bucket in buckets.values():
            bucket.refill(now)
        return buckets

    def _fresh(self, now: float) -> dict[str, TokenBucket]:
        limits = (
            self.settings.requests_per_minute,
            self.settings.input_tokens_per_minute,
            self.settings.output_tokens_per_minute,
        )
        return {kind: TokenBucket(limit, limit, now) for kind, limit in zip(KINDS, limits, strict=True) if limit}

    def headers(self, key: str, anthropic: bool) -> dict[str, str]:
        """Limit, remainder and time of refill of each bucket, in the protocol's own header family."""
        buckets = self._refilled(key)
        shown = {"requests": buckets["requests"]} if "requests" in buckets else {}
        tokens = [bucket for kind, bucket in buckets.items() if kind != "requests"]
        if tokens:
            shown["tokens"] = min(tokens, key=lambda bucket: bucket.level)
        if not anthropic:
            return _openai(shown)
        return _anthropic(shown | buckets, self.wall())


def _left(bucket: TokenBucket) -> str:
    return str(max(0, math.floor(bucket.level)))


def _anthropic(buckets: Mapping[str, TokenBucket], now: float) -> dict[str, str]:
    """``anthropic-ratelimit-*``; unlike the public API's, token counts are not rounded to thousands."""
    found = {}
    for kind, bucket in buckets.items():
        reset = datetime.fromtimestamp(math.ceil(now + bucket.wait_for(bucket.limit)), UTC)
        found[f"anthropic-ratelimit-{kind}-limit"] = str(bucket.limit)
        found[f"anthropic-ratelimit-{kind}-remaining"] = _left(bucket)
        found[f"anthropic-ratelimit-{kind}-reset"] = reset.strftime("%Y-%m-%dT%H:%M:%SZ")
    return found


def _openai(buckets: Mapping[str, TokenBucket]) -> dict[str, str]:
    found = {}
    for kind, bucket in buckets.items():
        found[f"x-ratelimit-limit-{kind}"] = str(bucket.limit)
        found[f"x-ratelimit-remaining-{kind}"] = _left(bucket)
        found[f"x-ratelimit-reset-{kind}"] = f"{bucket.wait_for(bucket.limit):.3f}s"
    return found
