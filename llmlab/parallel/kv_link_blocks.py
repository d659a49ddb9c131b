"""K/V blocks as bytes: layer after layer, keys before values, heads first, whole blocks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol

import numpy as np
import torch

from llmlab.engine.kv_pool import KVPool
from llmlab.engine.runner import Runner
from llmlab.errors import InvalidParameter
from llmlab.parallel.kv_link import Buffer


class BlockPort(Protocol):
    """Copies blocks of a runner's K/V out and in. Two implementations: of a :class:`KVPool`, and of the mock model.

    ``nbytes(n)``: size of ``n`` blocks. ``read`` copies ``blocks`` to the front of ``out``. ``write`` copies those from
    number ``first`` on, of the ``count`` that ``data`` begins with, into ``blocks``.
    """

    def nbytes(self, num_blocks: int) -> int: ...

    def read(self, blocks: Sequence[int], out: Buffer) -> None: ...

    def write(self, blocks: Sequence[int], data: Buffer, count: int, first: int = 0) -> None: ...


def block_port(runner: Runner) -> BlockPort:
    """How a runner's blocks are copied. Raises ``InvalidParameter`` for one whose K/V is not in this process."""
    if isinstance(pool := getattr(runner, "pool", None), KVPool):
        return PoolPort(pool)
    if isinstance(slots := getattr(runner, "slots", None), np.ndarray):
        return MockPort(slots)
    kind = type(runner).__name__
    raise InvalidParameter(f"K/V blocks of a {kind} cannot be handed over: leave out disaggregated=")


class PoolPort:
    """Blocks of a :class:`~llmlab.engine.kv_pool.KVPool`, on any device."""

    def __init__(self, pool: KVPool) -> None:
        self._parts = [part for pair in zip(pool.keys, pool.values, strict=True) for part in pair]
        self._block_bytes = pool.block_size * pool.bytes_per_token

    def nbytes(self, num_blocks: int) -> int:
        return num_blocks * self._block_bytes

    def read(self, blocks: Sequence[int], out: Buffer) -> None:
        chosen = torch.tensor(blocks, dtype=torch.long)
        for part, view in self._views(out, len(blocks)):
            if part.device.type == "cpu":
                torch.index_select(part, 1, chosen, out=view)
            else:
                view.copy_(part.index_select(1, chosen.to(part.device)))

    def write(self, blocks: Sequence[int], data: Buffer, count: int, first: int = 0) -> None:
        chosen = torch.tensor(blocks, dtype=torch.long)
        for part, view in self._views(data, count):
            part.index_copy_(1, chosen.to(part.device), view[:, first:].to(part.device))

    def _views(self, data: Buffer, count: int) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """Each tensor of the pool with its bytes as ``(heads, count, block_size, dim)``."""
        offset = 0
        for part in self._parts:
            heads, _, block_size, dim = part.shape
            numel = heads * count * block_size * dim
            view = torch.frombuffer(data, dtype=part.dtype, count=numel, offset=offset)
            yield part, view.view(heads, count, block_size, dim)
            offset += numel * part.itemsize


class MockPort:
    """Blocks of the mock model: token ids, eight bytes each."""

    def __init__(self, slots: np.ndarray) -> None:
        self._slots = slots

    def nbytes(self, num_blocks: int) -> int:
        return num_blocks * self._slots[:1].nbytes

    def read(self, blocks: Sequence[int], out: Buffer) -> None:
        self._view(out, len(blocks))[:] = self._slots[list(blocks)]

    def write(self, blocks: Sequence[int], data: Buffer, count: int, first: int = 0) -> None:
        self._slots[list(blocks)] = self._view(data, count)[first:]

    def _view(self, data: Buffer, count: int) -> np.ndarray:
        block_size = self._slots.shape[1]
        view = np.frombuffer(data, dtype=self._slots.dtype, count=count * block_size)
        return view.reshape(count, block_size)
