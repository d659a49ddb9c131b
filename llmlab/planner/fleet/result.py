"""What came of a simulation: numbers for each request, a summary, and traces where events were recorded."""

from __future__ import annotations

from array import array
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from llmlab.errors import InvalidParameter
from llmlab.planner.fleet.settings import Fleet
from llmlab.trace.trace import Trace

if TYPE_CHECKING:
    from llmlab.planner.fleet.job import Job
    from llmlab.planner.fleet.replica import Replica


def _integers() -> array:
    return array("q")


@dataclass(slots=True)
class Ledger:
    """One entry a request, by number; ``seen`` is how many unfinished ones it met when it arrived."""

    arrived_ns: array = field(default_factory=_integers)
    scheduled_ns: array = field(default_factory=_integers)
    first_ns: array = field(default_factory=_integers)
    ended_ns: array = field(default_factory=_integers)
    num_prompt: array = field(default_factory=_integers)
    num_output: array = field(default_factory=_integers)
    num_cached: array = field(default_factory=_integers)
    num_preemptions: array = field(default_factory=_integers)
    replica: array = field(default_factory=_integers)
    seen: array = field(default_factory=_integers)
    transfer_ns: array = field(default_factory=_integers)
    transfer_bytes: int = 0

    def arrived(self, job: Job, replica: int, seen: int) -> None:
        """A request came, and was given to a replica."""
        self.arrived_ns.append(job.arrival.t_ns)
        self.num_prompt.append(job.request.num_prompt)
        self.num_output.append(len(job.arrival.output))
        self.replica.append(replica)
        self.seen.append(seen)
        for later in ("scheduled_ns", "first_ns", "ended_ns", "num_cached", "num_preemptions", "transfer_ns"):
            getattr(self, later).append(0)

    def ended(self, job: Job) -> None:
        """A request has its whole output."""
        number = job.number
        self.scheduled_ns[number], self.first_ns[number] = job.scheduled_ns, job.first_ns
        self.ended_ns[number] = job.last_ns
        self.num_cached[number] = job.request.num_cached
        self.num_preemptions[number] += job.request.num_preemptions

    def handed(self, job: Job, waited_ns: int, nbytes: int) -> None:
        """A prompt's K/V was sent to another replica."""
        self.transfer_ns[job.number] = waited_ns
        self.num_preemptions[job.number] += job.request.num_preemptions
        self.transfer_bytes += nbytes


@dataclass(frozen=True, slots=True)
class FleetSummary:
    """Figures of a whole run. Times in milliseconds; ``itl`` is the time between two tokens of a request.

    ``requests_per_s`` and ``output_tokens_per_s`` over the time from the first arrival to the last token.
    ``hit_rate``: prompt tokens served from the prefix cache. ``utilisation``: the share of that time in which steps
    ran, ``slots_used`` the share of places in the batch that were taken, means over replicas. ``in_system``: requests
    present on average. ``step_times`` says what the times come from.
    """

    requests: int
    seconds: float
    requests_per_s: float
    output_tokens_per_s: float
    ttft_p50_ms: float
    ttft_p90_ms: float
    ttft_p99_ms: float
    itl_p50_ms: float
    itl_p90_ms: float
    itl_p99_ms: float
    e2e_p50_ms: float
    queue_p50_ms: float
    hit_rate: float
    utilisation: float
    slots_used: float
    in_system: float
    preemptions: int
    step_times: str


@dataclass(frozen=True)
class FleetResult:
    """A simulated run. ``requests`` has a row for each request; ``replicas`` one for each replica.

    ``gaps`` are ``(nanoseconds, times)``: how often each time between two tokens of a request occurred.
    ``traces`` are what an engine in each replica's place would have recorded; empty when events were not recorded.
    """

    fleet: Fleet
    workload: str
    requests: pd.DataFrame
    replicas: pd.DataFrame
    gaps: tuple[np.ndarray, np.ndarray]
    traces: tuple[Trace, ...]
    transfer_bytes: int = 0

    @classmethod
    def of(cls, fleet: Fleet, workload: str, ledger: Ledger, replicas: list[Replica]) -> FleetResult:
        """Gather what the replicas and the ledger hold."""
        table = _requests(ledger, [replica.name for replica in replicas])
        span = max(ledger.ended_ns, default=0) - min(ledger.arrived_ns, default=0)
        gaps = tuple(
            np.concatenate([np.asarray(getattr(replica.gaps, name), dtype=np.int64) for replica in replicas])
            for name in ("ns", "times")
        )
        traces = tuple(Trace(replica.recorder.snapshot()) for replica in replicas if replica.is_recorded)
        return cls(fleet, workload, table, _replicas(replicas, span), gaps, traces, ledger.transfer_bytes)

    def __repr__(self) -> str:
        return f"<SIMULATED fleet of {len(self.replicas)}: {self.workload}; step times: {self.fleet.times.source}>"

    @property
    def trace(self) -> Trace:
        """The first replica's trace. Raises ``InvalidParameter`` when events were not recorded."""
        if not self.traces:
            raise InvalidParameter("no events were recorded: simulate(..., record=True), with some hundred requests")
        return self.traces[0]

    @property
    def seconds(self) -> float:
        """From the first arrival to the last token."""
        table = self.requests
        return float(table.ended_s.max() - table.arrived_s.min()) if len(table) else 0.0

    def itl_ms(self, *percentiles: float) -> list[float]:
        """Percentiles of the time between two tokens of a request, over all tokens (milliseconds)."""
        ns, times = self.gaps
        if not times.sum():
            return [float("nan")] * len(percentiles)
        order = np.argsort(ns, kind="stable")
        reached = np.cumsum(times[order])
        places = np.searchsorted(reached, np.asarray(percentiles) / 100 * reached[-1], side="left")
        return (ns[order][places.clip(max=len(ns) - 1)] / 1e6).tolist()

    def goodput(self, *, ttft_ms: float, itl_ms: float) -> float:
        """Requests a second that had their first token within ``ttft_ms`` and then, on average, each within ``itl_ms``
        (the service level objective)."""
        return float(self.met(ttft_ms=ttft_ms, itl_ms=itl_ms).sum()) / self.seconds if self.seconds else 0.0

    def met(self, *, ttft_ms: float, itl_ms: float) -> pd.Series:
        """Which requests met the objective; one with a single token has no time between tokens."""
        table = self.requests
        return (table.ttft_ms <= ttft_ms) & ~(table.itl_ms > itl_ms)

    @property
    def summary(self) -> FleetSummary:
        """The figures of the whole run."""
        table, seconds = self.requests, self.seconds or float("nan")
        ttft = np.percentile(table.ttft_ms, (50, 90, 99)).tolist() if len(table) else [float("nan")] * 3
        lived = (table.ended_s - table.arrived_s).sum()
        return FleetSummary(
            len(table),
            self.seconds,
            len(table) / seconds,
            float(table.num_output_tokens.sum()) / seconds,
            *ttft,
            *self.itl_ms(50, 90, 99),
            float(table.e2e_ms.median()),
            float(table.queue_ms.median()),
            float(table.num_cached_tokens.sum()) / max(int(table.num_prompt_tokens.sum()), 1),
            float(self.replicas.utilisation.mean()),
            float(self.replicas.slots_used.mean()),
            float(lived) / seconds,
            int(table.num_preemptions.sum()),
            self.fleet.times.source,
        )

    def table(self) -> pd.DataFrame:
        """The summary as a table of one column, marked as simulated."""
        return pd.DataFrame({"SIMULATED": asdict(self.summary)})


def _requests(ledger: Ledger, names: list[str]) -> pd.DataFrame:
    arrived, scheduled, first, ended, transfer = (
        np.asarray(getattr(ledger, name), dtype=np.int64)
        for name in ("arrived_ns", "scheduled_ns", "first_ns", "ended_ns", "transfer_ns")
    )
    output = np.asarray(ledger.num_output, dtype=np.int64)
    between = np.where(output > 1, (ended - first) / 1e6 / np.maximum(output - 1, 1), np.nan)
    return pd.DataFrame(
        {
            "request_id": [f"r{number}" for number in range(len(output))],
            "replica": pd.Categorical.from_codes(np.asarray(ledger.replica, dtype=np.int64), names),
            "arrived_s": arrived / 1e9,
            "ended_s": ended / 1e9,
            "num_prompt_tokens": np.asarray(ledger.num_prompt, dtype=np.int64),
            "num_cached_tokens": np.asarray(ledger.num_cached, dtype=np.int64),
            "num_output_tokens": output,
            "queue_ms": (scheduled - arrived) / 1e6,
            "ttft_ms": (first - arrived) / 1e6,
            "itl_ms": between,
            "e2e_ms": (ended - arrived) / 1e6,
            "transfer_ms": transfer / 1e6,
            "num_preemptions": np.asarray(ledger.num_preemptions, dtype=np.int64),
            "seen": np.asarray(ledger.seen, dtype=np.int64),
        }
    )


def _replicas(replicas: list[Replica], span_ns: int) -> pd.DataFrame:
    return pd.DataFrame(
        {
            "replica": [replica.name for replica in replicas],
            "steps": [replica.num_steps for replica in replicas],
            "tokens": [replica.num_tokens for replica in replicas],
            "busy_s": [replica.busy_ns / 1e9 for replica in replicas],
            "utilisation": [replica.busy_ns / max(span_ns, 1) for replica in replicas],
            "slots_used": [replica.row_ns / max(span_ns, 1) / replica.fleet.max_num_seqs for replica in replicas],
        }
    )
