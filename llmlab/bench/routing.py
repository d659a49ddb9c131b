"""What routing does to the prefix cache: agent-like sessions with growing prompts before the same replicas.

Every session sends its whole conversation so far with each turn, so the next prompt begins with the last one and its
answer. A replica that served the last turn has most of the next prompt in its cache; another one has none of it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from statistics import quantiles
from time import perf_counter
from typing import TYPE_CHECKING, Any

import httpx2

from llmlab.errors import BenchError
from llmlab.gateway.balancing import ROUTINGS
from llmlab.parallel.replicas import Replicas

if TYPE_CHECKING:
    from rich.table import Table

RULE = "Follow rule {number} of the house of {name}: answer in one short sentence and name no numbers. "


@dataclass(frozen=True, slots=True)
class Turn:
    """One request of a session: prompt tokens, how many of them a cache held, seconds to the first token, and where it
    was served."""

    session: int
    turn: int
    prompt_tokens: int
    cached_tokens: int
    ttft_s: float
    backend: str


@dataclass(frozen=True, slots=True)
class RoutingFigures:
    """All turns under one routing."""

    routing: str
    turns: tuple[Turn, ...]

    @property
    def prompt_tokens(self) -> int:
        """Prompt tokens of all turns."""
        return sum(turn.prompt_tokens for turn in self.turns)

    @property
    def cached_tokens(self) -> int:
        """Those that a prefix cache served."""
        return sum(turn.cached_tokens for turn in self.turns)

    @property
    def hit_rate(self) -> float:
        """Share of prompt tokens that was not computed."""
        return self.cached_tokens / self.prompt_tokens

    @property
    def moves(self) -> int:
        """Turns served by another replica than the turn before of the same session."""
        last: dict[int, str] = {}
        moved = 0
        for turn in sorted(self.turns, key=lambda t: (t.session, t.turn)):
            moved += last.get(turn.session, turn.backend) != turn.backend
            last[turn.session] = turn.backend
        return moved

    def ttft_ms(self, percent: int) -> float:
        """Milliseconds to the first token that ``percent`` of the turns did not exceed."""
        return quantiles((turn.ttft_s for turn in self.turns), n=100, method="inclusive")[percent - 1] * 1e3


def measure_routing(
    replicas: Replicas,
    routings: Sequence[str] = ROUTINGS,
    *,
    sessions: int = 5,
    num_turns: int = 4,
    max_tokens: int = 16,
    at_once: bool = True,
    progress: Callable[[str], None] = lambda _: None,
) -> list[RoutingFigures]:
    """Run the same sessions under each routing, each with words of its own so that none finds another's cache.

    ``at_once``: every session is a client that waits for its own answers only; else turns are sent one by one, session
    after session, so that which replica gets what repeats. A number of sessions that the number of replicas divides
    would make round robin send a session to one replica by accident. Raises ``BenchError`` for a failed request.
    """
    figures = []
    for routing in routings:
        progress(routing)
        with replicas.gateway(routing) as front:
            talks = [Session(front.url, f"{routing} {i}", i, max_tokens) for i in range(sessions)]
            figures.append(RoutingFigures(routing, tuple(_run(talks, num_turns, at_once))))
    return figures


def _run(talks: list[Session], num_turns: int, at_once: bool) -> list[Turn]:
    if not at_once:
        return [talk.turn(number) for number in range(num_turns) for talk in talks]
    with ThreadPoolExecutor(len(talks)) as pool:
        done = pool.map(lambda talk: [talk.turn(number) for number in range(num_turns)], talks)
        return [turn for turns in done for turn in turns]


class Session:
    """One conversation, over OpenAI's wire format, that grows by every question and answer."""

    def __init__(self, url: str, name: str, number: int, max_tokens: int) -> None:
        self.url, self.number, self.max_tokens = url, number, max_tokens
        rules = f"{number} {name}: " + "".join(RULE.format(number=i, name=name) for i in range(6))
        self.messages = [{"role": "system", "content": rules}]

    def turn(self, number: int) -> Turn:
        """Ask the next question and take the answer into the conversation."""
        self.messages.append({"role": "user", "content": f"Question {number}: what should be done next, and why?"})
        body = {"model": "any", "messages": self.messages, "max_completion_tokens": self.max_tokens, "stream": True}
        body["stream_options"] = {"include_usage": True}
        text, usage, first, backend = self._stream(body)
        self.messages.append({"role": "assistant", "content": text})
        cached = (usage.get("prompt_tokens_details") or {}).get("cached_tokens", 0)
        return Turn(self.number, number, usage["prompt_tokens"], cached, first, backend)

    def _stream(self, body: dict[str, Any]) -> tuple[str, dict[str, Any], float, str]:
        text, usage, first, start = "", None, None, perf_counter()
        with httpx2.stream("POST", f"{self.url}/v1/chat/completions", json=body, timeout=120) as response:
            if response.status_code != 200:
                response.read()
                raise BenchError(f"a turn was answered with {response.status_code}: {response.text[:200]}")
            for line in response.iter_lines():
                if not line.startswith("data: {"):
                    continue
                chunk = json.loads(line.removeprefix("data: "))
                usage = chunk.get("usage") or usage
                pieces = [choice["delta"].get("content") for choice in chunk.get("choices", ())]
                if first is None and any(pieces):
                    first = perf_counter() - start
                text += "".join(filter(None, pieces))
        if usage is None:
            raise BenchError("a turn ended without its usage")
        return text, usage, perf_counter() - start if first is None else first, response.headers["llmlab-backend"]


def routing_table(figures: Sequence[RoutingFigures]) -> Table:
    """The figures for a terminal."""
    from rich.table import Table

    table = Table(title="Routing before replicas: prefix hits and time to the first token")
    for name in ("routing", "turns", "moved", "prompt tokens", "from a cache", "hit rate", "TTFT p50", "TTFT p90"):
        table.add_column(name, justify="left" if name == "routing" else "right")
    for each in figures:
        times = (f"{each.ttft_ms(50):,.0f} ms", f"{each.ttft_ms(90):,.0f} ms")
        counts = (len(each.turns), each.moves, each.prompt_tokens, each.cached_tokens)
        table.add_row(each.routing, *(f"{count:,}" for count in counts), f"{each.hit_rate:.0%}", *times)
    return table


def routing_object(figures: Sequence[RoutingFigures]) -> dict[str, Any]:
    """All measurements as JSON types."""
    return {each.routing: {"turns": [asdict(turn) for turn in each.turns]} for each in figures}
