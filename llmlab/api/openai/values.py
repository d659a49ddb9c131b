"""What a JSON value may hold before anything else looks at it."""

from __future__ import annotations

import math
from typing import Any

from llmlab.api.json_values import children, is_unicode
from llmlab.api.openai.problems import invalid

MAX_DEPTH = 100
"""Deepest nesting of a value: far below the recursion limit of whatever renders or compiles it later."""
MAX_INTEGER = 2**256
"""Integers beyond this have no use in a request, and some have more digits than Python agrees to print."""


def check_values(value: Any, param: str | None = None) -> None:
    """Refuse what later stages cannot carry, at any depth of ``value``.

    That is: nesting beyond :data:`MAX_DEPTH`, text that UTF-8 cannot hold (lone surrogates), numbers that are not
    finite, and integers beyond :data:`MAX_INTEGER`. Raises ``ApiError`` with ``param`` as the place.
    """
    pending = [(value, 1)]
    while pending:
        item, depth = pending.pop()
        problem = _problem(item, depth)
        if problem:
            raise invalid(param, problem)
        pending.extend((child, depth + 1) for child in children(item))


def _problem(item: Any, depth: int) -> str | None:
    if depth > MAX_DEPTH:
        return f"nested more than {MAX_DEPTH} levels deep"
    if isinstance(item, str) and not is_unicode(item):
        return "a string holds half of a UTF-16 surrogate pair, which is no character; send whole characters"
    if isinstance(item, float) and not math.isfinite(item):
        return "a number is infinite or not a number; only finite numbers can be used"
    if isinstance(item, int) and abs(item) > MAX_INTEGER:
        return "an integer has more than 77 digits"
    return None
