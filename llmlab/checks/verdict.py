"""What a check says about an answer."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether an answer is right, and why or what to look at again. True when it is right."""

    passed: bool
    message: str

    def __bool__(self) -> bool:
        return self.passed

    def __repr__(self) -> str:
        return f"{'Correct' if self.passed else 'Not yet'}: {self.message}"

    __str__ = __repr__
