"""Conversations with the target model: its own words are what a draft head has to foresee."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from llmlab.engine.run import Run
    from llmlab.lab import Lab

TEMPERATURES = (0.0, 0.7, 1.0)


@dataclass(frozen=True, slots=True)
class Conversation:
    """Token ids of a rendered prompt and of the answer, and the temperature the answer was sampled at."""

    prompt: tuple[int, ...]
    answer: tuple[int, ...]
    temperature: float

    @property
    def tokens(self) -> list[int]:
        """Prompt and answer."""
        return [*self.prompt, *self.answer]


def converse(
    lab: Lab, questions: list[str], *, max_tokens: int, seed: int, progress: Callable[[int], None] | None = None
) -> list[Conversation]:
    """Let the model answer every question, as many at once as the lab's batch takes; temperatures take turns.

    ``progress`` is told how many new answers are complete.
    """
    runs = []
    for number, question in enumerate(questions):
        temperature = TEMPERATURES[number % len(TEMPERATURES)]
        run = lab.submit(question, temperature=temperature, seed=seed + number, max_tokens=max_tokens)
        runs.append((run, temperature))
    return [_finished(run, temperature, progress) for run, temperature in runs]


def _finished(run: Run, temperature: float, progress: Callable[[int], None] | None) -> Conversation:
    run.wait()
    if progress:
        progress(1)
    return Conversation(tuple(run.prompt_token_ids), tuple(run.token_ids), temperature)
