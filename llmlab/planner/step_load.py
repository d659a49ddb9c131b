"""What a step has to compute, as a few counts: all that a model of its time needs to know."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from llmlab.trace.events import Step

FEW = 8
"""Rows of up to this many new positions are attended to together, padded to the longest; longer ones one by one."""


@dataclass(frozen=True, slots=True)
class StepLoad:
    """Counts of one step. A row computes ``num_tokens`` positions of one request.

    ``padded``: positions of K/V that rows of one new token read together, each padded to the longest; the same for rows
    of 2 to 8 is added. ``pairs``: (query, key) pairs of the longer rows.
    ``attended``: pairs of all rows without padding, ``read`` positions of K/V of all rows.
    """

    num_rows: int
    num_tokens: int
    padded: int
    pairs: int
    attended: int
    read: int

    @classmethod
    def of(cls, rows: Iterable[tuple[int, int]]) -> StepLoad:
        """The load of rows given as ``(start, num_tokens)``: positions before the row, and in it."""
        num_rows = num_tokens = pairs = attended = read = 0
        count, longest = [0, 0], [0, 0]
        for start, n in rows:
            num_rows += 1
            num_tokens += n
            seen = n * start + n * (n + 1) // 2
            attended += seen
            read += start + n
            if n > FEW:
                pairs += seen
            else:
                kind = n > 1
                count[kind] += 1
                longest[kind] = max(longest[kind], start + n)
        padded = count[0] * longest[0] + count[1] * longest[1]
        return cls(num_rows, num_tokens, padded, pairs, attended, read)

    def later(self, steps: int) -> StepLoad:
        """The load ``steps`` steps later, of a step in which every row decodes one token."""
        more = steps * self.num_rows
        return StepLoad(self.num_rows, self.num_tokens, self.padded + more, 0, self.attended + more, self.read + more)


def load_of(step: Step) -> StepLoad:
    """The load of a recorded step."""
    return StepLoad.of((row.start, row.num_tokens) for row in step.rows)
