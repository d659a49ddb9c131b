"""Comparing an answer with what is right and with the usual mistakes."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from llmlab.checks.verdict import Verdict

Mistakes = Iterable[tuple[Any, str]]  # what somebody who makes it would answer, and what to tell them

MAX_SHOWN = 200  # characters of an answer


def judge_number(answer: Any, right: int, mistakes: Mistakes, *, because: str, hint: str) -> Verdict:
    """Judge a count. ``because`` says why the right answer is right, ``hint`` where to look after an unusual mistake.

    A mistake that happens to give the right number is none.
    """
    if answer is ... or answer is None:
        return Verdict(False, "replace the ... by your answer, then run this cell again.")
    if isinstance(answer, bool) or not _is_whole(answer):
        return Verdict(
            False, f"the answer is a whole number; yours is {_shown(answer)}, of type {type(answer).__name__}."
        )
    answer = int(answer)
    if answer == right:
        return Verdict(True, because)
    for wrong, message in mistakes:
        if answer == wrong:
            return Verdict(False, message)
    return Verdict(False, f"{_shown(answer)} is too {'large' if answer > right else 'small'}. {hint}")


def judge_function(
    function: Any, right: Callable[..., int], cases: Sequence[tuple], mistakes: Mistakes, *, because: str
) -> Verdict:
    """Judge a function by what it returns for each of ``cases``; the mistakes are functions too."""
    if not callable(function):
        return Verdict(False, f"give the function itself, as in q(my_function); you gave {_shown(function)}.")
    given = []
    for case in cases:
        try:
            given.append(function(*case))
        except Exception as error:  # whatever a learner's function does, it gets an explanation
            return Verdict(False, f"{_call(function, right, case)} raises {type(error).__name__}: {_shown(error, str)}")
    if all(value is ... or value is None for value in given):
        return Verdict(False, "the function returns nothing yet: replace the ... by what it should return.")
    return _compare(function, right, cases, given, mistakes, because)


def _compare(
    function: Callable, right: Callable, cases: Sequence[tuple], given: list, mistakes: Mistakes, because: str
) -> Verdict:
    wanted = [right(*case) for case in cases]
    if _all_same(given, wanted):
        return Verdict(True, because)
    for wrong, message in mistakes:
        if _all_same(given, [wrong(*case) for case in cases]):
            return Verdict(False, message)
    case, value, want = next(row for row in zip(cases, given, wanted, strict=True) if not _same(row[1], row[2]))
    return Verdict(False, f"{_call(function, right, case)} is {_shown(value)}; {want} would be right.")


def _all_same(given: list, others: list) -> bool:
    return all(_same(value, other) for value, other in zip(given, others, strict=True))


def _same(value: Any, other: Any) -> bool:
    """Whether they are equal and it can be said: an array compared with a number is neither."""
    try:
        return bool(value == other)
    except Exception:  # a learner's object may do anything
        return False


def _shown(value: Any, how: Callable[[Any], str] = repr) -> str:
    """At most ``MAX_SHOWN`` characters of it; integers of thousands of digits have no text."""
    try:
        text = how(value)
    except Exception:
        return f"something of type {type(value).__name__}"
    return text if len(text) <= MAX_SHOWN else f"{text[:MAX_SHOWN]}…"


def _call(function: Callable, right: Callable, case: tuple) -> str:
    """The call with the names of its arguments, which are those of the right function."""
    names = list(inspect.signature(right).parameters)
    arguments = ", ".join(f"{name}={value!r}" for name, value in zip(names, case, strict=True))
    return f"{getattr(function, '__name__', 'the function')}({arguments})"


def _is_whole(answer: Any) -> bool:
    try:
        return bool(answer == int(answer))
    except Exception:  # a learner's object may do anything
        return False
