"""From a failed attempt to the next one: the state of one request's retries."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from time import perf_counter_ns
from typing import Any, Literal

from llmlab.client.overflow import MAX_HEALS, Healing, NoRoomLeft
from llmlab.client.recording import Log
from llmlab.client.retry import OVERLOADED, Phase, RetryPolicy, Wait, after_break, is_retryable, wait_before
from llmlab.client.stream_errors import ApiFailure, ClientError


@dataclass(frozen=True, slots=True)
class Step:
    """What to do after a failure. ``changes`` are fields of the request to replace before the next attempt."""

    action: Literal["retry", "keep", "raise"]
    reason: str
    wait: Wait = field(default_factory=lambda: Wait(0.0, "at once"))
    changes: dict[str, Any] = field(default_factory=dict)


class Recovery:
    """Decides about the failures of one request, one after the other."""

    def __init__(
        self,
        policy: RetryPolicy,
        healing: Healing,
        fallback_model: str | None,
        rng: random.Random,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self.policy, self.healing, self.fallback_model = policy, healing, fallback_model
        self.rng, self.sleep = rng, sleep
        self.retries = 0
        self.overloaded = 0  # in a row
        self.heals = 0

    def after(self, failure: ClientError, phase: Phase, log: Log, next_id: str, *, was_reached: bool = True) -> Step:
        """The step after ``failure``, with its wait already over. Raises ``failure``, or ``NoRoomLeft``.

        ``log`` is the failed attempt's; ``next_id`` the id under which another one would be made, recorded there.
        ``was_reached``: whether this client ever had an answer from the server.
        """
        begin = perf_counter_ns()
        log.event("error", type(failure).__name__, text=str(failure))
        try:
            step = self.decide(failure, phase, was_reached=was_reached)
        except NoRoomLeft as error:
            log.stage(begin, "retry", "refused", str(error))
            raise
        if step.action == "raise":
            log.stage(begin, "retry", "refused", step.reason)
            raise failure
        if step.action == "retry":
            log.event("retry", step.reason, text=f"{step.wait.seconds:.3g} s: {step.wait.reason}")
            if step.wait.seconds > 0:
                self.sleep(step.wait.seconds)
        wait = {"wait_s": step.wait.seconds, "asked_s": step.wait.asked_s, "wait_reason": step.wait.reason}
        outcome = "kept" if step.action == "keep" else "retried"
        following = {"next_id": next_id} if step.action == "retry" else {}
        log.stage(begin, "retry", outcome, step.reason, retries=self.retries, **following, **wait, **step.changes)
        return step

    def decide(self, failure: ClientError, phase: Phase, now: float | None = None, *, was_reached: bool = True) -> Step:
        """The step after ``failure``; ``now`` is seconds since the epoch. Raises ``NoRoomLeft``."""
        healed = self._heal(failure)
        if healed is not None:
            return healed
        retryable, reason = is_retryable(failure)
        action = after_break(self.policy, phase) if retryable else "raise"
        if action != "retry":
            return Step(action, reason if action == "raise" and not retryable else f"{reason} after {phase} was shown")
        fallback = self._fall_back(failure)
        limit = self.policy.limit_for(failure, was_reached)
        if self.retries >= limit:
            return Step("raise", f"{reason}; all {limit} retries are used up")
        self.retries += 1
        if fallback is not None:
            return Step("retry", f"overloaded {self.policy.max_overloaded} times in a row", changes={"model": fallback})
        headers = failure.headers if isinstance(failure, ApiFailure) else {}
        wait = wait_before(self.policy, self.retries - 1, headers, self.rng, time.time() if now is None else now)
        return Step("retry", reason, wait)

    def _heal(self, failure: ClientError) -> Step | None:
        if self.heals >= MAX_HEALS or not isinstance(failure, ApiFailure):
            return None
        room = self.healing.max_tokens_for(failure)
        if room is None:
            return None
        self.heals += 1
        return Step("retry", "input and max_tokens exceeded the context", changes={"max_tokens": room})

    def _fall_back(self, failure: ClientError) -> str | None:
        """The model to go on with, once its predecessor was overloaded often enough; each is left only once."""
        is_overloaded = isinstance(failure, ApiFailure) and (
            failure.status == OVERLOADED or failure.kind == "overloaded_error"
        )
        self.overloaded = self.overloaded + 1 if is_overloaded else 0
        if self.overloaded < self.policy.max_overloaded or self.fallback_model is None:
            return None
        model, self.fallback_model, self.overloaded = self.fallback_model, None, 0
        return model
