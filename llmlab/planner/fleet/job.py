"""One request in the simulation, and what is measured about it."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field

from llmlab.engine.request import Request
from llmlab.planner.fleet.arrivals import Arrival


@dataclass(slots=True, eq=False)
class Job:
    """A request with the ``output`` it will have; times are nanoseconds of the simulation, -1 until they come.

    ``whole``: the request itself, while ``request`` is only its prompt on a prefill replica.
    ``last_ns``: when its latest token came. ``done_ns``: when its latest replica was done with it.
    """

    number: int
    arrival: Arrival
    request: Request
    output: Sequence[int]
    whole: Request | None = None
    scheduled_ns: int = -1
    first_ns: int = -1
    last_ns: int = -1
    done_ns: int = -1

    @property
    def num_left(self) -> int:
        """Tokens of its output that are still to come on this replica."""
        return len(self.output) - self.request.num_output


@dataclass(slots=True)
class Gaps:
    """Times between two tokens of one request: nanoseconds, and how often each occurred."""

    ns: array = field(default_factory=lambda: array("q"))
    times: array = field(default_factory=lambda: array("q"))

    def add(self, gap_ns: int, times: int = 1) -> None:
        """``times`` gaps of this length."""
        self.ns.append(gap_ns)
        self.times.append(times)
