"""The workloads: which jobs each consists of, and which figures are read from them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from random import Random

from llmlab.bench.job import Job, Served

LLMLAB, GENERATE, GENERATE_BATCH = "llmlab", "generate", "generate_batch"
CONTENDERS = (LLMLAB, GENERATE, GENERATE_BATCH)


@dataclass(frozen=True, slots=True)
class Metric:
    """One figure of a workload."""

    name: str
    unit: str
    higher_is_better: bool


@dataclass(frozen=True, slots=True)
class Sizes:
    """How long prompts and outputs are, in tokens, and how many requests there are."""

    prompt: int
    long_prompt: int
    mixed_prompts: tuple[int, int]
    mixed_requests: int
    batch: int
    shared: int
    own: int
    new: int
    few_new: int


FULL = Sizes(
    prompt=64,
    long_prompt=1024,
    mixed_prompts=(32, 256),
    mixed_requests=16,
    batch=8,
    shared=512,
    own=32,
    new=64,
    few_new=16,
)
QUICK = Sizes(
    prompt=64,
    long_prompt=256,
    mixed_prompts=(16, 64),
    mixed_requests=8,
    batch=8,
    shared=128,
    own=32,
    new=16,
    few_new=4,
)


@dataclass(frozen=True, slots=True)
class Draw:
    """Deterministic token ids: the same name, round and vocabulary give every contender the same prompts.

    Every round has its own, so that no prefix cache remembers an earlier round.
    """

    name: str
    round: int
    vocab_size: int
    sizes: Sizes

    @property
    def salt(self) -> str:
        """Names this workload and round."""
        return f"{self.name}-{self.round}"

    def rng(self) -> Random:
        """A generator at its beginning."""
        return Random(self.salt)

    def ids(self, rng: Random, length: int) -> list[int]:
        """``length`` random ids, away from the special ones at the beginning of a large vocabulary."""
        low = 100 if self.vocab_size > 1000 else 32
        return rng.choices(range(low, min(40_000, self.vocab_size)), k=length)


@dataclass(frozen=True, slots=True)
class Workload:
    """``jobs`` makes what is sent, in order; ``read`` turns the answers into one figure per metric.

    ``metrics[0]`` is the headline. ``contenders`` are those it can be run with. ``compares_tokens``: greedy tokens
    of different contenders should be equal in float32.
    """

    name: str
    title: str
    contenders: tuple[str, ...]
    metrics: tuple[Metric, ...]
    jobs: Callable[[Draw], list[Job]]
    read: Callable[[Sequence[Job], Sequence[Served]], dict[str, float]]
    compares_tokens: bool = False


def _one_request(draw: Draw) -> list[Job]:
    return [Job([draw.ids(draw.rng(), draw.sizes.prompt)], draw.sizes.new)]


def _read_one_request(jobs: Sequence[Job], served: Sequence[Served]) -> dict[str, float]:
    new, total, first = jobs[0].new_tokens, served[0].seconds, served[0].first_token_s
    return {
        "tokens_per_s": new / total,
        "ttft_ms": 1e3 * first,
        "decode_ms_per_token": 1e3 * (total - first) / (new - 1),
    }


def _long_prefill(draw: Draw) -> list[Job]:
    return [Job([draw.ids(draw.rng(), draw.sizes.long_prompt)], new_tokens=1)]


def _read_long_prefill(jobs: Sequence[Job], served: Sequence[Served]) -> dict[str, float]:
    return {"prompt_tokens_per_s": len(jobs[0].prompts[0]) / served[0].seconds}


def _mixed(draw: Draw) -> list[Job]:
    rng = draw.rng()
    lengths = [rng.randint(*draw.sizes.mixed_prompts) for _ in range(draw.sizes.mixed_requests)]
    return [Job([draw.ids(rng, length) for length in lengths], draw.sizes.new)]


def _read_mixed(jobs: Sequence[Job], served: Sequence[Served]) -> dict[str, float]:
    return {"output_tokens_per_s": jobs[0].new_tokens * len(jobs[0].prompts) / served[0].seconds}


def _shared_prefix(draw: Draw) -> list[Job]:
    rng, sizes = draw.rng(), draw.sizes
    prefix = draw.ids(rng, sizes.shared)
    prompts = [prefix + draw.ids(rng, sizes.own) for _ in range(sizes.batch)]
    cached = Job(prompts, sizes.few_new, salt=draw.salt, shared_tokens=sizes.shared)
    return [Job(prompts, sizes.few_new, prefix_cache=False, shared_tokens=sizes.shared), cached, cached]


def _read_shared_prefix(jobs: Sequence[Job], served: Sequence[Served]) -> dict[str, float]:
    off, cold, warm = (answer.seconds for answer in served)
    return {"warm_s": warm, "cold_s": cold, "no_cache_s": off}


def _second_request(draw: Draw) -> list[Job]:
    rng, sizes = draw.rng(), draw.sizes
    prefix = draw.ids(rng, sizes.shared)
    return [Job([prefix + draw.ids(rng, sizes.own)], new_tokens=1, salt=draw.salt) for _ in range(2)]


def _read_second_request(jobs: Sequence[Job], served: Sequence[Served]) -> dict[str, float]:
    first, second = (1e3 * answer.first_token_s for answer in served)
    return {"cached_ttft_ms": second, "first_ttft_ms": first}


def _full_batch(draw: Draw) -> list[Job]:
    rng, sizes = draw.rng(), draw.sizes
    prompts = [draw.ids(rng, sizes.mixed_prompts[1]) for _ in range(sizes.batch)]
    return [Job(prompts, sizes.new, phases=True)]


def _read_full_batch(jobs: Sequence[Job], served: Sequence[Served]) -> dict[str, float]:
    return {"outside_forward": served[0].outside_forward}


def _mixed_with_and_without_trace(draw: Draw) -> list[Job]:
    """With, without, without, with: one process and a drift that hits both alike. No job may use another's cache."""
    (job,) = _mixed(draw)
    return [replace(job, record=record, salt=f"{draw.salt}-{i}") for i, record in enumerate((True, False, False, True))]


def _read_with_and_without_trace(jobs: Sequence[Job], served: Sequence[Served]) -> dict[str, float]:
    seconds = dict.fromkeys((True, False), 0.0)
    for job, answer in zip(jobs, served, strict=True):
        seconds[job.record] += answer.seconds / 2
    return {"recorded_s": seconds[True], "unrecorded_s": seconds[False]}


WORKLOADS = (
    Workload(
        name="W1",
        title="one request: 64-token prompt, 64 new tokens",
        contenders=CONTENDERS,
        metrics=(
            Metric("tokens_per_s", "tokens/s", True),
            Metric("ttft_ms", "ms", False),
            Metric("decode_ms_per_token", "ms", False),
        ),
        jobs=_one_request,
        read=_read_one_request,
        compares_tokens=True,
    ),
    Workload(
        name="W2",
        title="prefill: 1,024-token prompt, 1 new token",
        contenders=CONTENDERS,
        metrics=(Metric("prompt_tokens_per_s", "tokens/s", True),),
        jobs=_long_prefill,
        read=_read_long_prefill,
    ),
    Workload(
        name="W3",
        title="16 requests of 32 to 256 tokens, 64 new each, 8 at once",
        contenders=CONTENDERS,
        metrics=(Metric("output_tokens_per_s", "tokens/s", True),),
        jobs=_mixed,
        read=_read_mixed,
    ),
    Workload(
        name="W4",
        title="8 requests sharing 512 tokens, 32 own each, 16 new",
        contenders=CONTENDERS,
        metrics=(Metric("warm_s", "s", False), Metric("cold_s", "s", False), Metric("no_cache_s", "s", False)),
        jobs=_shared_prefix,
        read=_read_shared_prefix,
    ),
    Workload(
        name="prefix_ttft",
        title="TTFT of 512 + 32 tokens, first and with the 512 cached",
        contenders=(LLMLAB,),
        metrics=(Metric("cached_ttft_ms", "ms", False), Metric("first_ttft_ms", "ms", False)),
        jobs=_second_request,
        read=_read_second_request,
    ),
    Workload(
        name="overhead",
        title="share of a decode step outside the forward pass, batch of 8",
        contenders=(LLMLAB,),
        metrics=(Metric("outside_forward", "of the step", False),),
        jobs=_full_batch,
        read=_read_full_batch,
    ),
    Workload(
        name="tracing",
        title="W3 with and without recording a trace",
        contenders=(LLMLAB,),
        metrics=(Metric("recorded_s", "s", False), Metric("unrecorded_s", "s", False)),
        jobs=_mixed_with_and_without_trace,
        read=_read_with_and_without_trace,
    ),
)


def by_name() -> dict[str, Workload]:
    """The workloads by name."""
    return {workload.name: workload for workload in WORKLOADS}
