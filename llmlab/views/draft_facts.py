"""What became of drafted tokens: the facts of the draft rounds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from llmlab.trace.drafts import num_tokens
from llmlab.trace.events import DraftPolicy, DraftRound
from llmlab.trace.index import Index

ACCEPTED, REJECTED, DROPPED = "accepted", "rejected", "dropped"


class Place(NamedTuple):
    """How often the token at one place of a draft was judged, and kept."""

    accepted: int
    judged: int


@dataclass(frozen=True, slots=True)
class Totals:
    """Counts over some rounds. ``drafted`` counts each draft once, also when it was verified in several steps;
    ``not_judged`` are those of it that came after a rejected token, or whose request ended before.
    ``num_tokens`` are output tokens."""

    rounds: int
    drafted: int
    judged: int
    accepted: int
    rejected: int
    dropped: int
    num_tokens: int
    places: tuple[Place, ...]

    @property
    def not_judged(self) -> int:
        return self.drafted - self.judged

    @property
    def acceptance_length(self) -> float:
        """Mean output tokens per verification; needs a round."""
        return self.num_tokens / self.rounds


def states(round_: DraftRound) -> list[str]:
    """What became of each judged token: ``accepted``, ``rejected``, or ``dropped`` since the output had ended."""
    kept = min(max(round_.num_accepted, 0), len(round_.tokens))  # whatever a file claims
    rest = len(round_.tokens) - kept
    return [ACCEPTED] * kept + [REJECTED if round_.outcome == "recovered" else DROPPED] * rest


def offsets(rounds: Sequence[DraftRound]) -> list[int]:
    """How many tokens of its draft were judged in earlier steps, for every round."""
    reached: dict[tuple[str, int], int] = {}
    found = []
    for round_ in rounds:
        key = (round_.request_id, round_.number)
        found.append(reached.get(key, 0))
        reached[key] = found[-1] + len(round_.tokens)
    return found


def totals(rounds: Sequence[DraftRound]) -> Totals:
    """Counts over ``rounds``, all of some requests'."""
    drafts = {(r.request_id, r.number): r.num_drafted for r in rounds}
    kinds = [state for r in rounds for state in states(r)]
    return Totals(
        rounds=len(rounds),
        drafted=sum(drafts.values()),
        judged=len(kinds),
        accepted=kinds.count(ACCEPTED),
        rejected=kinds.count(REJECTED),
        dropped=kinds.count(DROPPED),
        num_tokens=sum(map(num_tokens, rounds)),
        places=tuple(_places(rounds)),
    )


def _places(rounds: Sequence[DraftRound]) -> list[Place]:
    counts: list[list[int]] = []
    for round_, offset in zip(rounds, offsets(rounds), strict=True):
        for i in range(len(round_.tokens)):
            while len(counts) <= offset + i:
                counts.append([0, 0])
            counts[offset + i][0] += i < round_.num_accepted
            counts[offset + i][1] += 1
    return [Place(accepted, judged) for accepted, judged in counts]


def left(round_: DraftRound, offset: int) -> int:
    """Tokens of the draft that this round did not come to."""
    return max(round_.num_drafted - offset - len(round_.tokens), 0)


def policies_of(index: Index, request_id: str) -> list[DraftPolicy]:
    """Changes of ``k`` that hold for a request, those for all included."""
    return [event for event in index.draft_policies if event.request_id in (request_id, None)]


def in_order(rounds: Sequence[DraftRound], policies: Sequence[DraftPolicy]) -> list[DraftRound | DraftPolicy]:
    """Rounds, each after the changes of ``k`` that were made by its step."""
    return sorted([*policies, *rounds], key=lambda event: (event.step, isinstance(event, DraftRound)))
