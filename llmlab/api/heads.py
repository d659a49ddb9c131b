"""The head of a request or response as text that may be kept."""

from __future__ import annotations

from collections.abc import Iterable

CREDENTIALS = frozenset({"authorization", "proxy-authorization", "x-api-key", "api-key", "cookie", "set-cookie"})


MAX_HEAD = 8192
"""Characters kept of one head: anybody may send them, also without a key."""


def head_text(headers: Iterable[tuple[str, str]]) -> str:
    """Header lines, at most 8 Ki characters; the values of credentials are replaced."""
    text = "\n".join(f"{name}: {'[removed]' if name.lower() in CREDENTIALS else value}" for name, value in headers)
    return text if len(text) <= MAX_HEAD else f"{text[:MAX_HEAD]}\n[cut: {len(text) - MAX_HEAD} more characters]"
