"""The target drafts for itself: its first layers, then straight to the final norm and the head.

Those layers' K/V need no second cache. A layer's keys and values depend on the layers below it only, so what the target
has stored for the first layers at the positions it computed *is* what this shortened model would store there:
drafting reads the target's blocks. Keys and values of the draft's own positions are kept beside the pool until the
draft is done. Verification computes them again with all layers, because the rest of the layers need them anyway, and
writes the same numbers; so nothing that is in the pool depends on a draft.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from llmlab.engine import seam
from llmlab.engine.attention import Variant, attend_prefill
from llmlab.engine.lean import LeanModel
from llmlab.engine.model_runner import ModelRunner
from llmlab.engine.speculative.proposer import Draft, DraftRow, Observed
from llmlab.engine.step_view import KWARG, StepView
from llmlab.errors import InvalidParameter


@dataclass(slots=True)
class Past:
    """Keys and values ``(kv, room, dim)`` of one row in one layer: the target's, then the draft's."""

    keys: Tensor
    values: Tensor
    length: int

    def append(self, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Add one position ``(kv, dim)`` and return all so far."""
        self.keys[:, self.length], self.values[:, self.length] = keys, values
        self.length += 1
        return self.keys[:, : self.length], self.values[:, : self.length]


@dataclass(slots=True)
class DraftView(StepView):
    """One draft position per row: attends to the target's blocks and to what the draft has added, writes neither.

    ``tables`` are block tables and ``computed`` how many of their positions count; ``pasts[layer, row]`` lives as long
    as the draft. ``active`` are the rows whose tokens are packed now.
    """

    tables: list[Tensor] = field(default_factory=list)
    computed: list[int] = field(default_factory=list)
    room: int = 0
    active: list[int] = field(default_factory=list)
    pasts: dict[tuple[int, int], Past] = field(default_factory=dict)

    def update(self, keys, values, layer_idx, *args, kwargs=None, **_):
        """Hand keys and values back: :meth:`attend` keeps them."""
        if kwargs is not None:
            kwargs[KWARG] = self
        return keys, values

    def write(self, layer: int, *new: Tensor) -> None:
        """Nothing goes into the pool."""

    def attend(self, layer: int, query: Tensor, keys: Tensor, values: Tensor, variant: Variant) -> Tensor:
        """Query ``(heads, rows, dim)``, keys and values ``(kv, rows, dim)``; returns ``(rows, heads, value dim)``."""
        output = query.new_empty(query.shape[1], len(query), values.shape[-1])
        grouped = query.unflatten(0, (len(keys), -1))
        for place, row in enumerate(self.active):
            past = self._past(layer, row)
            everything = past.append(keys[:, place], values[:, place])
            output[place] = attend_prefill(grouped[:, :, place : place + 1], *everything, variant).flatten(0, 1)[:, 0]
        return output

    def _past(self, layer: int, row: int) -> Past:
        if (layer, row) not in self.pasts:
            length = self.computed[row]
            keys, values = self.pool.gather(layer, self.tables[row].to(self.pool.keys[layer].device))
            room = [part.new_empty(len(part), length + self.room, part.shape[-1]) for part in (keys, values)]
            for copy, part in zip(room, (keys, values), strict=True):
                copy[:, :length] = part[:, :length]
            self.pasts[layer, row] = Past(*room, length)
        return self.pasts[layer, row]


class EarlyExit:
    """Drafts with the target's first ``layers`` layers (default: a third of them).

    A model that was not trained to be read there says little before its last layers: measure before you rely on it.

    Raises ``InvalidParameter`` for a number of layers that the target does not have, or a target whose layers cannot
    be cut.
    """

    name, needs_features, repeatable = "early-exit", False, True

    def __init__(self, runner: ModelRunner, layers: int | None = None) -> None:
        self.runner, self._model = runner, runner.loaded_model
        total = runner.capacity.num_layers
        self.layers = max(1, total // 3) if layers is None else layers
        if type(self.layers) is not int or not 1 <= self.layers <= total:
            raise InvalidParameter(f"layers={layers!r} must be an integer from 1 to {total}, the target's layers")
        self.draft_cost = self.layers / total
        if seam.depends_on_neighbours(self._model):
            raise InvalidParameter("this model's positions depend on its neighbours in the batch: use another proposer")
        self._decoder = self._model.get_decoder()
        self._attribute = _layers_attribute(self._decoder, total)
        self._lean = None if runner.lean is None else LeanModel(self._model, runner.lean.layers[: self.layers])
        self._argument = seam.cache_argument(self._model)

    @torch.inference_mode()
    def propose(self, rows: Sequence[DraftRow]) -> list[Draft]:
        """One shortened forward pass for every draft token, over all rows at once."""
        tables = [torch.tensor(row.block_table) for row in rows]
        shared = {"tables": tables, "computed": [row.num_computed for row in rows], "room": max(row.k for row in rows)}
        pasts: dict[tuple[int, int], Past] = {}
        active = list(range(len(rows)))
        while active:
            logits = self._forward([rows[i] for i in active], active, pasts, shared)
            answers = [rows[i].choose(row) for i, row in zip(active, logits, strict=True)]
            active = [i for i, token in zip(active, answers, strict=True) if token is not None and not rows[i].is_full]
        return [row.draft for row in rows]

    def _forward(self, rows: list[DraftRow], active: list[int], pasts: dict, shared: dict) -> Tensor:
        """Logits ``(rows, vocabulary)`` after each row's last token, drafted ones included."""
        device = self._model.get_input_embeddings().weight.device
        ids = torch.tensor([[row.chosen[-1] if row.chosen else row.tokens[-1] for row in rows]], device=device)
        positions = torch.tensor([[row.num_computed + len(row.chosen) for row in rows]], device=device)
        nothing = torch.empty(0, dtype=torch.long)
        view = DraftView(self.runner.pool, nothing, [], [], active=active, pasts=pasts, **shared)
        keep = torch.arange(len(rows), device=device)
        logits = self._lean and self._lean(ids, positions, view, keep)
        if logits is None:
            with _cut(self._decoder, self._attribute, self.layers):
                logits = seam.call(self._model, self._argument, ids, positions, view, keep)
        return logits

    def observe(self, rows: Sequence[Observed]) -> None:
        """Needs no features."""

    def fork(self, parent_id: str, child_id: str) -> None:
        """Keeps nothing between drafts."""

    def forget(self, request_id: str) -> None:
        """Keeps nothing between drafts."""


def _layers_attribute(decoder: nn.Module, total: int) -> str:
    for name, child in decoder.named_children():
        if isinstance(child, nn.ModuleList) and len(child) == total:
            return name
    raise InvalidParameter(f"the layers of {type(decoder).__name__} were not found: use another proposer")


@contextmanager
def _cut(decoder: nn.Module, attribute: str, count: int) -> Iterator[None]:
    """Let the decoder have its first ``count`` layers only."""
    whole = getattr(decoder, attribute)
    setattr(decoder, attribute, whole[:count])
    try:
        yield
    finally:
        setattr(decoder, attribute, whole)
