"""Do the arrays recorded inside the model agree with what the steps computed?"""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from llmlab.trace.arrays import DTYPES
from llmlab.trace.captures import WITHOUT_COMPUTING
from llmlab.trace.events import Captured, StepRow
from llmlab.trace.index import Index


def capture_violations(index: Index) -> Iterator[str]:
    """All contradictions about captures, one sentence each. A step that is not in the trace excuses its arrays."""
    if not index.captured:
        return
    rows = {(step.step, row.request_id): row for step in index.steps for row in step.rows}
    recorded = {step.step for step in index.steps}
    seen: set[tuple[str, str, int, int]] = set()
    for event in index.captured:
        if event.dtype not in DTYPES or event.nbytes != math.prod(event.shape) * np.dtype(event.dtype).itemsize:
            yield f"array {event.array_id}: {event.nbytes} bytes are not {event.dtype}{list(event.shape)}"
        if event.step in recorded:
            yield from _outside(event, rows.get((event.step, event.request_id)))
        places = {(event.request_id, event.kind, event.layer, p) for p in event.positions}
        if places & seen:
            yield f"array {event.array_id}: some of its positions were recorded before"
        seen |= places


def _outside(event: Captured, row: StepRow | None) -> Iterator[str]:
    """Only positions that the request's row computed can have been looked at; some kinds are known below it too."""
    start = end = 0
    if row is not None:
        start, end = row.start, row.start + row.num_tokens
    first = 0 if event.kind in WITHOUT_COMPUTING else start
    if outside := [p for p in event.positions if not first <= p < end]:
        yield f"array {event.array_id}: position {outside[0]} was not computed in step {event.step}"
