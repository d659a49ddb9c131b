"""A lab whose model answers with a given text, token by token: what parsing and phases are tested with."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from llmlab.engine.engine import Engine
from llmlab.engine.plan import ScheduledRow, StepPlan
from llmlab.engine.runner import Capacity
from llmlab.engine.scheduler import SchedulerConfig
from llmlab.lab import Lab
from llmlab.models.byte_tokenizer import ByteTokenizer
from llmlab.trace import Recorder

EOS = ByteTokenizer.eos_token_id
CLOSING = list(b"</think>\n\n")


class Playback:
    """A :class:`~llmlab.engine.runner.Runner` over the byte vocabulary that plays texts back, then EOS.

    ``answers[k % len(answers)]`` is played to the k-th sample it meets. With ``thought`` a prompt that ends in
    ``<think>`` and a line break gets the thought, and one that ends in the closed mark gets the answer.
    """

    model, device, dtype = "playback", "cpu", "none"

    def __init__(self, answers: Sequence[bytes], thought: bytes | None, num_blocks: int, max_model_len: int) -> None:
        self.capacity = Capacity(num_blocks, 16, 1, 1, 1, 8, ByteTokenizer.vocab_size, max_model_len)
        self._answers, self._thought = answers, thought
        self._given: dict[str, bytes] = {}

    def build(self, plan: StepPlan) -> StepPlan:
        """The plan is all it needs."""
        return plan

    def forward(self, batch: StepPlan) -> torch.Tensor:
        """Logits that make the next token of every row's text the likeliest by far."""
        rows = [row for row in batch.rows for _ in range(row.num_logits)]
        logits = torch.zeros(len(rows), self.capacity.vocab_size)
        for i, row in enumerate(rows):
            logits[i, self._next(row)] = 50.0
        return logits

    def _next(self, row: ScheduledRow) -> int:
        request = row.request
        text = self._given.setdefault(request.id, self._text_for(request.prompt_token_ids))
        # the samples of a group are asked for once through the first of them, before they exist
        return text[request.num_output] if request.num_output < len(text) else EOS

    def _text_for(self, prompt: list[int]) -> bytes:
        if self._thought is not None and prompt[-len(CLOSING) :] != CLOSING:
            return self._thought
        return self._answers[len(self._given) % len(self._answers)]


def playback_lab(*answers: str, thought: str | None = None, num_blocks: int = 256, max_model_len: int = 4096) -> Lab:
    """A lab that answers with ``answers`` in turn, after ``thought`` where the prompt opens one."""
    tokenizer = ByteTokenizer()
    texts = [answer.encode() for answer in answers]
    runner = Playback(texts, None if thought is None else thought.encode(), num_blocks, max_model_len)
    engine = Engine(
        runner, tokenizer, eos_token_ids=(EOS,), config=SchedulerConfig(512, 8, "continuous"), recorder=Recorder()
    )
    engine.start()
    return Lab(engine, tokenizer, runner.model, None)
