"""How many tokens to draft: as many as are likely enough to be worth their place in the batch."""

from __future__ import annotations

from dataclasses import dataclass, field

PRIOR, PRIOR_WEIGHT = 0.7, 4.0
DECAY = 0.9
PAUSE = 32


@dataclass(frozen=True, slots=True)
class StepTime:
    """How long a step takes, in steps of one row, by the rows it computes.

    A step reads the weights once, whatever it computes: up to ``free`` rows each more costs ``little``. From there on
    arithmetic grows with the rows, and ``balance`` of them take as long as the reading.
    """

    free: float
    balance: float
    little: float = 0.015

    def of(self, rows: int) -> float:
        """Time of a step of ``rows`` rows."""
        return 1 + self.little * min(rows - 1, self.free) + max(0.0, rows - self.free) / self.balance


# CPU with AVX-512: measured. Elsewhere: the ratio of arithmetic to bandwidth of data centre cards.
CPU, ELSEWHERE = StepTime(free=5, balance=15), StepTime(free=16, balance=256)


def step_time_on(device: str) -> StepTime:
    """What a step takes on ``device``."""
    return CPU if device == "cpu" else ELSEWHERE


@dataclass(slots=True)
class Acceptance:
    """A decaying count of how a request's draft tokens fared, begun with a guess worth a few tokens.

    ``k`` is the length in force; ``rest`` counts rounds until a request that is not drafted for is tried again.
    """

    accepted: float = PRIOR * PRIOR_WEIGHT
    judged: float = PRIOR_WEIGHT
    k: int | None = None
    rest: int = 0

    @property
    def rate(self) -> float:
        """Share of judged tokens that were accepted."""
        return self.accepted / self.judged

    def add(self, accepted: int, judged: int) -> None:
        """One round: ``judged`` counts tokens up to and including the first rejected one."""
        self.accepted = DECAY * self.accepted + accepted
        self.judged = DECAY * self.judged + judged


def best_length(rate: float, batch_size: int, longest: int, draft_cost: float = 0.0, step: StepTime = CPU) -> int:
    """The draft length that gives the most output per time when all of a batch draft as much.

    The ``i``-th token is kept with probability ``rate ** i``, because all before it must be; it lengthens the step
    whether it is kept or not, and proposing it takes ``draft_cost`` steps. Of equal lengths the shorter one.
    """
    tokens, chance, best, length = 1.0, 1.0, 1.0, 0
    for k in range(1, longest + 1):
        chance *= rate
        tokens += chance
        speed = tokens / slowdown(k, batch_size, draft_cost, step)
        if speed > best + 1e-9:
            best, length = speed, k
    return length


def slowdown(k: int, batch_size: int, draft_cost: float, step: StepTime) -> float:
    """Time of a step with ``k`` draft tokens for every request, in steps without."""
    return step.of(batch_size * (k + 1)) / step.of(batch_size) + k * draft_cost


@dataclass(slots=True)
class Adaptive:
    """Chooses ``k`` per request from its own acceptance and the size of the batch. ``longest``: never more.

    ``draft_cost``: what proposing one token takes, as a share of a decode step; ``step``: what a step takes.
    """

    longest: int
    draft_cost: float = 0.0
    step: StepTime = CPU
    requests: dict[str, Acceptance] = field(default_factory=dict)

    def choose(self, request_id: str, batch_size: int) -> tuple[int, str | None]:
        """``k`` for the next draft, and why it changed (``None`` when it did not)."""
        state = self.requests.setdefault(request_id, Acceptance())
        if state.rest > 0:
            state.rest -= 1
            return 0, None
        was, now = state.k, best_length(state.rate, batch_size, self.longest, self.draft_cost, self.step)
        if now == 0 and was == 0:  # the pause is over: one token tells whether the text has become predictable
            state.k = 1
            return 1, f"tried again after {PAUSE} steps without a draft"
        state.k = now
        if now == 0:
            state.rest = PAUSE
        if now == was or was is None:
            return now, None if was is not None else f"begins with {now}"
        tokens = max(now, 1)
        longer = slowdown(tokens, batch_size, self.draft_cost, self.step)
        length = f"a step with drafts of {tokens} takes {longer:.2f} times as long"
        return now, f"acceptance {state.rate:.2f} in a batch of {batch_size}, where {length}"

    def add(self, request_id: str, accepted: int, judged: int) -> None:
        """How the tokens of one round fared."""
        self.requests.setdefault(request_id, Acceptance()).add(accepted, judged)

    def rate(self, request_id: str) -> float:
        """Measured acceptance of a request."""
        return self.requests.setdefault(request_id, Acceptance()).rate

    def forget(self, request_id: str) -> None:
        """The request ended."""
        self.requests.pop(request_id, None)
