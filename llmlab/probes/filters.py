"""Filters: which layers, heads or positions a probe is about."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from fnmatch import fnmatchcase
from operator import index
from typing import Any

from llmlab.errors import InvalidParameter

Filter = Any
"""``None`` (all), an int (negative: from the end), a list of them, a slice, a name or pattern, or a callable that is
given each number and says whether it is wanted."""


def choose(
    what: str, wanted: Filter, size: int, *, end: int | None = None, names: Callable[[int], Sequence[str]] | None = None
) -> tuple[int, ...]:
    """The numbers below ``size`` that a filter wants, ascending.

    Negative numbers count from ``end`` (default ``size``). ``names(i)`` are the names that stand for number ``i``.
    Raises ``InvalidParameter`` for a filter of another type, out of range, or a name that fits nothing.
    """
    end = size if end is None else end
    if wanted is None or wanted is True:
        return tuple(range(size))
    if isinstance(wanted, str):
        return _named(what, wanted, size, names)
    if callable(wanted):
        return tuple(i for i in range(size) if wanted(i))
    if isinstance(wanted, slice):
        return _sliced(what, wanted, size, end)
    if wanted is not False and hasattr(wanted, "__index__"):
        return (_number(what, index(wanted), size, end),)
    if isinstance(wanted, list | tuple | range | set | frozenset):
        chosen = [choose(what, item, size, end=end, names=names) for item in wanted if item is not None]
        return tuple(sorted({i for part in chosen for i in part}))
    raise InvalidParameter(
        f"{what}={wanted!r} is no filter: use None, an integer, a list, a slice, a name or a function"
    )


def _number(what: str, value: int, size: int, end: int) -> int:
    number = value + end if value < 0 else value
    if not 0 <= number < size:
        raise InvalidParameter(f"{what}={value} does not exist: there are {size}, 0 to {size - 1}")
    return number


def _sliced(what: str, value: slice, size: int, end: int) -> tuple[int, ...]:
    parts = (value.start, value.stop, value.step)
    if any(part is not None and type(part) is not int for part in parts) or (value.step or 1) < 1:
        raise InvalidParameter(f"{what}={value!r} must be a slice of integers with a positive step")
    start, stop = (part + end if part is not None and part < 0 else part for part in parts[:2])
    start, stop = max(start or 0, 0), size if stop is None else max(stop, 0)
    return tuple(range(start, min(stop, size), value.step or 1))


def _named(what: str, pattern: str, size: int, names: Callable[[int], Sequence[str]] | None) -> tuple[int, ...]:
    if names is None:
        raise InvalidParameter(f"{what}={pattern!r}: {what} have no names, only numbers")
    chosen = tuple(i for i in range(size) if any(fnmatchcase(name, pattern) for name in names(i)))
    if not chosen:
        examples = " or ".join(map(repr, names(0))) if size else "none"
        raise InvalidParameter(f"{what}={pattern!r} fits no name: the first are called {examples}")
    return chosen
