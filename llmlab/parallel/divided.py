"""A model divided over processes, as the engine sees it: one runner."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from time import perf_counter_ns
from typing import Any

import torch

from llmlab.engine.build import (
    Reference,
    check_logits,
    check_plans,
    check_sizes,
    default_num_blocks,
    record_reference,
)
from llmlab.engine.model_runner import ModelRunner
from llmlab.engine.plan import StepPlan
from llmlab.engine.runner import Capacity
from llmlab.errors import InvalidParameter, RankFailed
from llmlab.models.load import LoadedModel
from llmlab.parallel.comm import Comm, join
from llmlab.parallel.group import RankGroup, events_of
from llmlab.parallel.rank import Rank, shapes_to_json
from llmlab.parallel.sent_plan import SentPlan
from llmlab.parallel.share import DivideOptions, check
from llmlab.parallel.split import Split
from llmlab.trace.recorder import Recorder


class DividedRunner:
    """A :class:`~llmlab.engine.runner.Runner`: this process computes rank 0's share, a :class:`RankGroup` the others'.

    ``capacity`` is the whole model's. Every step's work and communications, of all ranks, go to ``recorder``. When a
    rank fails, :meth:`forward` raises ``RankFailed``, now and from then on, and no process is left.
    """

    def __init__(self, rank: Rank, group: RankGroup, capacity: Capacity, loaded: LoadedModel, split: Split) -> None:
        self.capacity, self.split = capacity, str(split)
        self.model, self.device, self.dtype = loaded.name, str(loaded.device), str(loaded.dtype).split(".")[-1]
        self.recorder: Recorder | None = None
        self._rank, self._group, self._failure = rank, group, None
        self._loaded = loaded

    @property
    def anatomy(self) -> Any:
        """Probes look into one process, and a share is not the model. Raises ``InvalidParameter``."""
        raise InvalidParameter(
            f"the model is divided ({self.split}), so no process has all of it to look into or change: open it "
            "undivided for capture= and intervene="
        )

    @property
    def group(self) -> RankGroup:
        """The other processes."""
        return self._group

    @property
    def rank(self) -> Rank:
        """What this process has."""
        return self._rank

    def build(self, plan: StepPlan) -> SentPlan:
        """The plan as it is sent; every process makes its tensors from it."""
        return SentPlan.of(plan)

    def forward(self, plan: SentPlan) -> torch.Tensor:
        """Logits ``(sum of num_logits over rows, vocabulary)``, when all processes have computed their share."""
        if self._failure is not None:
            raise self._failure
        try:
            return self._forward(plan)
        except RankFailed as error:
            raise self._fail(error) from error.__cause__
        except RuntimeError as error:  # what torch raises for a connection that closed, and for anything else
            raise self._fail(self._group.blame(error)) from error
        except BaseException as error:  # an interrupt leaves the others in the middle of the step
            self._fail(RankFailed(f"a step of the divided model was interrupted by {type(error).__name__}"))
            raise

    def _forward(self, plan: SentPlan) -> torch.Tensor:
        recording = self.recorder is not None and self.recorder.enabled
        self._group.tell({**plan.to_json(), "recording": recording})
        logits = self._rank.step(plan, recording)
        start = perf_counter_ns()
        answers = self._group.answers()
        if recording:
            self._rank.comm.note_work("wait", start, 0, -1, -1, -1)
            self._record(self._rank.comm.take_events())
            for answer in answers:
                self._record(events_of(answer))
        return logits

    def _record(self, events: Iterable) -> None:
        for event in events:
            self.recorder.emit(event)

    def _fail(self, failure: RankFailed) -> RankFailed:
        self._failure = failure
        self._group.close()
        return failure

    def close(self) -> None:
        """End the other processes."""
        self._failure = self._failure or RankFailed("the processes of the divided model were ended: open it again")
        self._group.close()


def build_divided(
    fresh: Callable[[], LoadedModel],
    split: Split,
    *,
    block_size: int = 16,
    num_blocks: int | None = None,
    optimize: bool = True,
    threads: int = 1,
) -> tuple[DividedRunner, LoadedModel]:
    """Start the processes, load and divide the model, and check the divided model against the whole one.

    The loaded model that is returned has only rank 0's share. Raises what loading raises, ``InvalidParameter`` or
    ``UnsupportedModel`` where the model cannot be divided so, ``RankFailed`` when a process does not start.
    """
    check_sizes(block_size, num_blocks)
    group = RankGroup(split.size, split.role, threads)  # first: they import while this process loads
    try:
        loaded = fresh()
        check(split.role, loaded.model, split.size)
        reference = record_reference(loaded)
        rank = _meet(group, loaded, split, reference, optimize, threads)
        _check(rank, group, loaded, split, reference, block_size)
        if num_blocks is None:
            num_blocks = default_num_blocks(reference.shapes, block_size, loaded.max_model_len)
        return _runner(rank, group, loaded, split, reference, num_blocks, block_size), loaded
    except RuntimeError as error:
        failure = error if isinstance(error, RankFailed) else group.blame(error)
        group.close()
        raise failure from error
    except BaseException:
        group.close()
        raise


def _meet(
    group: RankGroup, loaded: LoadedModel, split: Split, reference: Reference, optimize: bool, threads: int
) -> Rank:
    """Every process loads the model and keeps its share of it."""
    backend = "nccl" if loaded.device.type == "cuda" else "gloo"
    group.tell(
        {
            "model": loaded.path,
            "device": loaded.device.type,
            "dtype": str(loaded.dtype).removeprefix("torch."),
            "folder": group.folder,
            "size": split.size,
            "role": split.role,
            "backend": backend,
            "shapes": shapes_to_json(reference.shapes),
            "optimize": optimize,
            "micro_batches": split.num_micro_batches,
            "threads": threads,
        }
    )
    group.answers()  # all could load: now nobody waits in vain for one that could not
    group.tell({"join": True})
    process_group = join(group.folder, 0, split.size, backend)
    options = DivideOptions(reference.shapes, optimize, split.num_micro_batches)
    rank = Rank(loaded, Comm(0, split.size, split.role, process_group), options)
    group.answers()
    return rank


def _runner(
    rank: Rank,
    group: RankGroup,
    loaded: LoadedModel,
    split: Split,
    reference: Reference,
    num_blocks: int,
    block_size: int,
) -> DividedRunner:
    """Pools of one size everywhere, and the runner on them."""
    group.tell({"num_blocks": num_blocks, "block_size": block_size})
    rank.allocate(num_blocks, block_size)
    group.answers()
    shapes, inner = reference.shapes, _inner(rank)
    capacity = replace(
        inner.capacity,
        num_layers=len(shapes),
        num_kv_heads=shapes[0].num_kv_heads,
        kv_bytes_per_token=sum(shape.bytes_per_token for shape in shapes),
    )
    return DividedRunner(rank, group, capacity, loaded, split)


def _inner(rank: Rank) -> ModelRunner:
    return rank.runner.inner


def _check(
    rank: Rank, group: RankGroup, loaded: LoadedModel, split: Split, reference: Reference, block_size: int
) -> None:
    """The divided model must answer as the whole one did."""
    num_blocks = -(-len(reference.logits) // block_size)
    runner = _runner(rank, group, loaded, split, reference, num_blocks, block_size)
    logits = [runner.forward(runner.build(plan)) for plan in check_plans(loaded.model, num_blocks)]
    check_logits(loaded, reference, torch.cat(logits))
