"""Softmax-weighted values without ever holding the whole row: what fused attention kernels do tile by tile."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from llmlab.errors import InvalidParameter


@dataclass(frozen=True, slots=True, eq=False)
class OnlineSoftmax:
    """After keys ``0 .. end - 1``: the largest score so far, the sum of ``exp(score - maximum)``, and the output
    ``(dim,)`` that attention over these keys alone would give. ``correction`` rescaled what came before the tile
    that began at ``start``.
    """

    start: int
    end: int
    maximum: float
    total: float
    correction: float
    output: np.ndarray


def online_softmax_walk(
    scores: np.ndarray, values: np.ndarray, tile: int, sink: float | None = None
) -> Iterator[OnlineSoftmax]:
    """Walk one query's ``scores`` ``(keys,)`` (-inf: not seen) and ``values`` ``(keys, dim)`` in tiles.

    The last step's output is ``softmax(scores) @ values``. ``sink`` is one more score without a value. Computed in
    float64. Raises ``InvalidParameter`` for shapes that do not fit or a tile below 1.
    """
    scores, values = np.asarray(scores, np.float64), np.asarray(values, np.float64)
    if scores.ndim != 1 or values.ndim != 2 or len(scores) != len(values):
        raise InvalidParameter(f"scores {scores.shape} and values {values.shape} must be (keys,) and (keys, dim)")
    if type(tile) is not int or tile < 1:
        raise InvalidParameter(f"tile={tile!r} must be an integer of at least 1")
    return _walk(scores, values, tile, sink)


def _walk(scores: np.ndarray, values: np.ndarray, tile: int, sink: float | None) -> Iterator[OnlineSoftmax]:
    maximum, total = (-np.inf, 0.0) if sink is None else (float(sink), 1.0)
    weighted = np.zeros(values.shape[1])
    for start in range(0, len(scores), tile):
        part = scores[start : start + tile]
        highest = max(maximum, part.max())
        # nothing seen yet: -inf minus -inf is no number
        correction = 1.0 if highest == -np.inf else float(np.exp(maximum - highest))
        weights = np.zeros(len(part)) if highest == -np.inf else np.exp(part - highest)
        total = total * correction + weights.sum()
        weighted = weighted * correction + weights @ values[start : start + tile]
        maximum = float(highest)
        output = weighted / total if total else np.zeros_like(weighted)
        yield OnlineSoftmax(start, start + len(part), maximum, float(total), correction, output)
