"""The tables of steps, block changes and tokens; columns: :mod:`llmlab.trace.columns`."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping

import numpy as np
import pandas as pd

from llmlab.trace.columns import integers, objects, table
from llmlab.trace.events import PromptLogprobs, RequestSubmitted, Token
from llmlab.trace.index import Index
from llmlab.trace.requests import cached_tokens

PHASE_COLUMNS = ("schedule_ms", "build_ms", "forward_ms", "sample_ms", "detokenize_ms", "emit_ms")
COUNT_COLUMNS = ("waiting", "running", "free", "cached", "used")


def steps(index: Index) -> pd.DataFrame:
    """One row per engine step; batch sizes count all requests of the step."""
    marks = index.marks
    counts = {name: np.array([getattr(s, name) for s in index.steps], dtype=np.int64) for name in COUNT_COLUMNS}
    prefill = np.array([sum(r.num_tokens for r in s.rows if r.is_prefill) for s in index.steps], dtype=np.int64)
    total = np.array([sum(r.num_tokens for r in s.rows) for s in index.steps], dtype=np.int64)
    return table(
        "steps",
        {
            "step": index.step_numbers,
            "start_s": index.seconds(marks[:, 0]),
            **dict(zip(PHASE_COLUMNS, np.diff(marks, axis=1).T / 1e6, strict=True)),
            "total_ms": (marks[:, 6] - marks[:, 0]) / 1e6,
            "num_rows": np.array([len(s.rows) for s in index.steps], dtype=np.int64),
            "num_prefill_tokens": prefill,
            "num_decode_tokens": total - prefill,
            "num_tokens": total,
            **counts,
            "kv_bytes_used": _kv_bytes(index, counts["used"]),
        },
    )


def _kv_bytes(index: Index, used: np.ndarray) -> pd.Series:
    if index.info is None:
        return integers([pd.NA] * len(used))
    return integers(used * (index.info.block_size * index.info.kv_bytes_per_token))


def blocks(index: Index) -> pd.DataFrame:
    """One row per change of a block, in the order in which they happened."""
    events = index.blocks
    numbers = {
        name: np.array([getattr(e, name) for e in events], dtype=np.int64)
        for name in ("step", "block_id", "index", "ref_count")
    }
    texts = {name: objects([getattr(e, name) for e in events]) for name in ("action", "request_id", "hash")}
    return table(
        "blocks",
        {
            "time_s": index.seconds([e.t_ns for e in events]),
            **numbers,
            **texts,
            "source_id": integers([e.source_id for e in events]),
        },
    )


def captures(index: Index, arrays: Mapping[str, np.ndarray]) -> pd.DataFrame:
    """One row per array recorded inside the model, in the order in which they were recorded."""
    events = index.captured
    numbers = {name: np.array([getattr(e, name) for e in events], dtype=np.int64) for name in ("step", "nbytes")}
    texts = {
        name: objects([getattr(e, name) for e in events])
        for name in ("array_id", "request_id", "kind", "dims", "shape", "positions")
    }
    return table(
        "captures",
        {
            **numbers,
            **texts,
            "time_s": index.seconds([e.t_ns for e in events]),
            "layer": _missing_if_negative([e.layer for e in events]),
            "held": np.array([e.array_id in arrays for e in events], dtype=bool),
        },
    )


def tokens(index: Index) -> pd.DataFrame:
    """One row per position of every request: its prompt, then what was generated."""
    columns = _TokenColumns()
    chosen, cached = _by_request(index.tokens), cached_tokens(index)
    scored, computed = _by_request(index.prompt_logprobs), _computed_in(index)
    for request_id in index.request_ids:
        submitted = index.submitted.get(request_id)
        if submitted:
            columns.add_prompt(submitted, cached[request_id], scored[request_id], computed[request_id])
        columns.add_output(chosen[request_id], submitted)
    return columns.table(index)


def _by_request(events: list) -> dict[str, list]:
    groups: dict[str, list] = defaultdict(list)
    for event in events:
        groups[event.request_id].append(event)
    return groups


def _computed_in(index: Index) -> dict[str, list[tuple[int, int, int]]]:
    """``(start, end, step number)`` of each request's prefill rows, latest first."""
    rows = index.rows
    found: dict[str, list[tuple[int, int, int]]] = defaultdict(list)
    for i in np.flatnonzero(rows.is_prefill)[::-1].tolist():
        start, number = int(rows.start[i]), index.steps[rows.step[i]].step
        found[index.request_ids[rows.request[i]]].append((start, start + int(rows.num_tokens[i]), number))
    return found


class _TokenColumns:
    """The token table in the making; -1 stands for a missing ``index`` or ``step``."""

    def __init__(self) -> None:
        self.request_id: list[str] = []
        self.position: list[int] = []
        self.index: list[int] = []
        self.token_id: list[int] = []
        self.logprob: list[float] = []
        self.source: list[str] = []
        self.step: list[int] = []
        self.t_ns: list[int] = []
        self.top: list[tuple] = []

    def add_prompt(
        self,
        submitted: RequestSubmitted,
        num_cached: int,
        scored: list[PromptLogprobs],
        computed: list[tuple[int, int, int]],
    ) -> None:
        """Append the prompt's positions; ``computed`` lists its prefill rows, latest first."""
        n = len(submitted.prompt_token_ids)
        logprob, top, step = [np.nan] * n, [()] * n, [-1] * n
        for event in scored:
            for i, value in enumerate(event.logprobs, start=event.start):
                logprob[i] = value
            for i, alternatives in enumerate(event.top, start=event.start):
                top[i] = alternatives
        for start, end, number in computed:
            start, end = max(start, 0), min(end, n)
            step[start:end] = [number] * max(end - start, 0)
        rest = "shared" if submitted.parent_id else "prompt"
        self.request_id += [submitted.request_id] * n
        self.position += range(n)
        self.index += [-1] * n
        self.token_id += submitted.prompt_token_ids
        self.logprob += logprob
        self.source += ["cached"] * num_cached + [rest] * (n - num_cached)
        self.step += step
        self.t_ns += [submitted.t_ns] * n
        self.top += top

    def add_output(self, chosen: list[Token], submitted: RequestSubmitted | None) -> None:
        """Append generated tokens; without the submission the place in the output is not known."""
        for token in chosen:
            self.request_id.append(token.request_id)
            self.position.append(token.position)
            self.index.append(token.position - len(submitted.prompt_token_ids) if submitted else -1)
            self.token_id.append(token.token_id)
            self.logprob.append(token.logprob)
            self.source.append(token.source)
            self.step.append(token.step)
            self.t_ns.append(token.t_ns)
            self.top.append(token.top)

    def table(self, index: Index) -> pd.DataFrame:
        """The finished table."""
        return table(
            "tokens",
            {
                "request_id": objects(self.request_id),
                "position": np.array(self.position, dtype=np.int64),
                "index": _missing_if_negative(self.index),
                "token_id": np.array(self.token_id, dtype=np.int64),
                "logprob": np.array(self.logprob, dtype=np.float64),
                "source": objects(self.source),
                "step": _missing_if_negative(self.step),
                "time_s": index.seconds(self.t_ns),
                "top": objects(self.top),
            },
        )


def _missing_if_negative(values: list[int]) -> pd.Series:
    numbers = np.array(values, dtype=np.int64)
    return integers(numbers).mask(numbers < 0)
