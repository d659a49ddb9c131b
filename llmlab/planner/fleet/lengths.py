"""How long prompts and answers are: distributions to draw from, with a seeded generator."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random

from llmlab.errors import InvalidParameter

Z99 = 2.3263478740408408
"""99 % of a normal distribution lie below its mean plus this many standard deviations."""


@dataclass(frozen=True)
class Lengths:
    """Numbers of tokens; ``text`` says which distribution, ``draw(generator)`` gives one of at least 1."""

    text: str
    draw: Callable[[Random], int]

    def __str__(self) -> str:
        return self.text


def fixed(tokens: int) -> Lengths:
    """Always the same length."""
    at_least_one("tokens", tokens)
    return Lengths(f"{tokens} tokens", lambda _: tokens)


def uniform(low: int, high: int) -> Lengths:
    """Every length from ``low`` to ``high`` is as likely."""
    at_least_one("low", low)
    if high < low:
        raise InvalidParameter(f"high={high!r} is below low={low!r}: swap them")
    span = high - low + 1
    return Lengths(f"{low} to {high} tokens", lambda generator: low + int(generator.random() * span))


def lognormal(median: float, p99: float, most: int = 32_768) -> Lengths:
    """Most are short, few are long: log-normal with this median and 99th percentile, cut at ``most``."""
    if not 1 <= median < p99:
        raise InvalidParameter(f"median={median!r} and p99={p99!r}: the median is at least 1 and below p99")
    mu, sigma = math.log(median), math.log(p99 / median) / Z99

    def draw(generator: Random) -> int:
        return min(max(1, round(math.exp(generator.gauss(mu, sigma)))), most)

    return Lengths(f"log-normal, median {median:g}, 99 % below {p99:g} tokens", draw)


def observed(values: Sequence[int]) -> Lengths:
    """Drawn from lengths that were recorded, each as likely."""
    found = [int(value) for value in values if value >= 1]
    if not found:
        raise InvalidParameter("there is no length of at least 1 among the values: give recorded lengths")
    return Lengths(f"drawn from {len(found)} recorded lengths", lambda generator: generator.choice(found))


def at_least_one(name: str, value: int) -> None:
    """Raise ``InvalidParameter`` for anything but a whole number of at least 1."""
    if type(value) is not int or value < 1:
        raise InvalidParameter(f"{name}={value!r} must be a whole number of at least 1")
