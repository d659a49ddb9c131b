"""Engines that speculate on the mock model, with proposers whose guesses are right as often as a test wants."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from random import Random

import torch

sys.path.insert(0, str(Path(__file__).parents[1] / "engine"))

from mock_serving import EOS

from llmlab.engine.engine import Engine
from llmlab.engine.mock_runner import MockModel, mock_next_token
from llmlab.engine.scheduler import SchedulerConfig
from llmlab.engine.speculative.config import Speculation
from llmlab.engine.speculative.proposer import Draft, DraftRow, Observed
from llmlab.models.byte_tokenizer import ByteTokenizer
from llmlab.trace import Recorder


class Guesser:
    """Knows the mock model's preferences, and errs at fixed places: a function of the tokens, so it is repeatable.

    ``draws``: proposes by drawing from logits that resemble the target's, instead of naming.
    """

    name, needs_features, repeatable = "guesser", False, True

    def __init__(self, right: float = 0.7, eos_every: int = 0, draws: bool = False) -> None:
        self.right, self.eos_every, self.draws = right, eos_every, draws
        self.forgotten: list[str] = []
        self.forks: list[tuple[str, str]] = []
        self.asked: list[DraftRow] = []

    def propose(self, rows: Sequence[DraftRow]) -> list[Draft]:
        self.asked += rows
        return [self._propose(row) for row in rows]

    def _propose(self, row: DraftRow) -> Draft:
        while not row.is_full:
            token_id = mock_next_token([*row.tokens, *row.chosen], self.eos_every)
            if Random(f"{row.tokens}{row.chosen}").random() > self.right:
                token_id = (token_id + 1) % 250
            if not self.draws:
                row.name(token_id)
                continue
            logits = torch.zeros(row.vocab_size)
            logits[token_id] = 3.0
            if row.choose(logits) is None:
                break
        return row.draft

    def observe(self, rows: Sequence[Observed]) -> None:
        raise AssertionError("asked for no features")

    def fork(self, parent_id: str, child_id: str) -> None:
        self.forks.append((parent_id, child_id))

    def forget(self, request_id: str) -> None:
        self.forgotten.append(request_id)


def speculating_engine(
    proposer=None,
    *,
    k: int = 4,
    adaptive: bool = False,
    rule: str = "exact",
    num_blocks: int = 64,
    block_size: int = 4,
    budget: int = 64,
    slots: int = 8,
    eos_every: int = 0,
    policy: str = "continuous",
    prefix_cache: bool | str = True,
    max_model_len: int = 4096,
    record: bool = True,
    runner=None,
    tokenizer=None,
    eos_token_ids: tuple[int, ...] = (EOS,),
    host_blocks: int = 0,
) -> Engine:
    """A hand-stepped engine without a thread; the proposer defaults to a guesser that is right in 7 of 10 cases."""
    return Engine(
        runner or MockModel(num_blocks, block_size, max_model_len, eos_every),
        tokenizer or ByteTokenizer(),
        eos_token_ids=eos_token_ids,
        config=SchedulerConfig(budget, slots, policy),
        prefix_cache=prefix_cache,
        recorder=Recorder(200_000, enabled=record),
        speculation=Speculation(proposer or Guesser(eos_every=eos_every), k=k, adaptive=adaptive, rule=rule),
        host_blocks=host_blocks,
        swap="always",
    )
