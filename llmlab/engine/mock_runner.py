"""A model without weights whose next token depends on every token before it, read back through the block table.

It stands in for a real model where the serving is what matters: a block that was reused too early, copied wrongly or
hit by mistake changes the context that is read back, and so the tokens.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from hashlib import blake2b
from time import perf_counter_ns

import numpy as np
import torch

from llmlab.engine.plan import ScheduledRow, StepPlan, Swap
from llmlab.engine.runner import Capacity

PRINTABLE = range(32, 127)


def mock_next_token(tokens: Sequence[int], eos_every: int = 0) -> int:
    """The token the mock model prefers after ``tokens``: printable ASCII, or EOS (257) once in ``eos_every``."""
    digest = blake2b(array("q", tokens).tobytes(), digest_size=8).digest()
    value = int.from_bytes(digest, "little")
    if eos_every and value % eos_every == 0:
        return 257
    return PRINTABLE[value % len(PRINTABLE)]


class MockModel:
    """A :class:`~llmlab.engine.runner.Runner` over the byte vocabulary (258 rows).

    Its "K/V" is the token id itself, one per slot. The preferred token's logit is 4 above the rest, so greedy decoding
    follows :func:`mock_next_token` while sampling still has choices.
    """

    model, device, dtype = "mock", "cpu", "int64"

    def __init__(
        self, num_blocks: int = 256, block_size: int = 16, max_model_len: int = 4096, eos_every: int = 0
    ) -> None:
        self.capacity = Capacity(num_blocks, block_size, 1, 1, 1, 8, 258, max_model_len)
        self.eos_every = eos_every
        self.slots = np.full((num_blocks, block_size), -1, dtype=np.int64)
        self.host_slots = self.slots[:0]

    def build(self, plan: StepPlan) -> StepPlan:
        """The plan is all it needs."""
        return plan

    def open_host(self, num_blocks: int) -> None:
        """Slots for a host pool."""
        self.host_slots = np.full((num_blocks, self.capacity.block_size), -1, dtype=np.int64)

    def swap(self, swaps: Sequence[Swap]) -> None:
        """Copy blocks between the pools."""
        for swap in swaps:
            swap.t_ns = perf_counter_ns()
            for block, place in swap.pairs:
                if swap.is_out:
                    self.host_slots[place] = self.slots[block]
                else:
                    self.slots[block] = self.host_slots[place]
            swap.nbytes = len(swap.pairs) * self.slots[0].nbytes
            swap.end_ns = perf_counter_ns()

    def forward(self, batch: StepPlan) -> torch.Tensor:
        """Copy blocks, write every row's tokens, then read each context back and answer."""
        if batch.swaps:
            self.swap([swap for swap in batch.swaps if swap.is_out])
        for source, target in batch.copies:
            self.slots[target] = self.slots[source]
        if batch.swaps:
            self.swap([swap for swap in batch.swaps if not swap.is_out])
        for row in batch.rows:
            self._write(row)
        logits = torch.zeros(sum(row.num_logits for row in batch.rows), self.capacity.vocab_size)
        best = [token for row in batch.rows for token in self._answers(row)]
        logits[torch.arange(len(best)), torch.tensor(best, dtype=torch.long)] = 4.0
        return logits

    def _write(self, row: ScheduledRow) -> None:
        positions = np.arange(row.start, row.end)
        table = np.asarray(row.request.block_table)
        block_size = self.capacity.block_size
        self.slots[table[positions // block_size], positions % block_size] = row.token_ids

    def _answers(self, row: ScheduledRow) -> list[int]:
        context = self.slots[row.request.block_table].reshape(-1)[: row.end].tolist()
        ends = range(row.end - row.num_logits + 1, row.end + 1)
        return [mock_next_token(context[:end], self.eos_every) for end in ends]
