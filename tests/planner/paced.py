"""A real engine on the model without weights, on a clock that only its steps move: each takes as long as step times
say, to the nanosecond."""

from __future__ import annotations

from dataclasses import dataclass

from llmlab.engine import engine as engine_module
from llmlab.engine import info, journal, step
from llmlab.engine.engine import Engine
from llmlab.engine.mock_runner import MockModel
from llmlab.engine.scheduler import SchedulerConfig
from llmlab.lab import Lab
from llmlab.models.byte_tokenizer import ByteTokenizer
from llmlab.planner.step_load import StepLoad
from llmlab.planner.step_time import StepTimes
from llmlab.trace.recorder import Recorder

TIMES = StepTimes("made up", step=20e6, row=0.3e6, token=0.1e6, late_token=0.2e6, padded=2e3, pair=30.0, knee=8)


@dataclass(slots=True)
class Clock:
    """Stands in for ``time.perf_counter_ns``. ``busy_until``: the end of the step under way, which has been computed
    already although ``now`` may lie within it."""

    now: int = 1_000
    busy_until: int = 0

    def __call__(self) -> int:
        return self.now


class PacedModel(MockModel):
    """The mock model, whose forward pass moves the clock."""

    clock: Clock

    def forward(self, batch):
        rows = [(row.start, row.num_tokens) for row in batch.rows]
        logits = super().forward(batch)
        self.clock.now += TIMES.ns(StepLoad.of(rows))
        return logits


class PacedEngine(Engine):
    """Begins a step when the last one has ended, wherever the clock stands."""

    def step(self) -> bool:
        clock = self.runner.clock
        clock.now = max(clock.now, clock.busy_until)
        did = super().step()
        clock.busy_until = clock.now
        return did


def paced_lab(monkeypatch, *, num_blocks: int = 256, max_num_seqs: int = 8, budget: int = 512, prefix_cache=True):
    """A lab to be stepped by hand, and its clock."""
    clock = Clock()
    for module in (engine_module, info, journal, step):
        monkeypatch.setattr(module, "perf_counter_ns", clock)
    runner, tokenizer = PacedModel(num_blocks, 16, 100_000), ByteTokenizer()
    runner.clock = clock
    config = SchedulerConfig(budget, max_num_seqs)
    engine = PacedEngine(runner, tokenizer, config=config, recorder=Recorder(), prefix_cache=prefix_cache)
    return Lab(engine, tokenizer, "paced", None), clock


def wait_on(lab, clock):
    """``wait_until`` for :func:`llmlab.bench.fleet.serve`: take the steps that begin before, then stand at that time,
    which may be within the last of them."""
    start = max(clock.now, clock.busy_until)

    def wait_until(t_s: float) -> None:
        t_ns = start + round(t_s * 1e9)
        while max(clock.now, clock.busy_until) < t_ns and lab.engine.step():
            pass
        clock.now = t_ns

    return wait_until
