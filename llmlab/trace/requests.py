"""The table of requests: when each moment of their lives came, and what they cost."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import numpy as np
import pandas as pd

from llmlab.trace.columns import objects, table
from llmlab.trace.handoffs import elsewhere
from llmlab.trace.index import Index


@dataclass(slots=True)
class Moments:
    """Times of one request in nanoseconds, ``None`` for what has not happened or was not recorded."""

    submitted: int | None = None
    scheduled: int | None = None
    first_token: int | None = None
    last_token: int | None = None
    finished: int | None = None
    num_output: int = 0

    @property
    def itl_ms(self) -> float:
        """Mean milliseconds between two tokens, NaN below two tokens."""
        if self.num_output < 2:
            return float("nan")
        return (self.last_token - self.first_token) / 1e6 / (self.num_output - 1)


def requests(index: Index) -> pd.DataFrame:
    """One row per request, in the order in which they first appear."""
    lives = moments(index)
    ids = index.request_ids
    submitted = [index.submitted.get(i) for i in ids]
    finished = [index.finished.get(i) for i in ids]
    cached = cached_tokens(index)
    itl_ms = np.array([life.itl_ms for life in lives], dtype=np.float64)
    preemptions = Counter(d.request_id for d in index.decisions if d.action == "preempted")
    recomputed = np.bincount(index.rows.request, weights=index.rows.recomputed, minlength=len(ids))
    return table(
        "requests",
        {
            "request_id": objects(ids),
            "parent_id": objects([s and s.parent_id for s in submitted]),
            "prompt": objects([s and s.prompt for s in submitted]),
            "num_prompt_tokens": np.array([num_prompt(index, i) for i in ids], dtype=np.int64),
            "num_cached_tokens": np.array([cached[i] for i in ids], dtype=np.int64),
            "num_output_tokens": np.array([life.num_output for life in lives], dtype=np.int64),
            "num_preemptions": np.array([preemptions[i] for i in ids], dtype=np.int64),
            "num_preempted_tokens": recomputed.astype(np.int64),
            "stop_reason": objects([f and f.stop_reason for f in finished]),
            "stop_sequence": objects([f and f.stop_sequence for f in finished]),
            "submitted_s": _seconds(index, [life.submitted for life in lives]),
            "first_scheduled_s": _seconds(index, [life.scheduled for life in lives]),
            "first_token_s": _seconds(index, [life.first_token for life in lives]),
            "finished_s": _seconds(index, [life.finished for life in lives]),
            "queue_ms": _ms([(life.submitted, life.scheduled) for life in lives]),
            "ttft_ms": _ms([(life.submitted, life.first_token) for life in lives]),
            "e2e_ms": _ms([(life.submitted, life.finished) for life in lives]),
            "itl_ms": itl_ms,
            "tokens_per_s": 1e3 / np.where(itl_ms > 0, itl_ms, np.nan),
            "status": objects(_statuses(index)),
            "params": objects([s and s.params for s in submitted]),
        },
    )


def num_prompt(index: Index, request_id: str) -> int:
    """Prompt tokens; from the usage when the submission was dropped, 0 when that is missing too."""
    if request_id in index.submitted:
        return len(index.submitted[request_id].prompt_token_ids)
    finished = index.finished.get(request_id)
    return finished.usage.get("prompt_tokens", 0) if finished else 0


def cached_tokens(index: Index) -> dict[str, int]:
    """Prompt tokens each request had from the prefix cache when it was first admitted.

    A sample of an ``n > 1`` group has what its first sample had.
    """
    rows = index.rows
    codes, first = np.unique(rows.request, return_index=True)
    cached = {index.request_ids[c]: int(rows.num_cached[i]) for c, i in zip(codes, first, strict=True)}
    for request_id in index.request_ids:
        submitted, finished = index.submitted.get(request_id), index.finished.get(request_id)
        if finished:
            cached[request_id] = finished.usage.get("cached_tokens", 0)
        elif submitted and submitted.parent_id:
            cached[request_id] = cached.get(submitted.parent_id, 0)
    return {i: min(cached.get(i, 0), num_prompt(index, i)) for i in index.request_ids}


def moments(index: Index) -> list[Moments]:
    """The moments of every request, in the order of ``index.request_ids``."""
    lives = {request_id: Moments() for request_id in index.request_ids}
    for event in index.tokens:
        life = lives[event.request_id]
        life.num_output += 1
        life.last_token = event.t_ns
        if life.first_token is None:
            life.first_token = event.t_ns
    for request_id, life in lives.items():
        life.submitted = index.submitted[request_id].t_ns if request_id in index.submitted else None
        life.finished = index.finished[request_id].t_ns if request_id in index.finished else None
    for code, step in first_steps(index).items():
        life = lives[index.request_ids[code]]
        # a request may arrive while the step that admits it has already begun
        life.scheduled = max(int(index.marks[step, 0]), life.submitted or 0)
    for request_id, parts in elsewhere(index).items():
        if request_id in lives:
            lives[request_id].scheduled = parts[0][1]
    return [lives[i] for i in index.request_ids]


def first_steps(index: Index) -> dict[int, int]:
    """Request code -> place in ``index.steps`` of the first step it took part in."""
    request, step, _ = participation(index)
    codes, first = np.unique(request, return_index=True)
    return dict(zip(codes.tolist(), step[first].tolist(), strict=True))


def participation(index: Index) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """``(request code, step place, is_prefill)`` of all (request, step) pairs, sorted by request, then step.

    A sample that forks from its group takes part in the step that computed the prompt's end, without a row:
    there its first token is chosen.
    """
    rows = index.rows
    token_step = index.step_index([t.step for t in index.tokens])
    token_request = np.array([index.code[t.request_id] for t in index.tokens], dtype=np.int64)
    known = token_step >= 0
    request = np.concatenate([rows.request, token_request[known]])
    step = np.concatenate([rows.step, token_step[known]])
    is_prefill = np.concatenate([rows.is_prefill, np.ones(known.sum(), dtype=bool)])
    # rows come first, so the row decides where there are both
    _, first = np.unique(request * (len(index.steps) + 1) + step, return_index=True)
    return request[first], step[first], is_prefill[first]


def _seconds(index: Index, times: list[int | None]) -> np.ndarray:
    return np.array([np.nan if t is None else (t - index.start_ns) / 1e9 for t in times], dtype=np.float64)


def _ms(pairs: list[tuple[int | None, int | None]]) -> np.ndarray:
    return np.array([np.nan if None in pair else (pair[1] - pair[0]) / 1e6 for pair in pairs], dtype=np.float64)


def _statuses(index: Index) -> list[str]:
    states = {index.request_ids[code]: "running" for code in index.rows.request.tolist()}
    for decision in index.decisions:
        if decision.action in ("admitted", "ran"):
            states[decision.request_id] = "running"
        elif decision.action == "preempted":
            states[decision.request_id] = "preempted"
    ended = {i: f.stop_reason for i, f in index.finished.items()}
    states |= {i: reason if reason in ("aborted", "error") else "finished" for i, reason in ended.items()}
    return [states.get(i, "waiting") for i in index.request_ids]
