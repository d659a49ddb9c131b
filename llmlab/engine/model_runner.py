"""Runs a transformers model on paged K/V: plan -> packed tensors -> logits."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import cached_property
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from llmlab.engine import seam
from llmlab.engine.kv_pool import KVPool
from llmlab.engine.lean import LeanModel
from llmlab.engine.plan import ScheduledRow, StepPlan, Swap
from llmlab.engine.row_group import MAX_GROUPED, RowGroup
from llmlab.engine.runner import Capacity
from llmlab.engine.step_view import PrefillRow, StepView
from llmlab.models.load import LoadedModel

if TYPE_CHECKING:
    from llmlab.probes.anatomy import Anatomy
    from llmlab.probes.step_probe import StepProbe


@dataclass(frozen=True, slots=True)
class Batch:
    """The tensors of one forward pass.

    ``keep`` lists packed positions whose logits are wanted, in plan order; ``fresh`` the blocks entered in this step.
    ``rows`` are in the order in which they are packed. ``copies`` and ``swaps`` are the plan's.
    """

    input_ids: torch.Tensor
    positions: torch.Tensor
    keep: torch.Tensor
    view: StepView
    copies: list[tuple[int, int]]
    fresh: torch.Tensor
    rows: list[ScheduledRow]
    swaps: Sequence[Swap] = ()


class ModelRunner:
    """A :class:`~llmlab.engine.runner.Runner` over a loaded model and its K/V pool."""

    def __init__(
        self, loaded: LoadedModel, pool: KVPool, use_varlen: bool = False, lean: LeanModel | None = None
    ) -> None:
        self.pool, self.use_varlen, self._lean = pool, use_varlen, lean
        self.model, self.device, self.dtype = loaded.name, str(loaded.device), str(loaded.dtype).split(".")[-1]
        self._model, self.quantized = loaded.model, loaded.quantized
        self._input_device = loaded.model.get_input_embeddings().weight.device
        self._argument = seam.cache_argument(loaded.model)
        self._features: list[tuple[ScheduledRow, torch.Tensor]] | None = None
        self._hidden: torch.Tensor | None = None
        self._packs = not seam.depends_on_neighbours(loaded.model)
        self.capacity = Capacity(
            pool.num_blocks,
            pool.block_size,
            len(pool.shapes),
            pool.shapes[0].num_kv_heads,
            pool.shapes[0].key_dim,
            pool.bytes_per_token,
            loaded.model.config.get_text_config().vocab_size,
            min(loaded.max_model_len, seam.longest_context(loaded.model) or loaded.max_model_len),
            getattr(loaded.model.config.get_text_config(), "num_attention_heads", 0) or 0,
        )

    @cached_property
    def anatomy(self) -> Anatomy:
        """Where the model's parts are, for probes."""
        from llmlab.probes.anatomy import Anatomy

        return Anatomy(self._model)

    def _probed(self, view: StepView, plan: StepPlan, firsts: dict[int, int]) -> StepView:
        from llmlab.probes.view import probed_view

        return probed_view(view, self.anatomy, plan, firsts)

    @property
    def lean(self) -> LeanModel | None:
        """What runs the model without its own wrappers, where that is known how."""
        return self._lean

    @property
    def loaded_model(self) -> torch.nn.Module:
        """The model itself."""
        return self._model

    def keep_features(self) -> None:
        """From now on keep each step's hidden states after the final norm for :meth:`take_features`."""
        self._features = []
        if self._lean is not None:
            self._lean.keeps_features = True
        self._model.get_decoder().register_forward_hook(self._keep_hidden)

    def _keep_hidden(self, module: torch.nn.Module, args: tuple, output: Any) -> None:
        self._hidden = output[0][0]

    def _collect(self, batch: Batch) -> None:
        hidden, self._hidden = self._hidden, None
        if hidden is None:
            hidden, self._lean.features = self._lean.features, None
        first = 0
        for row in batch.rows:
            self._features.append((row, hidden[first : first + row.num_tokens]))
            first += row.num_tokens

    def take_features(self) -> list[tuple[ScheduledRow, torch.Tensor]]:
        """The last step's rows with their hidden states ``(num_tokens, width)``, each once."""
        features, self._features = self._features, []
        return features

    def build(self, plan: StepPlan) -> list[Batch]:
        """The forward passes of a step: one for all rows, or one a row where packing would mix them up."""
        if self._packs or len(plan.rows) == 1:
            return [self._build(plan)]
        first, *others = plan.rows
        return [
            self._build(StepPlan(plan.step, [first], plan.copies, plan.swaps)),
            *(self._build(StepPlan(plan.step, [row])) for row in others),
        ]

    def _build(self, plan: StepPlan) -> Batch:
        """Pack rows: decoding ones first (one token each), then verified drafts, then prefill rows."""
        order = sorted(plan.rows, key=_packing)
        starts = np.cumsum([0] + [row.num_tokens for row in order])
        ids = np.empty((3, starts[-1]), dtype=np.int64)
        for row, first in zip(order, starts, strict=False):
            self._pack(row, ids[:, first : first + row.num_tokens])
        packed = torch.from_numpy(ids).to(self._input_device)
        firsts = dict(zip(map(id, order), starts.tolist(), strict=False))
        view = self._view(packed[2], order, starts.tolist())
        if any(row.request.probe is not None and row.request.probe.is_inside for row in order):
            view = self._probed(view, plan, firsts)
        return Batch(
            packed[None, 0],
            packed[None, 1],
            self._kept(plan, firsts),
            view,
            plan.copies,
            packed[2][packed[1] % self.pool.block_size == 0] // self.pool.block_size,
            order,
            plan.swaps,
        )

    def _pack(self, row: ScheduledRow, out: np.ndarray) -> None:
        """Token ids, positions and slots of one row."""
        positions = np.arange(row.start, row.end)
        blocks, offsets = np.divmod(positions, self.pool.block_size)
        out[0] = row.token_ids
        out[1] = positions
        out[2] = np.asarray(row.request.block_table)[blocks] * self.pool.block_size + offsets

    def _kept(self, plan: StepPlan, starts: dict[int, int]) -> torch.Tensor:
        kept = []
        for row in plan.rows:
            end = starts[id(row)] + row.num_tokens
            kept.extend(range(end - row.num_logits, end))
        return torch.tensor(kept, dtype=torch.long, device=self._input_device)

    def _view(self, slots: torch.Tensor, order: list[ScheduledRow], starts: list[int]) -> StepView:
        few = [
            [(row, first) for row, first in zip(order, starts, strict=False) if _packing(row) == kind]
            for kind in range(3)
        ]
        groups = [self._group(rows) for rows in few[:2] if rows]
        prefills = [
            PrefillRow(first, row.num_tokens, row.end, torch.tensor(row.request.block_table)) for row, first in few[2]
        ]
        return StepView(self.pool, slots, groups, prefills, self.use_varlen)

    def _group(self, rows: list[tuple[ScheduledRow, int]]) -> RowGroup:
        tables = [row.request.block_table for row, _ in rows]
        blocks = np.zeros((len(tables), max(map(len, tables))), dtype=np.int64)
        for i, table in enumerate(tables):
            # padding is masked, but a NaN in it would still spread: only the row's own blocks are known to be clean
            blocks[i] = table[0]
            blocks[i, : len(table)] = table
        lengths = torch.tensor([row.end for row, _ in rows], dtype=torch.long)
        return RowGroup(rows[0][1], tuple(row.num_tokens for row, _ in rows), torch.from_numpy(blocks), lengths)

    def open_host(self, num_blocks: int) -> None:
        """Allocate a second pool of so many blocks in host memory."""
        self.pool.open_host(num_blocks)

    def swap(self, swaps: Sequence[Swap]) -> None:
        """Copy blocks between the pools, one swap after the other, and note in each its times and bytes."""
        for swap in swaps:
            swap.t_ns = perf_counter_ns()
            swap.nbytes = self.pool.copy_out(swap.pairs) if swap.is_out else self.pool.copy_in(swap.pairs)
            self._await_device()
            swap.end_ns = perf_counter_ns()

    def _await_device(self) -> None:
        """What is timed has to have happened: CUDA only queues work."""
        if self._input_device.type == "cuda":
            torch.cuda.synchronize(self._input_device)

    def _move_blocks(self, batch: Batch) -> None:
        """Copies first: a block copied from may have found a new owner in this very step."""
        if batch.swaps:
            self.swap([swap for swap in batch.swaps if swap.is_out])
        self.pool.copy_blocks(batch.copies)
        if batch.swaps:
            self.swap([swap for swap in batch.swaps if not swap.is_out])

    @torch.inference_mode()
    def forward(self, batches: list[Batch]) -> torch.Tensor:
        """Move blocks between and within the pools, then run the model over all packed tokens."""
        logits = []
        for batch in batches:
            self._move_blocks(batch)
            self.pool.clear(batch.fresh)
            logits.append(self._forward(batch))
            if self._features is not None:
                self._collect(batch)
        if self.pool.has_host:  # then the time of this pass decides what is swapped
            self._await_device()
        return logits[0] if len(logits) == 1 else torch.cat(logits)

    def _forward(self, batch: Batch) -> torch.Tensor:
        keep = batch.keep if len(batch.keep) else batch.keep.new_zeros(1)  # not every kernel takes no rows
        logits = self._lean and self._lean(batch.input_ids, batch.positions, batch.view, keep)
        probe = batch.view.probe
        if logits is None:
            with nullcontext() if probe is None else _watching(probe):
                logits = seam.call(self._model, self._argument, batch.input_ids, batch.positions, batch.view, keep)
        if probe is not None:
            probe.finish(logits)
        return logits[: len(batch.keep)]


def _packing(row: ScheduledRow) -> int:
    """Where a row is packed: 0 with those that decode, 1 with the other short ones, 2 with the prefill rows."""
    return 0 if row.num_tokens == 1 else 1 if row.num_tokens <= MAX_GROUPED else 2


def _watching(probe: StepProbe) -> AbstractContextManager[None]:
    from llmlab.probes.hooks import watching

    return watching(probe)
