"""Who goes first: the service tier that a request gets from what its key allows and what it asks for."""

from __future__ import annotations

from dataclasses import dataclass

from llmlab.api.conversation import Conversation
from llmlab.gateway.auth import Identity

PRIORITY = {"priority": -10, "standard": 0, "batch": 10}
"""Scheduler priority of each tier: lower goes first. OpenAI's ``flex`` is ``batch`` here."""


@dataclass(frozen=True, slots=True)
class Grant:
    """The tier a request is given, and why."""

    tier: str
    reason: str

    @property
    def priority(self) -> int:
        """For the scheduler: lower goes first."""
        return PRIORITY[self.tier]


def grant(identity: Identity, conversation: Conversation) -> Grant:
    """At most the key's tier, and a lower one when the request asks for less (``auto`` asks for the key's)."""
    allowed, asked = identity.tier, conversation.service_tier
    if asked == "flex" and allowed != "batch":
        return Grant("batch", "asked for flex")
    if asked in ("standard_only", "default") and allowed == "priority":
        return Grant("standard", "asked for standard")
    if asked == "priority" and allowed != "priority":
        return Grant(allowed, f"asked for priority, but the key's tier is {allowed}")
    return Grant(allowed, "the key's tier")
