"""The memory behind the block pool: one key and one value tensor per layer, on that layer's device."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True)
class LayerShape:
    """What one layer stores per token: ``num_kv_heads`` keys of ``key_dim`` and values of ``value_dim``."""

    num_kv_heads: int
    key_dim: int
    value_dim: int
    device: torch.device
    dtype: torch.dtype

    @property
    def bytes_per_token(self) -> int:
        """Bytes of one token's key and value in this layer."""
        return self.num_kv_heads * (self.key_dim + self.value_dim) * self.dtype.itemsize


class KVPool:
    """K/V of all layers, heads first: ``keys[layer]`` is ``(num_kv_heads, num_blocks, block_size, key_dim)``.

    Heads come first so that the gathered keys of one request and head lie in one piece, as matrix products want them.
    The block pool decides who owns which block; this class only stores.
    """

    def __init__(self, shapes: list[LayerShape], num_blocks: int, block_size: int) -> None:
        self.shapes, self.num_blocks, self.block_size = shapes, num_blocks, block_size
        self._stores: list[torch.Tensor] = []
        self._buffers: dict[tuple, torch.Tensor] = {}
        self.keys: list[torch.Tensor] = []
        self.values: list[torch.Tensor] = []
        self._allocate()

    def _allocate(self) -> None:
        """One tensor for all layers of a shape and device, so that clearing and copying blocks is one operation."""
        wanted = [(s.device, s.dtype, s.num_kv_heads, dim) for s in self.shapes for dim in (s.key_dim, s.value_dim)]
        parts: dict[tuple, list[torch.Tensor]] = {}
        for kind, count in Counter(wanted).items():
            device, dtype, heads, dim = kind
            size = (count, heads, self.num_blocks, self.block_size, dim)
            self._stores.append(torch.zeros(size, dtype=dtype, device=device))
            parts[kind] = list(self._stores[-1].unbind())
        tensors = [parts[kind].pop(0) for kind in wanted]
        self.keys, self.values = tensors[0::2], tensors[1::2]

    @property
    def bytes_per_token(self) -> int:
        """Bytes of one token's keys and values over all layers."""
        return sum(shape.bytes_per_token for shape in self.shapes)

    @property
    def nbytes(self) -> int:
        """Bytes allocated, counted from the tensors."""
        return sum(store.nbytes for store in self._stores)

    def write(self, layer: int, slots: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> None:
        """Scatter ``(num_kv_heads, tokens, dim)`` into ``slots`` (``(tokens,)``, block id x block size + offset)."""
        self.keys[layer].flatten(1, 2).index_copy_(1, slots, keys)
        self.values[layer].flatten(1, 2).index_copy_(1, slots, values)

    def gather(self, layer: int, blocks: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Copy ``blocks`` (``(n,)``) out: keys and values of shape ``(num_kv_heads, n x block_size, dim)``.

        The result is valid until the next call: all layers share one buffer, because fresh memory for every gather
        costs more in page faults than the copy itself.
        """
        keys = self._select("keys", self.keys[layer], blocks)
        values = self._select("values", self.values[layer], blocks)
        return keys, values

    def _select(self, name: str, source: torch.Tensor, blocks: torch.Tensor) -> torch.Tensor:
        heads, _, block_size, dim = source.shape
        numel = heads * len(blocks) * block_size * dim
        key = (name, source.device, source.dtype)
        buffer = self._buffers.get(key)
        if buffer is None or buffer.numel() < numel:
            buffer = self._buffers[key] = torch.empty(numel * 5 // 4, dtype=source.dtype, device=source.device)
        out = buffer[:numel].view(heads, len(blocks), block_size, dim)
        return torch.index_select(source, 1, blocks, out=out).flatten(1, 2)

    def clear(self, blocks: torch.Tensor) -> None:
        """Zero ``blocks`` (``(n,)``) in all layers: a masked position still spreads the NaN of an earlier owner."""
        if len(blocks):
            for store in self._stores:
                store.index_fill_(2, blocks.to(store.device), 0)

    def copy_blocks(self, copies: list[tuple[int, int]]) -> None:
        """Copy whole blocks, all layers, in order: ``(source, target)`` pairs."""
        for source, target in copies:
            for store in self._stores:
                store[:, :, target] = store[:, :, source]
