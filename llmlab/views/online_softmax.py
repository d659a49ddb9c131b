"""The online softmax: how one row of attention is computed tile by tile, with a running maximum and a running sum.

Whenever a tile raises the maximum, what was summed before is scaled down by ``exp(old maximum - new maximum)``.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise

import numpy as np
import pandas as pd

from llmlab.errors import InvalidParameter
from llmlab.views import looked
from llmlab.views.view import View
from llmlab.views.walk_scene import MAX_TILES, Tile, Walk, keys_of, walk_scene

TOLERANCE = 1e-9


def online_softmax(
    walk: Iterable[Tile],
    *,
    scores: np.ndarray | None = None,
    values: np.ndarray | None = None,
    sink: float | None = None,
    width: float = 960,
) -> View:
    """The steps of ``online_softmax_walk`` (one query): running maximum, correction, running sum, and how far the
    output still is from the last one.

    Give the walk's ``scores`` ``(keys,)`` to see them under the maximum, ``values`` ``(keys, dim)`` too (and the
    ``sink``) to compare the last output with the softmax over the whole row; both must be those that were walked.

    Raises ``InvalidParameter`` for a walk without steps or shapes that do not fit it.
    """
    looked.check_size("width", width, looked.MIN_WIDTH, 4_000)
    steps = _walk(tuple(walk), scores, values, sink)
    text, exact = _text(steps)
    tiles, keys = len(steps.tiles), steps.num_keys
    title = f"Online softmax: {_counted(keys, 'key')} in {_counted(tiles, 'tile')}"
    raised = len(steps.raised)
    lanes = "running maximum, correction, running sum and distance to the last output"
    alt = f"{title}: {lanes}; {_counted(raised, 'correction')}."
    return View(
        "online_softmax", title, alt, text, walk_scene(steps, exact, width), _table(steps), _notes(steps, width)
    )


def _walk(tiles: tuple[Tile, ...], scores, values, sink: float | None) -> Walk:
    if not tiles or any(a.end != b.start for a, b in pairwise(tiles)):
        raise InvalidParameter("walk must hold the steps of online_softmax_walk(scores, values, tile) in their order")
    last = np.asarray(tiles[-1].output, np.float64)
    scores = _checked("scores", scores, (tiles[-1].end,))
    values = _checked("values", values, (tiles[-1].end, *last.shape))
    error = None
    if scores is not None and values is not None:
        error = float(np.abs(_whole(scores, values, sink) - last).max(initial=0))
    names = ("maximum", "total", "correction")
    columns = [np.array([getattr(t, name) for t in tiles], dtype=np.float64) for name in names]
    distance = np.array([np.linalg.norm(np.asarray(t.output) - last) for t in tiles])
    return Walk(tiles, *columns, distance, scores, error)


def _checked(name: str, array, shape: tuple[int, ...]) -> np.ndarray | None:
    if array is None:
        return None
    array = np.asarray(array, np.float64)
    if array.shape != shape:
        raise InvalidParameter(f"{name} {array.shape} must be those that were walked: {shape}")
    return array


def _whole(scores: np.ndarray, values: np.ndarray, sink: float | None) -> np.ndarray:
    """The output of a softmax over the whole row at once."""
    row = scores if sink is None else np.append(scores, sink)
    highest = row.max()
    if highest == -np.inf:
        return np.zeros(values.shape[1])
    weights = np.exp(row - highest)
    return (weights[: len(values)] / weights.sum()) @ values


def _text(steps: Walk) -> tuple[str, str]:
    """The facts, and the sentence about exactness among them."""
    if steps.error is None:
        exact = "not compared with the whole row: give scores= and values="
    elif steps.error <= TOLERANCE:
        exact = f"the last output equals the whole row's softmax within {TOLERANCE:.0e}"
    else:
        exact = f"the last output differs from the whole row's softmax by more than {TOLERANCE:.0e}"
    at = ", ".join(keys_of(steps.tiles[i]) for i in steps.raised[:12]) or "none"
    lines = [
        f"{steps.num_keys} keys, {_counted(len(steps.tiles), 'tile')} of {steps.tiles[0].end - steps.tiles[0].start}",
        f"tiles (keys) that raised the maximum and rescaled the sum: {at}" + (" ..." if len(steps.raised) > 12 else ""),
        exact,
    ]
    return "\n".join(lines), exact


def _counted(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


def _notes(steps: Walk, width: float) -> tuple[str, ...]:
    if len(steps.tiles) <= MAX_TILES:
        return ()
    every = -(-len(steps.tiles) // MAX_TILES)
    return looked.notes_for(
        [f"One tile in {every} is drawn, and the last of {len(steps.tiles)}; the table has all."], width
    )


def _table(steps: Walk) -> pd.DataFrame:
    """One row per tile."""
    return pd.DataFrame(
        {
            "tile": np.arange(len(steps.tiles)),
            "first_key": [t.start for t in steps.tiles],
            "last_key": [t.end - 1 for t in steps.tiles],
            "maximum": steps.maximum,
            "correction": steps.correction,
            "sum": steps.total,
            "distance_to_last_output": steps.distance,
        }
    )
