"""What the processes of a split model send each other in one step: messages, bytes, and the time on a link."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from llmlab.planner.links import Link, link


def all_reduce_sent(nbytes: float, ranks: int) -> float:
    """Bytes each rank sends to sum a tensor of ``nbytes`` in a ring: ``2 (p - 1) / p`` times its size (reduce-scatter,
    then all-gather; Patarasuk and Yuan 2009)."""
    return 2 * (ranks - 1) / ranks * nbytes


def all_gather_sent(nbytes: float, ranks: int) -> float:
    """Bytes each rank sends in a ring when it contributes ``nbytes``: its own and, passed on, all but one other's."""
    return (ranks - 1) * nbytes


def as_it_is(nbytes: float, ranks: int) -> float:
    """Bytes of a message to the next rank, and of an all-to-all, which counts only what is for other ranks."""
    return nbytes


_SENT: Mapping[str, Callable[[float, int], float]] = MappingProxyType(
    {"all_reduce": all_reduce_sent, "all_gather": all_gather_sent, "all_to_all": as_it_is, "send": as_it_is}
)
_ROUNDS: Mapping[str, Callable[[int], int]] = MappingProxyType(
    {
        "all_reduce": lambda ranks: 2 * (ranks - 1),
        "all_gather": lambda ranks: ranks - 1,
        "all_to_all": lambda ranks: ranks - 1,
        "send": lambda ranks: 1,
    }
)


@dataclass(frozen=True, slots=True)
class Messages:
    """``count`` communications of one kind in a step, each with ``nbytes`` from every rank that takes part.

    ``kind`` and ``place`` are those of :class:`~llmlab.trace.split_events.Collective`, and ``nbytes`` counts as its
    does: what one process contributes before any algorithm of the transport; of an ``all_to_all`` what is for others.
    """

    kind: str
    place: str
    count: int
    nbytes: float

    @property
    def total_bytes(self) -> float:
        """Contributed by one rank in the step."""
        return self.count * self.nbytes

    def sent_bytes(self, ranks: int) -> float:
        """What leaves one rank in the step, by the kind's usual algorithm."""
        return self.count * _SENT[self.kind](self.nbytes, ranks)

    def time_s(self, ranks: int, over: Link) -> float:
        """Seconds on a link, one communication after another, nothing overlapped."""
        each = over.time_s(_SENT[self.kind](self.nbytes, ranks), _ROUNDS[self.kind](ranks))
        return self.count * each


@dataclass(frozen=True, slots=True)
class Communication:
    """All messages of one step between ``ranks`` processes. COMPUTED."""

    split: str
    ranks: int
    num_tokens: int
    messages: tuple[Messages, ...]

    @property
    def nbytes(self) -> float:
        """What one rank contributes in the step, as the trace counts it."""
        return sum(each.total_bytes for each in self.messages)

    @property
    def sent_bytes(self) -> float:
        """What leaves one rank in the step."""
        return sum(each.sent_bytes(self.ranks) for each in self.messages)

    @property
    def num_messages(self) -> int:
        """Communications in the step."""
        return sum(each.count for each in self.messages)

    def at(self, place: str) -> Messages:
        """The messages of a place in the model. Raises ``KeyError`` where there are none."""
        return {each.place: each for each in self.messages}[place]

    def time_s(self, over: str | Link) -> float:
        """Seconds of the step that go into communication on a link, nothing overlapped with computing."""
        return sum(each.time_s(self.ranks, link(over)) for each in self.messages)
