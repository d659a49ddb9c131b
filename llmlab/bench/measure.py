"""Letting the contenders take turns: every round gives each of them the same work, one after the other."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from typing import Any

from llmlab.bench.job import Served, Settings
from llmlab.bench.process import WorkerProcess
from llmlab.bench.workloads import CONTENDERS, FULL, LLMLAB, QUICK, Draw, Workload, by_name
from llmlab.errors import InvalidParameter
from llmlab.opening import MOCK

DTYPES = {"bf16": "bfloat16", "fp32": "float32"}
WARM_UP = 0
"""The round that is served first, in short form, and not counted."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What to measure. ``dtypes`` are ``bf16`` or ``fp32``; ``repeats`` is the number of rounds that count."""

    workloads: tuple[str, ...]
    dtypes: tuple[str, ...]
    contenders: tuple[str, ...]
    repeats: int
    quick: bool
    model: str
    device: str
    threads: int = 1

    @classmethod
    def make(cls, *, workloads, dtypes, contenders, **rest: Any) -> Plan:
        """A checked plan. Raises :class:`~llmlab.errors.InvalidParameter` for names that do not exist."""
        short = {name: short for short, name in DTYPES.items()}
        plan = cls(
            workloads=_known("workload", workloads, by_name()),
            dtypes=_known("dtype", [short.get(name, name) for name in dtypes], DTYPES),
            contenders=_known("contender", contenders, CONTENDERS),
            **rest,
        )
        if plan.model == MOCK and plan.contenders != (LLMLAB,):
            raise InvalidParameter(f"transformers cannot serve {MOCK!r}: add --contenders {LLMLAB}")
        if not any(plan.of(by_name()[name]) for name in plan.workloads):
            raise InvalidParameter(f"none of these workloads is for {', '.join(plan.contenders)}")
        return plan

    def of(self, workload: Workload) -> tuple[str, ...]:
        """The contenders that take part in ``workload``."""
        return tuple(name for name in workload.contenders if name in self.contenders)


@dataclass(frozen=True, slots=True)
class Sample:
    """What one contender did in one round of one workload. ``round`` counts from 1.

    ``served`` holds the answers without their tokens; ``tokens`` are those of a workload that compares them.
    """

    dtype: str
    workload: str
    contender: str
    round: int
    metrics: dict[str, float]
    served: list[dict[str, Any]]
    tokens: list[list[int]] | None = None


def _known(kind: str, names: Sequence[str], known: Sequence[str] | dict[str, Any]) -> tuple[str, ...]:
    for name in names:
        if name not in known:
            raise InvalidParameter(f"there is no {kind} {name!r}; there are {', '.join(known)}")
    return tuple(dict.fromkeys(names))


def run_benchmark(plan: Plan, progress: Callable[[str], Any] = lambda text: None) -> list[Sample]:
    """Serve the plan; only one worker computes at a time. ``progress`` is told what is being done.

    Raises :class:`~llmlab.errors.BenchError` when a worker fails, and the errors of fetching the model.
    """
    if plan.model != MOCK:
        from llmlab.models.load import resolve

        progress(f"finding {plan.model}")
        resolve(plan.model)  # fetched here, so that workers find it ready
    return [sample for dtype in plan.dtypes for sample in _run_dtype(plan, dtype, progress)]


def _run_dtype(plan: Plan, dtype: str, progress: Callable[[str], Any]) -> Iterator[Sample]:
    workloads = [by_name()[name] for name in plan.workloads]
    names = dict.fromkeys(name for workload in workloads for name in plan.of(workload))
    with ExitStack() as stack:
        workers = {}
        for name in names:
            progress(f"{dtype}: starting {name}")
            settings = Settings(name, plan.model, plan.device, DTYPES[dtype], plan.threads)
            workers[name] = stack.enter_context(WorkerProcess(settings))
        for number in range(plan.repeats + 1):
            for workload in workloads:
                for name in turns(plan.of(workload), number):
                    which = "warm-up" if number == WARM_UP else f"round {number} of {plan.repeats}"
                    progress(f"{dtype}: {which}, {workload.name}, {name}")
                    sample = _serve(plan, dtype, workload, number, workers, name)
                    if number != WARM_UP:
                        yield sample


def turns(names: Sequence[str], number: int) -> list[str]:
    """The order of one round: each round begins with another contender, so that none is always first."""
    shift = number % len(names) if names else 0
    return [*names[shift:], *names[:shift]]


def _serve(
    plan: Plan, dtype: str, workload: Workload, number: int, workers: dict[str, WorkerProcess], name: str
) -> Sample:
    vocab_size = min(worker.hello.vocab_size for worker in workers.values())
    sizes = QUICK if plan.quick or number == WARM_UP else FULL
    jobs = workload.jobs(Draw(workload.name, number, vocab_size, sizes))
    served = [workers[name].serve(job) for job in jobs]
    return Sample(
        dtype=dtype,
        workload=workload.name,
        contender=name,
        round=number,
        metrics=workload.read(jobs, served),
        served=[_without_tokens(answer) for answer in served],
        tokens=served[0].token_ids if workload.compares_tokens else None,
    )


def _without_tokens(served: Served) -> dict[str, Any]:
    answer = asdict(replace(served, token_ids=[]))
    del answer["token_ids"]
    return answer | {"output_tokens": sum(map(len, served.token_ids))}
