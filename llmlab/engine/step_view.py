"""Where the tokens of one forward pass live: what the model sees as its cache."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch

from llmlab.engine import varlen
from llmlab.engine.attention import Variant, attend_prefill
from llmlab.engine.kv_pool import KVPool
from llmlab.engine.row_group import GroupAttention, RowGroup
from llmlab.engine.varlen import VarlenTables, attend_varlen

if TYPE_CHECKING:
    from llmlab.probes.step_probe import StepProbe

KWARG = "llmlab_view"


@dataclass(frozen=True, slots=True)
class PrefillRow:
    """Packed tokens ``first .. first + num_tokens - 1`` belong to one request that now has ``length`` positions.

    ``blocks`` is its block table, ``(blocks of length,)``.
    """

    first: int
    num_tokens: int
    length: int
    blocks: torch.Tensor


@dataclass(slots=True)
class StepView:
    """The packed tokens of a step: first the groups of rows with few of them, then the prefill rows.

    ``slots`` ``(tokens,)`` says where each token's K/V goes. The model calls :meth:`update` in every layer, then the
    registered attention function calls :meth:`attend`. ``probe`` looks into the pass for rows that asked for it, and is
    ``None`` when none did.
    """

    pool: KVPool
    slots: torch.Tensor
    groups: list[RowGroup]
    prefills: list[PrefillRow]
    use_varlen: bool = False
    attention_calls: int = 0
    probe: StepProbe | None = None
    _slots: dict[torch.device, torch.Tensor] = field(default_factory=dict)
    _attentions: dict[tuple, list[GroupAttention]] = field(default_factory=dict)
    _varlen_tables: dict[torch.device, VarlenTables] = field(default_factory=dict)
    _rotary: tuple[torch.Tensor, torch.Tensor] | None = None

    # -- the cache protocol of transformers -------------------------------------------------------------------

    def update(self, keys, values, layer_idx, *args, kwargs=None, **_):
        """Scatter ``(1, kv, tokens, dim)`` keys and values into the pool and hand them back unchanged.

        Puts this view into the layer's ``kwargs``, which is how the attention function finds it.
        """
        self.write(layer_idx, keys[0], values[0])
        if kwargs is not None:
            kwargs[KWARG] = self
        return keys, values

    def write(self, layer: int, *new: torch.Tensor) -> None:
        """Scatter the step's keys and values into the pool, see :meth:`KVPool.write`."""
        self.pool.write(layer, self._slots_on(new[0].device), *new)

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Positions come from ``position_ids``; the packed row itself starts at 0."""
        return 0

    def get_mask_sizes(self, query_length, layer_idx: int = 0) -> tuple[int, int]:
        """Sizes of a mask that is never used."""
        return len(self.slots), 0

    def get_query_offset(self, layer_idx: int = 0) -> int:
        """Offset of a mask that is never used."""
        return 0

    def __len__(self) -> int:
        return len(self.pool.keys)

    def rotary(
        self, position_embeddings: tuple[torch.Tensor, torch.Tensor], num_rotated: int, num_fixed: int
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Cosines and signed sines ``(tokens, heads, dim)``: ``x cos + roll(x, dim / 2) sin`` rotates ``num_rotated``
        heads and leaves the ``num_fixed`` after them as they are. Made once a step."""
        cos, sin = position_embeddings
        if self._rotary is None or self._rotary[0].device != cos.device:
            cos, sin = cos[0][:, None], sin[0][:, None]
            low, high = sin.chunk(2, dim=-1)
            ones, zeros = torch.ones_like(cos), torch.zeros_like(sin)
            signed = torch.cat((-low, high), dim=-1)
            self._rotary = (
                torch.cat((cos.expand(-1, num_rotated, -1), ones.expand(-1, num_fixed, -1)), dim=1),
                torch.cat((signed.expand(-1, num_rotated, -1), zeros.expand(-1, num_fixed, -1)), dim=1),
            )
        return self._rotary

    # -- attention --------------------------------------------------------------------------------------------

    def attend(
        self, layer: int, query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, variant: Variant
    ) -> torch.Tensor:
        """Attention of one layer: query ``(heads, tokens, dim)`` and the step's own ``(kv, tokens, dim)``.

        Returns ``(tokens, heads, dim of values)``.
        """
        self.attention_calls += 1
        if self.use_varlen and varlen.supports(variant, query.dtype):
            return self._varlen(layer, query, variant)
        groups, packed = self._group_attentions(layer, variant), query.transpose(0, 1)
        if not self.prefills and len(groups) == 1:
            return groups[0].attend(layer, packed, variant)
        output = query.new_empty(query.shape[1], len(query), values.shape[-1])
        for group, attention in zip(self.groups, groups, strict=True):
            output[group.span] = attention.attend(layer, packed[group.span], variant)
        grouped = query.unflatten(0, (len(keys), -1))
        for row in self.prefills:
            span = slice(row.first, row.first + row.num_tokens)
            past_and_new = self._keys_of(layer, row, keys[:, span], values[:, span])
            attended = attend_prefill(grouped[:, :, span], *past_and_new, variant)
            output[span] = attended.flatten(0, 1).transpose(0, 1)
        return output

    def _varlen(self, layer: int, query: torch.Tensor, variant: Variant) -> torch.Tensor:
        if query.device not in self._varlen_tables:
            self._varlen_tables[query.device] = VarlenTables.of(self, query.device)
        keys, values = self.pool.keys[layer], self.pool.values[layer]
        tables = self._varlen_tables[query.device]
        return attend_varlen(query.transpose(0, 1), keys, values, tables, variant)

    def _group_attentions(self, layer: int, variant: Variant) -> list[GroupAttention]:
        """Shared by all layers of one shape and variant (``sinks`` differ by layer, their presence does not)."""
        key = (self.pool.shapes[layer], variant.window, variant.softcap, variant.sinks is None)
        if key not in self._attentions:
            self._attentions[key] = [GroupAttention(self.pool, layer, group, variant) for group in self.groups]
        return self._attentions[key]

    def _keys_of(self, layer: int, row: PrefillRow, keys: torch.Tensor, values: torch.Tensor) -> tuple:
        """All positions of a prefill row; without a past they are the ones just computed."""
        if row.length == row.num_tokens:
            return keys, values
        past_keys, past_values = self.pool.gather(layer, row.blocks.to(keys.device))
        return past_keys[:, : row.length], past_values[:, : row.length]

    def _slots_on(self, device: torch.device) -> torch.Tensor:
        if device not in self._slots:
            self._slots[device] = self.slots.to(device)
        return self._slots[device]
