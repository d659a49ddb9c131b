"""Discrete events: arrivals, hand-overs and ends of steps, in order of time."""

from __future__ import annotations

from collections.abc import Iterator
from heapq import heappop, heappush
from itertools import count
from typing import Any

from llmlab.engine.params import SamplingParams
from llmlab.engine.request import Request
from llmlab.gateway.balancing import is_overloaded, least_loaded, owner
from llmlab.planner.fleet.arrivals import Arrival, Workload
from llmlab.planner.fleet.job import Job
from llmlab.planner.fleet.replica import Replica
from llmlab.planner.fleet.result import FleetResult, Ledger
from llmlab.planner.fleet.settings import Fleet

# of what happens at the same time: what has arrived takes part in the step that begins
ARRIVAL, HAND_OVER, STEP_END, BEGIN = 0, 1, 2, 3


def simulate(fleet: Fleet, workload: Workload, *, record: bool | int = False, skip: bool = True) -> FleetResult:
    """Serve a workload; the same arguments give the same result.

    ``record``: keep every event, so that :attr:`FleetResult.traces` hold what an engine would have recorded. That is
    for some hundred requests; for a larger run give a number: events are kept until so many have arrived, then there
    is a gap. Numbers for each request are always kept. ``skip=False`` takes every step one by one;
    nothing but the time it takes changes. Raises ``PoolTooSmall`` for a request that no replica could ever finish.
    """
    run = _Run(fleet, workload, record, skip)
    run.serve()
    return run.result()


class _Run:
    """One simulation under way."""

    def __init__(self, fleet: Fleet, workload: Workload, record: bool | int, skip: bool) -> None:
        self.fleet, self.workload = fleet, workload
        options = {"record": bool(record), "skip": skip}
        self._last_recorded = None if isinstance(record, bool) else record
        self.replicas = [
            Replica(
                i,
                f"replica {i}",
                fleet,
                decodes_only=fleet.prefill_replicas > 0,
                on_end=self._ended,
                **options,
            )
            for i in range(fleet.replicas)
        ]
        self.prefills = [
            Replica(fleet.replicas + i, f"prefill {i}", fleet, on_end=self._prefilled, **options)
            for i in range(fleet.prefill_replicas)
        ]
        self._everyone = [*self.replicas, *self.prefills]
        self.ledger = Ledger()
        self._params = SamplingParams()
        self._arrivals: Iterator[Arrival] = iter(workload)
        self._heap: list[tuple[int, int, int, Any]] = []
        self._numbers, self._serial = count(), count()
        self._turn = 0
        self._link_free = [0] * len(self.prefills)
        self._owners: dict[bytes, int] = {}

    def serve(self) -> None:
        """Until nothing is left to happen."""
        self._next_arrival()
        while self._heap:
            t_ns, kind, _, what = heappop(self._heap)
            if kind == STEP_END:
                if what.next_ns == t_ns:  # else it was cut short by an arrival
                    what.complete()
                    self._watch(what, t_ns)
            elif kind == BEGIN:
                what.begin(t_ns)
                self._watch(what, t_ns)
            elif kind == ARRIVAL:
                self._arrive(what, t_ns)
            else:
                self._hand_over(what, t_ns)

    def _push(self, t_ns: int, kind: int, what: Any) -> None:
        heappush(self._heap, (t_ns, kind, next(self._serial), what))

    def _watch(self, replica: Replica, t_ns: int) -> None:
        if replica.next_ns is not None:
            self._push(replica.next_ns, STEP_END, replica)
        elif replica.jobs:
            self._push(t_ns, BEGIN, replica)

    def _next_arrival(self) -> None:
        arrival = next(self._arrivals, None)
        if arrival is not None:
            self._push(arrival.t_ns, ARRIVAL, (arrival, True))

    def _arrive(self, what: tuple[Arrival, bool], t_ns: int) -> None:
        arrival, is_first = what
        number = next(self._numbers)
        if number == self._last_recorded:
            for each in self._everyone:
                each.stop_recording(t_ns)
        job = Job(number, arrival, self._request(number, arrival), arrival.output)
        first = self.prefills if self.prefills and len(arrival.prompt) > 1 else self.replicas
        replica = first[self._route(arrival.key, first)]
        self.ledger.arrived(job, replica.number, sum(each.load for each in self._everyone))
        if replica in self.prefills:
            job.whole, job.request, job.output = job.request, self._prompt_only(job), ()
        replica.receive(job, t_ns)
        self._watch(replica, t_ns)
        if is_first:
            self._next_arrival()

    def _request(self, number: int, arrival: Arrival) -> Request:
        return Request(f"r{number}", list(arrival.prompt), self._params, 0, arrival.max_tokens, arrival=number)

    def _prompt_only(self, job: Job) -> Request:
        """What a prefill replica is asked for: all of the prompt but its last token, and nothing to be written."""
        whole = job.request
        return Request(whole.id, whole.prompt_token_ids[:-1], self._params, 0, 0, arrival=whole.arrival)

    # -- routing: the rules of the gateway ------------------------------------------------------------------

    def _route(self, key: bytes, replicas: list[Replica]) -> int:
        if len(replicas) == 1:
            return 0
        if self.fleet.routing == "round_robin":
            self._turn += 1
            return (self._turn - 1) % len(replicas)
        loads = [replica.load for replica in replicas]
        if self.fleet.routing == "prefix_affine":
            place = self._owner(key, replicas)
            if not is_overloaded(place, loads):
                return place
        return least_loaded(loads)

    def _owner(self, key: bytes, replicas: list[Replica]) -> int:
        if key not in self._owners:
            self._owners[key] = owner(key, [replica.name for replica in replicas])
        return self._owners[key]

    # -- ends -----------------------------------------------------------------------------------------------

    def _ended(self, job: Job) -> None:
        self.ledger.ended(job)
        follow_up = job.arrival.follow_up and job.arrival.follow_up(job.last_ns)
        if follow_up is not None:
            self._push(follow_up.t_ns, ARRIVAL, (follow_up, False))

    def _prefilled(self, job: Job) -> None:
        """All of the prompt but its last token is computed: its K/V goes to a replica that decodes."""
        prefill = self.ledger.replica[job.number] - len(self.replicas)
        nbytes = job.request.num_prompt * self.fleet.kv_bytes_per_token
        start = max(job.done_ns, self._link_free[prefill])
        end = self._link_free[prefill] = start + int(1e9 * self.fleet.link.time_s(nbytes))
        self.ledger.handed(job, end - job.done_ns, nbytes)
        self._push(end, HAND_OVER, (job, start, nbytes))

    def _hand_over(self, what: tuple[Job, int, int], t_ns: int) -> None:
        job, start, nbytes = what
        replica = self.replicas[least_loaded([each.load for each in self.replicas])]
        prefill_done, job.whole.num_cached = job.done_ns, job.request.num_cached
        job.request, job.output = job.whole, job.arrival.output
        replica.events.handed(job, (job.scheduled_ns, prefill_done), (start, t_ns), nbytes)
        replica.take_over(job, t_ns)
        self._watch(replica, t_ns)

    def result(self) -> FleetResult:
        """What came of it."""
        for replica in self._everyone:
            assert not replica.jobs, "the simulation ended with requests unserved"
            replica.scheduler.check_integrity()
        return FleetResult.of(self.fleet, self.workload.text, self.ledger, self._everyone)
