"""Labs that prefill in another process, and what their tests look at."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import psutil

from llmlab.engine.run import Run
from llmlab.lab import Lab


def answers(lab: Lab, prompts: Sequence, **params) -> list[list[list[int]]]:
    """The tokens of every sample of every prompt, all submitted at once."""
    return [[output.token_ids for output in run.outputs] for run in finished(lab, prompts, **params)]


def finished(lab: Lab, prompts: Sequence, **params) -> list[Run]:
    """Runs of all prompts, submitted at once."""
    runs = [lab.submit(prompt, raw=isinstance(prompt, str), **params) for prompt in prompts]
    return [run.wait(timeout=120) for run in runs]


def wait_until(condition: Callable[[], bool], seconds: float = 20.0) -> None:
    """Until it holds; fails when it does not within ``seconds``."""
    deadline = time.monotonic() + seconds
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.01)
    assert condition()


def is_alive(pid: int) -> bool:
    """Whether a process runs; one that ended may stay in the list until somebody waits for it."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
