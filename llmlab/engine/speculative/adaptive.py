"""How many tokens to draft: as many as are likely enough to be worth their place in the batch."""

from __future__ import annotations

from dataclasses import dataclass, field

PRIOR, PRIOR_WEIGHT = 0.7, 4.0
DECAY = 0.9
COST_ALONE, COST_PER_NEIGHBOUR = 0.15, 0.05
PAUSE = 32


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


def cost(batch_size: int) -> float:
    """What one more position costs in a step, as a share of a decode step of one request.

    Alone a request pays for reading the weights whatever it computes; in a larger batch more of the step is arithmetic,
    so positions that turn out useless take time from everybody.
    """
    return min(1.0, COST_ALONE + COST_PER_NEIGHBOUR * (batch_size - 1))


def best_length(rate: float, batch_size: int, longest: int) -> int:
    """The most draft tokens of which the last is still worth computing.

    The ``i``-th is kept with probability ``rate ** i``, because all before it must be; that has to exceed its cost.
    """
    length, chance = 0, rate
    while length < longest and chance > cost(batch_size):
        length += 1
        chance *= rate
    return length


@dataclass(slots=True)
class Adaptive:
    """Chooses ``k`` per request from its own acceptance and the size of the batch. ``longest``: never more."""

    longest: int
    requests: dict[str, Acceptance] = field(default_factory=dict)

    def choose(self, request_id: str, batch_size: int) -> tuple[int, str | None]:
        """``k`` for the next draft, and why it changed (``None`` when it did not)."""
        state = self.requests.setdefault(request_id, Acceptance())
        if state.rest > 0:
            state.rest -= 1
            return 0, None
        was, now = state.k, best_length(state.rate, batch_size, self.longest)
        if now == 0 and was == 0:  # the pause is over: one token tells whether the text has become predictable
            state.k = 1
            return 1, f"tried again after {PAUSE} steps without a draft"
        state.k = now
        if now == 0:
            state.rest = PAUSE
        if now == was or was is None:
            return now, None if was is not None else f"begins with {now}"
        worth = f"a draft token must be kept with a chance above {cost(batch_size):.2f}"
        return now, f"acceptance {state.rate:.2f} in a batch of {batch_size}: {worth}"

    def add(self, request_id: str, accepted: int, judged: int) -> None:
        """How the tokens of one round fared."""
        self.requests.setdefault(request_id, Acceptance()).add(accepted, judged)

    def rate(self, request_id: str) -> float:
        """Measured acceptance of a request."""
        return self.requests.setdefault(request_id, Acceptance()).rate

    def forget(self, request_id: str) -> None:
        """The request ended."""
        self.requests.pop(request_id, None)
