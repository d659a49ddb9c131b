"""What runs in the processes that ``accelerate`` starts for :func:`~llmlab.parallel.launch.launch`."""

from __future__ import annotations

import json
import os
import signal
import sys
import traceback
from pathlib import Path
from typing import Any

import torch

from llmlab.engine.build import Reference, record_reference
from llmlab.engine.engine import Engine
from llmlab.engine.model_runner import ModelRunner
from llmlab.engine.params import SamplingParams
from llmlab.engine.plan import StepPlan
from llmlab.models.load import LoadedModel, load
from llmlab.parallel.channel import Channel
from llmlab.parallel.comm import Comm
from llmlab.parallel.rank import Rank
from llmlab.parallel.sent_plan import SentPlan
from llmlab.parallel.share import DivideOptions, check

NUM_BLOCKS, BLOCK_SIZE = 64, 16


class SharedRunner:
    """A :class:`~llmlab.engine.runner.Runner` of one process among equals: each schedules for itself."""

    def __init__(self, rank: Rank, loaded: LoadedModel) -> None:
        inner: ModelRunner = rank.runner.inner
        self.capacity, self._rank = inner.capacity, rank
        self.model, self.device, self.dtype = inner.model, inner.device, inner.dtype

    def build(self, plan: StepPlan) -> SentPlan:
        """The plan that all others make too."""
        return SentPlan.of(plan)

    def forward(self, plan: SentPlan) -> torch.Tensor:
        """Logits of the whole model."""
        return self._rank.step(plan, recording=True)


def run(model: str, prompts: list[str], max_tokens: int, folder: str) -> None:
    """One process: answer with the share of this rank, and write down what happened."""
    from accelerate import PartialState

    signal.signal(signal.SIGINT, signal.SIG_DFL)  # which torch asks the system for when the launcher dies
    torch.set_num_threads(1)
    state = PartialState(cpu=True)
    comm = Comm(state.process_index, state.num_processes, "tensor", torch.distributed.group.WORLD)
    loaded = load(model, device="cpu", dtype="float32")
    check("tensor", loaded.model, comm.size)
    ids = [loaded.tokenizer.encode(prompt) for prompt in prompts]
    expected = _plainly(loaded, ids, max_tokens) if comm.rank == 0 else None
    rank = _divided(loaded, record_reference(loaded), comm)
    engine = Engine(SharedRunner(rank, loaded), loaded.tokenizer, eos_token_ids=loaded.eos_token_ids)
    tokens, steps = _answered(engine, ids, max_tokens)
    found = {"tokens": tokens, "expected": expected, **_counted(comm), "num_steps": steps}
    text = json.dumps({**found, "num_parameters": rank.num_parameters})
    (Path(folder) / f"{comm.rank}.json").write_text(text, "utf-8")
    state.wait_for_everyone()
    state.destroy_process_group()


@torch.inference_mode()
def _plainly(loaded: LoadedModel, prompts: list[list[int]], max_tokens: int) -> list[list[int]]:
    """Greedy tokens of the whole model, without any of our engine."""
    found = []
    for ids in prompts:
        given = torch.tensor([ids])
        output = loaded.model.generate(
            given,
            attention_mask=torch.ones_like(given),
            max_new_tokens=max_tokens,
            min_new_tokens=max_tokens,
            do_sample=False,
            pad_token_id=0,
        )
        found.append(output[0, len(ids) :].tolist())
    return found


def _divided(loaded: LoadedModel, reference: Reference, comm: Comm) -> Rank:
    rank = Rank(loaded, comm, DivideOptions(reference.shapes))
    rank.allocate(NUM_BLOCKS, BLOCK_SIZE)
    return rank


def _answered(engine: Engine, prompts: list[list[int]], max_tokens: int) -> tuple[list[list[int]], int]:
    """Tokens of every prompt, all in one batch, and the number of steps."""
    params = SamplingParams(max_tokens=max_tokens, min_tokens=max_tokens)
    runs = [engine.submit(ids, params) for ids in prompts]
    steps = engine.run_until_idle()
    return [run.token_ids for run in runs], steps


def _counted(comm: Comm) -> dict[str, int]:
    events = comm.take_events()
    sums = [event for event in events if getattr(event, "kind", "") == "all_reduce"]
    return {
        "num_tokens": sum(event.num_tokens for event in events if getattr(event, "name", "") == "forward"),
        "all_reduces": len(sums),
        "all_reduce_bytes": sum(event.nbytes for event in sums),
    }


def main() -> None:
    """Let ``accelerate`` fork the processes; nothing has run in this one that a fork could not copy."""
    channel = Channel()
    told: dict[str, Any] = channel.receive()
    try:
        from accelerate import debug_launcher

        arguments = (told["model"], told["prompts"], told["max_tokens"], told["folder"])
        debug_launcher(run, arguments, num_processes=told["num_processes"])
        channel.send({"done": True})
    except Exception as error:  # the caller names it
        channel.send({"error": f"{type(error).__name__}: {str(error).strip().splitlines()[-1:]}"})
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(1)


if __name__ == "__main__":
    main()
