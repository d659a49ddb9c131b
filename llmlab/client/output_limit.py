"""How many output tokens to ask for: little at first, much once an answer was cut (article A, section 2.4).

The two values come from a reading of one client's control flow and are not confirmed by its vendor. Whether a server
reserves room by ``max_tokens`` is unconfirmed too; what is certain is that input plus ``max_tokens`` has to fit into
the context where a server insists on it.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from llmlab.errors import InvalidParameter

DEFAULT_MAX_TOKENS = 8_000
ESCALATED_MAX_TOKENS = 64_000


@dataclass(slots=True)
class OutputLimit:
    """``max_tokens`` of a session: ``default`` until an answer is truncated, ``escalated`` from then on.

    Raises ``InvalidParameter`` unless 1 <= default <= escalated.
    """

    default: int = DEFAULT_MAX_TOKENS
    escalated: int = ESCALATED_MAX_TOKENS
    has_escalated: bool = field(default=False, init=False)

    def __post_init__(self) -> None:
        if not 1 <= self.default <= self.escalated:
            raise InvalidParameter(f"need 1 <= default <= escalated, not {self.default} and {self.escalated}")

    @classmethod
    def for_context(cls, window: int) -> OutputLimit:
        """For a model of ``window`` tokens: an eighth of it at first and half at most, never above the defaults."""
        default = max(1, min(DEFAULT_MAX_TOKENS, window // 8))
        return cls(default, max(default, min(ESCALATED_MAX_TOKENS, window // 2)))

    @property
    def max_tokens(self) -> int:
        """What the next request asks for."""
        return self.escalated if self.has_escalated else self.default

    def escalate(self, stop_reason: str) -> bool:
        """Note how an answer ended; ``True`` once: it was cut, and asking again with the new limit makes sense."""
        if stop_reason != "max_tokens" or self.has_escalated or self.escalated == self.default:
            return False
        self.has_escalated = True
        return True
