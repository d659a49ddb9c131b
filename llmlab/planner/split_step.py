"""A step of a split model on devices and a link: work, communication and idling put together (all COMPUTED)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from llmlab.errors import InvalidParameter
from llmlab.planner.communication import Communication
from llmlab.planner.devices import Device, device
from llmlab.planner.formats import WeightFormat, weight_format
from llmlab.planner.links import Link, link
from llmlab.planner.model_shape import ModelShape
from llmlab.planner.parallelism import expert_parallel, pipeline_parallel, tensor_parallel
from llmlab.planner.roofline import Row, StepWork, step_work
from llmlab.planner.shards import expert_shard, pipeline_shard, tensor_shard
from llmlab.planner.weights import weight_bytes


@dataclass(frozen=True, slots=True)
class SplitStep:
    """One step of a model split over ``ranks`` devices: floors of the device, nothing overlapped.

    ``compute_s`` is a rank's own work, ``communication_s`` what the link takes, ``idle_s`` the pipeline's bubble;
    ``sent_bytes`` leave one rank. ``weight_bytes`` are on the fullest device.
    """

    split: str
    ranks: int
    weight_bytes: int
    compute_s: float
    communication_s: float
    idle_s: float
    sent_bytes: float

    @property
    def time_s(self) -> float:
        """The step, from its start to its last rank's end."""
        return self.compute_s + self.communication_s + self.idle_s


@dataclass(frozen=True, slots=True)
class _Inputs:
    shape: ModelShape
    rows: Sequence[Row]
    ranks: int
    device: Device
    link: Link
    weights: WeightFormat
    kv: str
    micro_batches: int

    def work(self, shape: ModelShape, rows: Sequence[Row]) -> StepWork:
        return step_work(shape, rows, weights=self.weights, kv=self.kv)

    def step(self, split: str, shard: ModelShape, compute_s: float, sent: Communication, **others: float) -> SplitStep:
        facts = {"communication_s": sent.time_s(self.link), "idle_s": 0.0} | others
        size = weight_bytes(shard, self.weights)
        return SplitStep(split, self.ranks, size, compute_s, sent_bytes=sent.sent_bytes, **facts)


def split_step(
    shape: ModelShape,
    rows: Sequence[Row],
    split: str,
    ranks: int,
    on: str | Device,
    over: str | Link,
    *,
    weights: str | WeightFormat = "bf16",
    kv: str = "bf16",
    micro_batches: int = 1,
) -> SplitStep:
    """The step ``rows`` of a model split one way: ``tensor``, ``pipeline`` (with ``micro_batches``) or ``expert``.

    Raises ``InvalidParameter`` for another way, or a split that the model or the rows do not allow.
    """
    ways: dict[str, Callable[[_Inputs], SplitStep]] = {"tensor": _tensor, "pipeline": _pipeline, "expert": _expert}
    if split not in ways:
        raise InvalidParameter(f"split={split!r} is none: use one of {', '.join(ways)}")
    form = weight_format(weights)
    return ways[split](_Inputs(shape, list(rows), ranks, device(on), link(over), form, kv, micro_batches))


def _tensor(given: _Inputs) -> SplitStep:
    shard = tensor_shard(given.shape, given.ranks)
    work = given.work(shard, given.rows)
    logits = sum(row.num_logits for row in given.rows)
    sent = tensor_parallel(given.shape, work.num_tokens, given.ranks, num_logits=logits)
    return given.step("tensor", shard, work.time_s(given.device), sent)


def _pipeline(given: _Inputs) -> SplitStep:
    """Rows are dealt out to the micro-batches; every stage reads its weights for each. The next step starts when the
    last micro-batch is through, as in a synchronous engine: without that wait there is no bubble between steps."""
    ranks, count = given.ranks, given.micro_batches
    if not 1 <= count <= len(given.rows):
        raise InvalidParameter(f"{len(given.rows)} rows cannot be cut into {count} micro-batches")
    stages = [pipeline_shard(given.shape, ranks, stage) for stage in range(ranks)]
    slot = max(work.time_s(given.device) for work in _stage_works(given, stages))
    tokens = sum(row.num_tokens for row in given.rows)
    sent = pipeline_parallel(given.shape, tokens, ranks, micro_batches=count)
    hops = (ranks - 1) * sent.time_s(given.link) / count
    fullest = max(stages, key=lambda stage: weight_bytes(stage, given.weights))
    return given.step("pipeline", fullest, count * slot, sent, communication_s=hops, idle_s=(ranks - 1) * slot)


def _stage_works(given: _Inputs, stages: Sequence[ModelShape]) -> Iterator[StepWork]:
    """Each stage's work on the largest micro-batch; only the last one goes through the head."""
    rows = given.rows[:: given.micro_batches]
    inner = [replace(row, num_logits=0) for row in rows]
    for stage in stages:
        yield given.work(stage, rows if stage is stages[-1] else inner)


def _expert(given: _Inputs) -> SplitStep:
    """Each request is at home on one rank, which does all but the experts for it. A rank's experts serve the tokens of
    all: on average as many token-expert pairs as its own tokens have, and it reads its share of the experts touched."""
    own = given.work(given.shape, given.rows[:: given.ranks])
    whole = given.work(given.shape, given.rows)
    reading = own.nbytes - _expert_bytes(given, own) + _expert_bytes(given, whole) / given.ranks
    compute = max(own.flops / given.device.peak(own.arithmetic), reading / given.device.bytes_per_s)
    sent = expert_parallel(given.shape, whole.num_tokens, given.ranks)
    return given.step("expert", expert_shard(given.shape, given.ranks), compute, sent)


def _expert_bytes(given: _Inputs, work: StepWork) -> float:
    """Bytes of the routed experts that the step's tokens are expected to touch."""
    return sum(
        count * layer.mlp.experts_touched(work.num_tokens) * given.weights.nbytes(matrix.rows, matrix.columns)
        for layer, count in given.shape.kinds
        for matrix in layer.mlp.expert
    )
