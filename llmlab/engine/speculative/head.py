"""A trained head drafts: it reads the target's features, so it needs next to no computation of its own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from llmlab.engine.speculative.head_files import load_head, output_rows
from llmlab.engine.speculative.head_model import DraftHead, Projected, attend
from llmlab.engine.speculative.proposer import Draft, DraftRow, Observed
from llmlab.models.fuse import pack_linears, packing_works

if TYPE_CHECKING:
    from llmlab.models.load import LoadedModel


@dataclass(slots=True)
class Context:
    """What the head knows of one request.

    ``keys`` and ``values`` ``(kv_heads, n, head_dim)`` belong to the indices ``end - n .. end - 1``, made from the
    target's features and tokens that are final. ``pending`` are features from position ``end`` on, not yet
    seen by the head: index ``i`` also needs token ``i + 1``, and a rejected draft's features are never used.
    """

    end: int
    keys: Tensor | None = None
    values: Tensor | None = None
    pending: list[Tensor] = field(default_factory=list)

    @property
    def known(self) -> int:
        """The first position whose feature is not known."""
        return self.end + sum(len(features) for features in self.pending)

    def cut(self, position: int) -> None:
        """Forget everything from ``position`` on."""
        if position >= self.end:
            features = torch.cat(self.pending)[: position - self.end]
            self.pending = [features] if len(features) else []
            return
        dropped, self.pending = self.end - position, []
        self.end = position
        if self.keys is not None:
            kept = max(0, self.keys.shape[1] - dropped)
            self.keys, self.values = (self.keys[:, :kept], self.values[:, :kept]) if kept else (None, None)

    def add(self, features: Tensor, window: int) -> None:
        """Features of the positions that follow; more than ``window`` of them are never attended to."""
        self.pending.append(features)
        if (surplus := self.known - self.end - window) > 0:
            self.pending = [torch.cat(self.pending)[surplus:]]
            self.end, self.keys, self.values = self.end + surplus, None, None

    def extend(self, key: Tensor, value: Tensor, window: int) -> tuple[Tensor, Tensor]:
        """Keys and values ``(kv_heads, n, head_dim)`` with new ones after them, all but the last ``window`` dropped."""
        if self.keys is not None:
            key, value = torch.cat((self.keys, key), dim=1), torch.cat((self.values, value), dim=1)
        return key[:, -window:], value[:, -window:]


@dataclass(slots=True)
class Going:
    """A row that is being drafted for, with its context and its newest estimated feature ``(width,)``."""

    row: DraftRow
    context: Context
    estimate: Tensor | None = None


class TrainedHead:
    """Keeps keys and values per request, from the target's features at every position it has seen computed.

    Positions served from the prefix cache have none: the context then begins after them, which costs acceptance at
    first but nothing else. That is also why a draft is not repeatable. ``embedding`` ``(vocabulary, width)`` and
    ``rows`` ``(drafted, width)`` are the target's; ``drafted`` ``(drafted,)`` are the ids the rows belong to.
    """

    name, needs_features, repeatable = "head", True, False
    draft_cost = 0.065  # of a decode step of the model with 30 layers that a head comes with (CPU, measured)

    def __init__(self, head: DraftHead, embedding: Tensor, rows: Tensor, drafted: Tensor) -> None:
        self.drafted, self.embedding = drafted.to("cpu"), embedding.detach()
        output = nn.Linear(rows.shape[1], rows.shape[0], bias=False, device="meta")
        output.weight = nn.Parameter(rows.detach(), requires_grad=False)
        self.window = head.config.window
        self._parts = nn.ModuleDict({"head": head, "output": output}).to(embedding.device, embedding.dtype)
        self._parts.requires_grad_(False).eval()
        if embedding.device.type == "cpu" and packing_works(embedding.dtype):
            pack_linears(self._parts)
        self._contexts: dict[str, Context] = {}

    @classmethod
    def load(cls, target: LoadedModel, folder: Path | None = None) -> TrainedHead:
        """The head that comes with ``target``, or the one in ``folder``.

        Raises ``HeadMismatch`` when there is none, or when it was trained for other weights.
        """
        head, drafted = load_head(target, folder)
        embedding = target.model.get_input_embeddings().weight
        return cls(head, embedding, output_rows(target.model, drafted), drafted)

    # -- what the target computed ---------------------------------------------------------------------------

    def observe(self, rows: Sequence[Observed]) -> None:
        """Keep features until the tokens that follow them are known."""
        for row in rows:
            context = self._contexts.get(row.request_id)
            if context is None or row.start > context.known:  # a gap: positions from the prefix cache
                context = self._contexts[row.request_id] = Context(row.start)
            elif row.start < context.known:  # a rejected draft, or a preemption
                context.cut(row.start)
            context.add(row.features, self.window)

    # -- drafting -------------------------------------------------------------------------------------------

    @torch.inference_mode()
    def propose(self, rows: Sequence[DraftRow]) -> list[Draft]:
        """Let every context catch up with its request, then draft a token for all rows at once, again and again."""
        going = [Going(row, context) for row in rows if (context := self._current(row)) is not None]
        if going:
            self._catch_up(going)
        while going := self._choose(going):
            self._go_on(going)
        return [row.draft for row in rows]

    def _current(self, row: DraftRow) -> Context | None:
        """The row's context without what a rejection left in it; ``None`` when the last feature is not known."""
        context = self._contexts.get(row.request_id)
        if context is None:
            return None
        if context.known > row.num_computed:
            context.cut(row.num_computed)
        return context if context.pending and context.known == row.num_computed else None

    def _catch_up(self, going: list[Going]) -> None:
        """Extend every context with the target's own features; the last index's estimate begins the draft."""
        features = [torch.cat(one.context.pending) for one in going]
        followers = [one.row.tokens[one.context.end + 1 : one.row.num_computed + 1] for one in going]
        for one in going:
            one.context.pending = []
        self._advance(going, features, followers)
        for one in going:  # what is drafted must not enter the request's own context
            one.context = replace(one.context)

    def _go_on(self, going: list[Going]) -> None:
        """One index further, from the head's own estimates and the tokens it chose."""
        self._advance(going, [one.estimate[None] for one in going], [one.row.chosen[-1:] for one in going])

    def _advance(self, going: list[Going], features: list[Tensor], followers: list[Sequence[int]]) -> None:
        """Take every row as many indices further as it has ``features`` ``(n, width)`` and ``followers``: linear layers
        over all rows packed, attention row by row."""
        positions = [range(one.context.end, one.context.end + len(f)) for one, f in zip(going, features, strict=True)]
        projected = self._project(torch.cat(features), list(chain(*followers)), list(chain(*positions)))
        attended, last, first = [], [], 0
        for one, new in zip(going, features, strict=True):
            here, context = slice(first, first + len(new)), one.context
            key, value = projected.key[0, :, here], projected.value[0, :, here]
            context.keys, context.values = context.extend(key, value, self.window)
            attended.append(self._attend(projected.query[0, :, here], context.keys, context.values))
            context.end, first = context.end + len(new), first + len(new)
            last.append(first - 1)
        estimates = self._parts["head"].finish(projected, torch.cat(attended, dim=1)[None])[0]
        for one, index in zip(going, last, strict=True):
            one.estimate = estimates[index]

    def _choose(self, going: list[Going]) -> list[Going]:
        """Add a token to every draft; returns those that want another."""
        if not going:
            return []
        logits = self._parts["output"](torch.stack([one.estimate for one in going])).cpu()
        return [
            one
            for one, row_logits in zip(going, logits, strict=True)
            if one.row.choose(row_logits, self.drafted) is not None and not one.row.is_full
        ]

    def _project(self, features: Tensor, followers: list[int], positions: list[int]) -> Projected:
        device = self.embedding.device
        embedded = self.embedding[torch.tensor(followers, device=device)]
        features = features.to(device, self.embedding.dtype)
        return self._parts["head"].project(features[None], embedded[None], torch.tensor(positions, device=device))

    def _attend(self, query: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        """``(heads, n, head_dim)``: the last ``n`` of the keys belong to the query's own indices."""
        size, total = query.shape[1], keys.shape[1]
        mask = None
        if size > 1:
            mask = torch.ones(size, total, dtype=torch.bool, device=query.device).tril(total - size)
        return attend(query[None], keys[None], values[None], mask)[0]

    # -- lives of requests ----------------------------------------------------------------------------------

    def fork(self, parent_id: str, child_id: str) -> None:
        """The child begins with what is known of the parent's prompt."""
        if (context := self._contexts.get(parent_id)) is not None:
            self._contexts[child_id] = replace(context, pending=list(context.pending))

    def forget(self, request_id: str) -> None:
        """Drop a request's context."""
        self._contexts.pop(request_id, None)
