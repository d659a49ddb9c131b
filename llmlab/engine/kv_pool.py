"""The memory behind the block pool: one key and one value tensor per layer, on that layer's device."""

from __future__ import annotations

from collections.abc import Iterator
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
    Where keys and values have the same size, a layer's value heads follow its key heads in one tensor, so that writing
    and gathering take one operation. The block pool decides who owns which block; this class only stores.
    """

    def __init__(self, shapes: list[LayerShape], num_blocks: int, block_size: int) -> None:
        self.shapes, self.num_blocks, self.block_size = shapes, num_blocks, block_size
        self._stores: list[torch.Tensor] = []
        self._host: list[torch.Tensor] = []
        self._parts: list[list[torch.Tensor]] = [[] for _ in shapes]
        self._buffers: dict[tuple, torch.Tensor] = {}
        for shape in dict.fromkeys(shapes):
            self._allocate(shape)
        self.keys = [parts[0][: shape.num_kv_heads] for parts, shape in zip(self._parts, shapes, strict=True)]
        self.values = [parts[-1][-shape.num_kv_heads :] for parts, shape in zip(self._parts, shapes, strict=True)]
        self._slots = [[part.flatten(1, 2) for part in parts] for parts in self._parts]

    def _allocate(self, shape: LayerShape) -> None:
        """Memory for all layers of one shape together, so that clearing and copying blocks is one operation."""
        layers = [i for i, other in enumerate(self.shapes) if other == shape]
        kv, dims = shape.num_kv_heads, (shape.key_dim, shape.value_dim)
        for heads, dim in [(2 * kv, dims[0])] if dims[0] == dims[1] else [(kv, dim) for dim in dims]:
            size = (len(layers), heads, self.num_blocks, self.block_size, dim)
            self._stores.append(torch.zeros(size, dtype=shape.dtype, device=shape.device))
            for layer, part in zip(layers, self._stores[-1].unbind(), strict=True):
                self._parts[layer].append(part)

    def open_host(self, num_blocks: int) -> None:
        """Allocate a second pool of so many blocks in host memory, all of a block in one piece."""
        self._host = []
        for store in self._stores:
            layers, heads, _, block_size, dim = store.shape
            size, is_far = (num_blocks, layers, heads, block_size, dim), store.device.type == "cuda"
            self._host.append(torch.zeros(size, dtype=store.dtype, pin_memory=is_far))

    @property
    def has_host(self) -> bool:
        """Whether there is a pool in host memory."""
        return bool(self._host)

    def copy_out(self, pairs: list[tuple[int, int]]) -> int:
        """Copy whole blocks, all layers, to the host pool: ``(block, host block)`` pairs. Returns the bytes copied."""
        return sum(host[place].copy_(store[:, :, block]).nbytes for store, host, block, place in self._swapped(pairs))

    def copy_in(self, pairs: list[tuple[int, int]]) -> int:
        """Copy whole blocks back from the host pool: ``(block, host block)`` pairs. Returns the bytes copied."""
        return sum(store[:, :, block].copy_(host[place]).nbytes for store, host, block, place in self._swapped(pairs))

    def _swapped(self, pairs: list[tuple[int, int]]) -> Iterator[tuple[torch.Tensor, torch.Tensor, int, int]]:
        for block, place in pairs:
            for store, host in zip(self._stores, self._host, strict=True):
                yield store, host, block, place

    @property
    def bytes_per_token(self) -> int:
        """Bytes of one token's keys and values over all layers."""
        return sum(shape.bytes_per_token for shape in self.shapes)

    @property
    def nbytes(self) -> int:
        """Bytes allocated, counted from the tensors."""
        return sum(store.nbytes for store in self._stores)

    def write(self, layer: int, slots: torch.Tensor, *new: torch.Tensor) -> None:
        """Scatter new K/V into ``slots`` (``(tokens,)``, block id x block size + offset).

        ``new`` is keys and values, each ``(num_kv_heads, tokens, dim)``, or both in one ``(2 x num_kv_heads, ...)``.
        """
        parts = self._slots[layer]
        if len(parts) < len(new):
            new = (torch.cat(new),)
        for part, fresh in zip(parts, new, strict=True):
            part.index_copy_(1, slots, fresh)

    def gather(self, layer: int, blocks: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Copy ``blocks`` (``(n,)``) out: keys and values of shape ``(num_kv_heads, n x block_size, dim)``."""
        heads, buffers = self.shapes[layer].num_kv_heads, self.buffers_for(layer, len(blocks))
        self.gather_into(layer, blocks, buffers)
        return buffers[0][:heads].flatten(1, 2), buffers[-1][-heads:].flatten(1, 2)

    def gather_into(self, layer: int, blocks: torch.Tensor, buffers: list[torch.Tensor]) -> None:
        """Copy ``blocks`` of a layer into what :meth:`buffers_for` gave for it, or for a layer of the same shape."""
        for part, out in zip(self._parts[layer], buffers, strict=True):
            torch.index_select(part, 1, blocks, out=out)

    def buffers_for(self, layer: int, num_blocks: int) -> list[torch.Tensor]:
        """Room for ``num_blocks`` blocks of a layer: ``(heads, num_blocks, block_size, dim)`` per tensor of the layer.

        All layers share one piece of memory, because fresh memory for every gather costs more in page faults than the
        copy itself: a gather is valid until the next one.
        """
        return [self._buffer(i, part, num_blocks) for i, part in enumerate(self._parts[layer])]

    def _buffer(self, name: int, source: torch.Tensor, num_blocks: int) -> torch.Tensor:
        heads, _, block_size, dim = source.shape
        numel = heads * num_blocks * block_size * dim
        key = (name, source.device, source.dtype)
        buffer = self._buffers.get(key)
        if buffer is None or buffer.numel() < numel:
            buffer = self._buffers[key] = torch.empty(numel * 5 // 4, dtype=source.dtype, device=source.device)
        return buffer[:numel].view(heads, num_blocks, block_size, dim)

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
