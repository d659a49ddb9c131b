"""When requests arrive, and what they bring: Poisson, bursts, agents whose prompts grow, or a recorded run again.

Token ids are made up: numbers that no two texts share unless they are meant to. What is equal is equal to the block
pool, so prefix hits are real hits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import count
from random import Random

from llmlab.errors import InvalidParameter
from llmlab.planner.fleet.lengths import Lengths, at_least_one, fixed
from llmlab.trace.trace import Trace

SECOND = 1_000_000_000
SHARED = 1 << 40  # ids of shared beginnings start here, far above those of single texts


@dataclass(frozen=True, slots=True)
class Arrival:
    """A request on its way to the fleet. ``output`` are the tokens it will be answered with.

    ``max_tokens`` is what the caller allows, at least ``len(output)``. ``key`` is equal for requests that are likely to
    share a prefix. ``follow_up`` gives the request that is sent when this one has been answered at a time, or ``None``.
    """

    t_ns: int
    prompt: Sequence[int]
    output: Sequence[int]
    max_tokens: int
    key: bytes = b""
    follow_up: Callable[[int], Arrival | None] | None = None


@dataclass(frozen=True)
class Workload:
    """Arrivals in order of time, the same ones each time it is iterated. ``text`` says what they are."""

    text: str
    make: Callable[[], Iterator[Arrival]]

    def __iter__(self) -> Iterator[Arrival]:
        return self.make()

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True, slots=True)
class Prefixes:
    """``number`` beginnings of ``tokens`` tokens that prompts share, such as system prompts; each as likely."""

    number: int = 0
    tokens: int = 0

    def pick(self, generator: Random) -> tuple[list[int], bytes | None]:
        """One of them, and the key of those who share it."""
        if not self.number or not self.tokens:
            return [], None
        chosen = int(generator.random() * self.number)
        first = SHARED + chosen * self.tokens
        return list(range(first, first + self.tokens)), b"prefix %d" % chosen


def poisson(
    rate: float,
    requests: int,
    prompt: Lengths,
    output: Lengths,
    *,
    prefixes: Prefixes = Prefixes(),
    max_tokens: int | None = None,
    seed: int = 0,
) -> Workload:
    """``requests`` independent requests, ``rate`` a second on average.

    ``max_tokens``: what every caller allows; ``None``: just as much as is used. Raises ``InvalidParameter`` for a rate
    or a number that is not positive.
    """
    _positive(rate=rate)

    def times(generator: Random) -> Iterator[float]:
        t = 0.0
        while True:
            t += generator.expovariate(rate)
            yield t

    return _independent(f"Poisson, {rate:g} a second", times, requests, prompt, output, prefixes, max_tokens, seed)


def bursty(
    rate: float,
    requests: int,
    prompt: Lengths,
    output: Lengths,
    *,
    on_s: float = 2.0,
    off_s: float = 8.0,
    prefixes: Prefixes = Prefixes(),
    max_tokens: int | None = None,
    seed: int = 0,
) -> Workload:
    """``rate`` a second on average, all of them in bursts of ``on_s`` seconds with ``off_s`` of silence between."""
    _positive(rate=rate, on_s=on_s, off_s=off_s)
    within = rate * (on_s + off_s) / on_s

    def times(generator: Random) -> Iterator[float]:
        busy = 0.0
        while True:
            busy += generator.expovariate(within)
            yield busy + off_s * int(busy / on_s)

    text = f"bursts of {on_s:g} s every {on_s + off_s:g} s, {rate:g} a second on average"
    return _independent(text, times, requests, prompt, output, prefixes, max_tokens, seed)


def _independent(
    text: str,
    times: Callable[[Random], Iterator[float]],
    requests: int,
    prompt: Lengths,
    output: Lengths,
    prefixes: Prefixes,
    max_tokens: int | None,
    seed: int,
) -> Workload:
    at_least_one("requests", requests)
    if max_tokens is not None:
        at_least_one("max_tokens", max_tokens)

    def make() -> Iterator[Arrival]:
        clock, generator, fresh = times(Random(f"{seed} times")), Random(f"{seed} lengths"), 1
        for number in range(requests):
            shared, key = prefixes.pick(generator)
            own, length = prompt.draw(generator), output.draw(generator)
            if max_tokens is not None:
                length = min(length, max_tokens)
            ids = [*shared, *range(fresh, fresh + own)]
            answer = range(fresh + own, fresh + own + length)
            fresh += own + length
            yield Arrival(int(next(clock) * SECOND), ids, answer, max_tokens or length, key or b"request %d" % number)

    shares = f" after one of {prefixes.number} shared beginnings of {prefixes.tokens}" if prefixes.number else ""
    return Workload(f"{requests:,} requests ({text}), prompts of {prompt}{shares}, answers of {output}", make)


def agents(
    rate: float,
    sessions: int,
    turns: int,
    added: Lengths,
    output: Lengths,
    *,
    think_s: float = 1.0,
    system: int = 256,
    seed: int = 0,
) -> Workload:
    """``sessions`` begin at ``rate`` a second; each sends ``turns`` requests, the next when the last is answered.

    A turn's prompt is everything before it, ``system`` tokens that all sessions share first, and ``added`` tokens (a
    question, a tool's result). Between an answer and the next request lie ``think_s`` seconds on average (exponential).
    """
    _positive(rate=rate)
    at_least_one("sessions", sessions)
    at_least_one("turns", turns)
    if think_s < 0 or system < 0:
        raise InvalidParameter(f"think_s={think_s!r}, system={system!r}: neither can be negative")

    def make() -> Iterator[Arrival]:
        clock, t = Random(f"{seed} times"), 0.0
        for number in range(sessions):
            t += clock.expovariate(rate)
            session = _Session(number, turns, added, output, think_s, system, Random(f"{seed} session {number}"))
            yield session.turn(int(t * SECOND))

    text = (
        f"{sessions:,} sessions of {turns} turns ({rate:g} begin a second), {system} shared tokens first, "
        f"each turn adds {added} and is answered with {output}"
    )
    return Workload(text, make)


@dataclass(slots=True)
class _Session:
    """One agent's conversation; ``length`` is how many tokens of its own it has so far."""

    number: int
    turns: int
    added: Lengths
    output: Lengths
    think_s: float
    system: int
    generator: Random
    length: int = 0

    def turn(self, t_ns: int) -> Arrival:
        """The next request."""
        self.turns -= 1
        first = (self.number + 1) << 20
        self.length += self.added.draw(self.generator)
        prompt = [*range(SHARED, SHARED + self.system), *range(first, first + self.length)]
        answer = range(first + self.length, first + self.length + self.output.draw(self.generator))
        self.length += len(answer)
        return Arrival(t_ns, prompt, answer, len(answer), b"session %d" % self.number, self._follow)

    def _follow(self, answered_ns: int) -> Arrival | None:
        if not self.turns:
            return None
        pause = self.generator.expovariate(1 / self.think_s) if self.think_s else 0.0
        return self.turn(answered_ns + int(pause * SECOND))


def replay(trace: Trace) -> Workload:
    """The requests of a recorded trace: the same times, prompts and answers. Those that did not end are left out.

    Raises ``InvalidParameter`` when nothing is left.
    """
    index = trace.index
    answers: dict[str, list[int]] = {request_id: [] for request_id in index.submitted}
    for token in index.tokens:
        if token.request_id in answers:
            answers[token.request_id].append(token.token_id)
    kept = [event for event in index.submitted.values() if event.request_id in index.finished]
    kept = sorted((event for event in kept if answers[event.request_id]), key=lambda event: event.t_ns)
    if not kept:
        raise InvalidParameter("the trace has no request that was submitted and answered: record one")
    start = kept[0].t_ns

    def make() -> Iterator[Arrival]:
        for number, event in zip(count(), kept, strict=False):
            answer = answers[event.request_id]
            limit = max(event.params.get("max_tokens") or 0, len(answer))
            yield Arrival(event.t_ns - start, event.prompt_token_ids, answer, limit, b"request %d" % number)

    return Workload(f"{len(kept)} recorded requests", make)


def at_once(number: int, prompt: int, output: int, *, max_tokens: int | None = None) -> Workload:
    """``number`` equal requests that all arrive at the beginning."""
    once = _independent(
        "all at once",
        lambda _: iter(lambda: 0.0, None),
        number,
        fixed(prompt),
        fixed(output),
        Prefixes(),
        max_tokens,
        0,
    )
    return once


def _positive(**values: float) -> None:
    for name, value in values.items():
        if not value > 0:
            raise InvalidParameter(f"{name}={value!r} must be above 0")
