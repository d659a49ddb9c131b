"""The table of scheduling decisions: for every step and every request, what happened and why."""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np
import pandas as pd

from llmlab.trace.columns import integers, objects, table
from llmlab.trace.index import Index

HOLDING = ("waited", "preempted")


@dataclass(slots=True)
class _Verdicts:
    """Decisions as arrays of one length. ``rank`` orders those about the same request in the same step."""

    step: np.ndarray
    request: np.ndarray
    action: np.ndarray
    reason: np.ndarray
    by: np.ndarray
    rank: np.ndarray

    def take(self, places: np.ndarray) -> _Verdicts:
        """Some of them, in the given order."""
        return _Verdicts(*(getattr(self, f.name)[places] for f in fields(self)))

    def __add__(self, other: _Verdicts) -> _Verdicts:
        return _Verdicts(*(np.concatenate([getattr(self, f.name), getattr(other, f.name)]) for f in fields(self)))


def schedule(index: Index) -> pd.DataFrame:
    """One row per (step, request) about which there is a decision, those that hold repeated for every step.

    Where a request ran, that is its row; otherwise the last decision of the step is, a change before a wait.
    A preempted request goes on waiting for the reason it was preempted, until a newer decision.
    """
    decided = _recorded(index)
    verdicts = decided + _held(index, decided)
    stride = _stride(index, verdicts.step)
    row_key, row_order = _row_keys(index, stride)
    verdicts = _one_per_step(verdicts + _ran_without_decision(index), row_key, stride)
    key = verdicts.request * stride + verdicts.step
    place, has_row = _lookup(row_key, key)
    rows, picked = index.rows, row_order[place] if len(row_order) else place
    return table(
        "schedule",
        {
            "step": verdicts.step,
            "request_id": objects(np.array(index.request_ids, dtype=object)[verdicts.request]),
            "action": objects(verdicts.action),
            "reason": objects(verdicts.reason),
            "admission": objects(_admissions(decided, key, stride)),
            "num_tokens": _where(has_row, rows.num_tokens, picked),
            "start": integers(_where(has_row, rows.start, picked)).mask(~has_row),
            "num_cached": _where(has_row, rows.num_cached, picked),
            "is_prefill": _where(has_row, rows.is_prefill, picked).astype(bool),
            "by": objects(verdicts.by),
        },
    )


def _recorded(index: Index) -> _Verdicts:
    decisions = index.decisions
    return _Verdicts(
        np.array([d.step for d in decisions], dtype=np.int64),
        np.array([index.code[d.request_id] for d in decisions], dtype=np.int64),
        np.array([d.action for d in decisions], dtype=object),
        np.array([d.reason for d in decisions], dtype=object),
        np.array([d.by for d in decisions], dtype=object),
        np.arange(len(decisions)),
    )


def _held(index: Index, decided: _Verdicts) -> _Verdicts:
    """Copies of holding decisions for the steps after their own and before the request's next decision."""
    order = np.lexsort((decided.rank, decided.request))
    last = np.append(decided.request[order][1:] != decided.request[order][:-1], True)[: len(order)]
    until = np.append(decided.step[order][1:], 0)[: len(order)]
    until[last] = np.iinfo(np.int64).max
    ends = {index.code[i]: f.step for i, f in index.finished.items()}
    finished = np.array([ends.get(r, np.iinfo(np.int64).max) for r in decided.request[order].tolist()], np.int64)
    holding = np.isin(decided.action[order], HOLDING)
    source = decided.take(order[holding])
    first = np.searchsorted(index.step_numbers, source.step, side="right")
    end = np.searchsorted(index.step_numbers, np.minimum(until, finished)[holding], side="left")
    counts = (end - first).clip(min=0)
    which, offset = spread(counts)
    held = source.take(which)
    held.step = index.step_numbers[first[which] + offset]
    held.action = np.full(len(which), "waited", dtype=object)
    held.rank = np.full(len(which), -1)
    return held


def spread(counts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """For ``counts = [2, 3]``: which ``[0, 0, 1, 1, 1]`` and offset ``[0, 1, 0, 1, 2]``."""
    which = np.repeat(np.arange(len(counts)), counts)
    return which, np.arange(len(which)) - np.repeat(np.cumsum(counts) - counts, counts)


def _ran_without_decision(index: Index) -> _Verdicts:
    """A row proves that a request ran, also when the decision is not in the trace."""
    rows, n = index.rows, len(index.rows.step)
    nothing = np.full(n, None, dtype=object)
    ran, unknown = np.full(n, "ran", dtype=object), np.full(n, "", dtype=object)
    return _Verdicts(index.step_numbers[rows.step], rows.request, ran, unknown, nothing, np.full(n, -2))


def _one_per_step(verdicts: _Verdicts, row_key: np.ndarray, stride: int) -> _Verdicts:
    """For each (step, request) the one that explains its row, else the last that is not ``waited``."""
    key = verdicts.request * stride + verdicts.step
    explains = _lookup(row_key, key)[1] & (verdicts.action == "ran")
    weight = 2 * explains + (verdicts.action != "waited")
    order = np.lexsort((verdicts.rank, weight, verdicts.request, verdicts.step))
    ordered = key[order]
    is_last = np.append(ordered[1:] != ordered[:-1], True)[: len(order)]
    return verdicts.take(order[is_last])


def _admissions(decided: _Verdicts, key: np.ndarray, stride: int) -> np.ndarray:
    admitted = decided.take(np.flatnonzero(decided.action == "admitted"))
    reasons = dict(zip((admitted.request * stride + admitted.step).tolist(), admitted.reason, strict=True))
    found = np.full(len(key), None, dtype=object)
    for place in np.flatnonzero(np.isin(key, list(reasons))).tolist():
        found[place] = reasons[int(key[place])]
    return found


def _stride(index: Index, steps: np.ndarray) -> int:
    return int(max(steps.max(initial=0), index.step_numbers.max(initial=0))) + 1


def _row_keys(index: Index, stride: int) -> tuple[np.ndarray, np.ndarray]:
    """Sorted keys of all rows, and the places of the rows in that order."""
    rows = index.rows
    key = rows.request * stride + index.step_numbers[rows.step]
    order = np.argsort(key, kind="stable")
    return key[order], order


def _lookup(ordered: np.ndarray, key: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Places of keys in an ordered array, and whether they are there."""
    if not len(ordered):
        return np.zeros(len(key), dtype=np.int64), np.zeros(len(key), dtype=bool)
    place = np.searchsorted(ordered, key).clip(max=len(ordered) - 1)
    return place, ordered[place] == key


def _where(has_row: np.ndarray, values: np.ndarray, picked: np.ndarray) -> np.ndarray:
    """The row's value, 0 where there is no row."""
    return np.where(has_row, values[picked], 0) if len(values) else np.zeros(len(picked), dtype=np.int64)
