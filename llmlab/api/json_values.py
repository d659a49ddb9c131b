"""What both codecs ask about values that came out of a JSON parser."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any


def is_unicode(text: str) -> bool:
    """Whether UTF-8 can hold the text: JSON can spell half of a surrogate pair, which is no character."""
    if text.isascii():
        return True
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def children(value: Any) -> Iterator[Any]:
    """Keys and values of an object, items of an array; nothing for any other value."""
    if isinstance(value, dict):
        yield from value.keys()
        yield from value.values()
    elif isinstance(value, list):
        yield from value


def count_values(value: Any) -> int:
    """Number of JSON values and keys in ``value``, itself included."""
    pending, size = [value], 0
    while pending:
        size += 1
        pending.extend(children(pending.pop()))
    return size
