"""A lab whose engine takes a step only when the test lets it, so that steps can be counted."""

from __future__ import annotations

import threading
import time

import torch

from llmlab.engine.engine import Engine
from llmlab.engine.mock_runner import MockModel
from llmlab.engine.plan import StepPlan
from llmlab.engine.scheduler import SchedulerConfig
from llmlab.lab import Lab
from llmlab.models.byte_tokenizer import ByteTokenizer
from llmlab.trace import Recorder

WAIT_S = 10.0


class Gated(MockModel):
    """The mock model, each of whose forward passes waits for :meth:`let`; ``waiting`` while one does."""

    def __init__(self) -> None:
        super().__init__(num_blocks=512)
        self._permits = threading.Semaphore(0)
        self.waiting = threading.Event()

    def let(self, steps: int) -> None:
        """Allow so many more steps."""
        self._permits.release(steps)

    def forward(self, batch: StepPlan) -> torch.Tensor:
        """The mock model's, once it may."""
        self.waiting.set()
        assert self._permits.acquire(timeout=WAIT_S), "the test did not let the engine go on"
        self.waiting.clear()
        return super().forward(batch)


class Slow(MockModel):
    """The mock model, with a pause of ``pause_s`` before every forward pass."""

    def __init__(self, pause_s: float) -> None:
        super().__init__(num_blocks=512)
        self.pause_s = pause_s

    def forward(self, batch: StepPlan) -> torch.Tensor:
        """The mock model's, later."""
        time.sleep(self.pause_s)
        return super().forward(batch)


def lab_on(runner: MockModel, budget: int = 64) -> Lab:
    """A lab on a runner; at most ``budget`` tokens a step, so a longer prompt takes several."""
    engine = Engine(runner, ByteTokenizer(), config=SchedulerConfig(budget, 8, "continuous"), recorder=Recorder())
    return Lab(engine, ByteTokenizer(), runner.model, None)


def until(condition, timeout_s: float = WAIT_S) -> None:
    """Wait until ``condition()`` holds; fails when it does not in time."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "the condition did not come true"
        time.sleep(0.002)
