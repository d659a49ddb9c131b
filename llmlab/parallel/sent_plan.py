"""A step's plan as integers: what crosses from the process that schedules to those that compute."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any

from llmlab.engine.plan import ScheduledRow, StepPlan


@dataclass(frozen=True, slots=True, eq=False)
class SentRow:
    """A :class:`~llmlab.engine.plan.ScheduledRow` as far as a forward pass needs it, or a part of one.

    ``token_ids`` are those at positions ``start .. end - 1``, ``block_table`` the request's; ``num_logits`` of the last
    positions need logits. It is its own ``request``, because the runner looks for the block table there; no probe is
    ever sent.
    """

    start: int
    token_ids: tuple[int, ...]
    block_table: tuple[int, ...]
    num_logits: int

    @property
    def request(self) -> SentRow:
        """Where the runner looks for the block table."""
        return self

    @property
    def probe(self) -> None:
        """Nobody looks inside another process."""
        return None

    @property
    def num_tokens(self) -> int:
        """Positions of the row."""
        return len(self.token_ids)

    @property
    def end(self) -> int:
        """First position after the row."""
        return self.start + len(self.token_ids)

    def part(self, first: int, end: int) -> SentRow:
        """The row's tokens ``first .. end - 1``, with those of its logits that belong to them."""
        without = self.num_tokens - self.num_logits
        wanted = max(0, end - max(first, without))
        return replace(self, start=self.start + first, token_ids=self.token_ids[first:end], num_logits=wanted)


@dataclass(frozen=True, slots=True)
class SentPlan:
    """A :class:`~llmlab.engine.plan.StepPlan` as integers."""

    step: int
    rows: list[SentRow]
    copies: list[tuple[int, int]] = field(default_factory=list)

    @classmethod
    def of(cls, plan: StepPlan) -> SentPlan:
        """What the scheduler decided, without the requests themselves."""
        return cls(plan.step, [_sent(row) for row in plan.rows], list(plan.copies))

    @property
    def swaps(self) -> tuple:
        """None: a divided model has no host pool."""
        return ()

    @property
    def num_tokens(self) -> int:
        """Positions computed, over all rows."""
        return sum(row.num_tokens for row in self.rows)

    def to_json(self) -> dict[str, Any]:
        """Numbers and lists of numbers only."""
        rows = [[row.start, row.num_logits, row.token_ids, row.block_table] for row in self.rows]
        return {"step": self.step, "rows": rows, "copies": self.copies}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> SentPlan:
        """What :meth:`to_json` made."""
        rows = [SentRow(start, tuple(ids), tuple(table), logits) for start, logits, ids, table in data["rows"]]
        return cls(data["step"], rows, [tuple(pair) for pair in data["copies"]])


def _sent(row: ScheduledRow) -> SentRow:
    return SentRow(row.start, tuple(row.token_ids), tuple(row.request.block_table), row.num_logits)


def micro_batches(plan: SentPlan, count: int) -> list[SentPlan]:
    """The plan in at most ``count`` parts of about equally many tokens, in order.

    Long rows are cut: a later part of a row finds the K/V of an earlier one, because every process computes the parts
    in this order. Block copies come with the first part.
    """
    count = max(1, min(count, plan.num_tokens))
    bounds = [plan.num_tokens * i // count for i in range(count + 1)]
    parts = [_between(plan.rows, low, high) for low, high in pairwise(bounds)]
    return [SentPlan(plan.step, rows, plan.copies if i == 0 else []) for i, rows in enumerate(parts)]


def _between(rows: Sequence[SentRow], low: int, high: int) -> list[SentRow]:
    """What of the rows lies at the packed places ``low .. high - 1``."""
    found, at = [], 0
    for row in rows:
        first, end = max(low - at, 0), min(high - at, row.num_tokens)
        if first < end:
            found.append(row if end - first == row.num_tokens else row.part(first, end))
        at += row.num_tokens
    return found
