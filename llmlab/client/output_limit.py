"""How many output tokens to ask for: little at first, much once an answer was cut (article A, section 2.4).

The two values come from a reading of one client's control flow and are not confirmed by its vendor. Whether a server
reserves room by ``max_tokens`` is unconfirmed too; what is certain is that input plus ``max_tokens`` has to fit into
the context where a server insists on it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from llmlab.errors import InvalidParameter, LabError

DEFAULT_MAX_TOKENS = 8_000
ESCALATED_MAX_TOKENS = 64_000
UNKNOWN_WINDOW = 8_192
"""Tokens a model is taken to have room for when its server does not say."""


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
    def for_context(cls, window: int, most: int = ESCALATED_MAX_TOKENS) -> OutputLimit:
        """For a model of ``window`` tokens: an eighth of it at first and half at most, never above the defaults.

        ``most`` is the longest answer, in tokens, that may be asked for.
        """
        default = max(1, min(DEFAULT_MAX_TOKENS, window // 8, most))
        return cls(default, max(default, min(ESCALATED_MAX_TOKENS, window // 2, most)))

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


def limit_for(sender: Any, model: str) -> OutputLimit:
    """What fits ``model``, as the server behind ``sender`` describes it; a small limit when it does not.

    The smallest of its models counts when ``model`` is not among them, for another one may stand in. ``sender`` need
    not have ``models()``, and a failure of it is not one of the request that follows.
    """
    try:
        listed = sender.models() if hasattr(sender, "models") else []
    except LabError:
        listed = []
    known = [each for each in listed if _tokens(each, "max_input_tokens")]
    asked = [each for each in known if each.get("id") == model] or known
    if not asked:
        return OutputLimit.for_context(UNKNOWN_WINDOW)
    smallest = min(asked, key=lambda each: each["max_input_tokens"])
    return OutputLimit.for_context(
        smallest["max_input_tokens"], _tokens(smallest, "max_tokens") or ESCALATED_MAX_TOKENS
    )


def _tokens(model: Mapping[str, Any], name: str) -> int | None:
    """A count that a server gave, which may be anything."""
    value = model.get(name)
    return value if type(value) is int and value > 0 else None
