"""What a server accepts beyond the protocols' own rules: switches where real services differ by model or version."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """Validation switches of one gateway.

    ``lenient_sampling``: take temperature, top_p and top_k under ``anthropic-version: 2026-10-21`` too.
    ``strict_roles``: refuse two messages of one role in a row, where the protocol merges them.
    ``allow_prefill``: an assistant turn at the end is continued. ``max_output_tokens``: largest ``max_tokens``;
    ``None`` leaves it to the context. ``min_thinking_budget``: smallest ``thinking.budget_tokens`` (the public API's
    is 1,024, which a small context would hardly hold).
    """

    lenient_sampling: bool = False
    strict_roles: bool = False
    allow_prefill: bool = True
    max_output_tokens: int | None = None
    min_thinking_budget: int = 16
