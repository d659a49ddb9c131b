"""Comparing an answer with what is right and with the usual mistakes."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from llmlab.checks.verdict import Verdict

Mistakes = Iterable[tuple[Any, str]]  # what somebody who makes it would answer, and what to tell them


def judge_number(answer: Any, right: int, mistakes: Mistakes, *, because: str, hint: str) -> Verdict:
    """Judge a count. ``because`` says why the right answer is right, ``hint`` where to look after an unusual mistake.

    A mistake that happens to give the right number is none.
    """
    if answer is ... or answer is None:
        return Verdict(False, "replace the ... by your answer, then run this cell again.")
    if isinstance(answer, bool) or not _is_whole(answer):
        return Verdict(False, f"the answer is a whole number; yours is {answer!r}, of type {type(answer).__name__}.")
    if answer == right:
        return Verdict(True, because)
    for wrong, message in mistakes:
        if answer == wrong:
            return Verdict(False, message)
    return Verdict(False, f"{answer} is too {'large' if answer > right else 'small'}. {hint}")


def judge_function(
    function: Any, right: Callable[..., int], cases: Sequence[tuple], mistakes: Mistakes, *, because: str
) -> Verdict:
    """Judge a function by what it returns for each of ``cases``; the mistakes are functions too."""
    if not callable(function):
        return Verdict(False, f"give the function itself, as in q(my_function); you gave {function!r}.")
    given = []
    for case in cases:
        try:
            given.append(function(*case))
        except Exception as error:  # whatever a learner's function does, it gets an explanation
            return Verdict(False, f"{_call(function, right, case)} raises {type(error).__name__}: {error}")
    if all(value is ... or value is None for value in given):
        return Verdict(False, "the function returns nothing yet: replace the ... by what it should return.")
    return _compare(function, right, cases, given, mistakes, because)


def _compare(
    function: Callable, right: Callable, cases: Sequence[tuple], given: list, mistakes: Mistakes, because: str
) -> Verdict:
    wanted = [right(*case) for case in cases]
    if given == wanted:
        return Verdict(True, because)
    for wrong, message in mistakes:
        if given == [wrong(*case) for case in cases]:
            return Verdict(False, message)
    case, value, want = next(row for row in zip(cases, given, wanted, strict=True) if row[1] != row[2])
    return Verdict(False, f"{_call(function, right, case)} is {value!r}; {want} would be right.")


def _call(function: Callable, right: Callable, case: tuple) -> str:
    """The call with the names of its arguments, which are those of the right function."""
    names = list(inspect.signature(right).parameters)
    arguments = ", ".join(f"{name}={value!r}" for name, value in zip(names, case, strict=True))
    return f"{getattr(function, '__name__', 'the function')}({arguments})"


def _is_whole(answer: Any) -> bool:
    try:
        return answer == int(answer)
    except (TypeError, ValueError, OverflowError):
        return False
