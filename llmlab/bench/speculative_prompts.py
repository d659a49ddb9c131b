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


_CODE = """class Basket:
    def __init__(self, owner):
        self.owner = owner
        self.prices = []

    def add(self, price):
        self.prices.append(price)

    def total(self, tax):
        result = 0
        for price in self.prices:
            result = result + price
        return result * (1 + tax)

    def mean(self):
        if not self.prices:
            return 0
        return sum(self.prices) / len(self.prices)"""
_LETTER = (
    "The library in Mill Street opens at nine on weekdays and at ten on Saturdays. Books can be kept for three weeks "
    "and renewed twice, by telephone or at the desk. The reading room on the second floor closes half an hour earlier. "
    "Children under twelve need a card signed by a parent. Maps and old newspapers are kept in the cellar, and a "
    "librarian brings them up on request. Concerts take place in the garden on the first Sunday of every month, or in "
    "the large hall when it rains. Members of the society of friends pay nothing for them."
)
# what is asked for is longer than what the benchmark lets them answer, so that they quote to the end
_QUOTES = (
    f"Write this Python class again without any change:\n{_CODE}",
    f"Repeat this text word for word:\n{_LETTER}",
    f"Write this Python class again, with the method total renamed to sum_with_tax:\n{_CODE}",
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
    Kind("chat", 0.0, _CHAT),
    Kind("high temperature", 1.2, _CHAT),
)
