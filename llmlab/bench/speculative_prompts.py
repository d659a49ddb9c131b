"""Four kinds of prompts that a proposer finds more and less predictable."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Kind:
    """Prompts of one kind and the temperature they are answered at."""

    name: str
    temperature: float
    prompts: tuple[str, ...]

    def take(self, count: int) -> list[str]:
        """``count`` prompts, numbered where they have to be repeated."""
        times, rest = divmod(count, len(self.prompts))
        more = [f"({i}) {prompt}" for i in range(1, times + 1) for prompt in self.prompts]
        return [*self.prompts, *more][: times * len(self.prompts) + rest]


_CODE = """def total(prices, tax):
    result = 0
    for price in prices:
        result = result + price
    return result * (1 + tax)


def mean(prices):
    if not prices:
        return 0
    return sum(prices) / len(prices)"""
_LETTER = (
    "The library in Mill Street opens at nine on weekdays and at ten on Saturdays. Books can be kept for three weeks "
    "and renewed twice, by telephone or at the desk. The reading room on the second floor closes half an hour earlier."
)
_QUOTES = (
    f"Write this Python code again, with the function total renamed to invoice_total:\n{_CODE}",
    f"Repeat this text word for word, then stop:\n{_LETTER}",
    f"Add a docstring to each function and change nothing else:\n{_CODE}",
    f"Correct the spelling where it is wrong and repeat the rest unchanged:\n{_LETTER.replace('weekdays', 'weakdays')}",
)
_FACTS = (
    "What is the capital of Australia, and when did it become the capital?",
    "How does a bicycle stay upright while it moves?",
    "List the planets of the solar system in order of their distance from the sun.",
    "What is the difference between weather and climate?",
)
_CHAT = (
    "I have two days in a city by the sea and it rains. What could I do?",
    "My neighbour plays the piano at night. How do I talk to her about it?",
    "Tell me something nice about Mondays.",
    "I want to learn to cook. Where do I begin?",
)
KINDS = (
    Kind("quote and edit", 0.0, _QUOTES),
    Kind("facts", 0.0, _FACTS),
    Kind("chat", 0.7, _CHAT),
    Kind("high temperature", 1.2, _CHAT),
)
