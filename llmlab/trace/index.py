"""Events sorted by kind, with the rows of all steps as arrays: what every table is computed from."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain

import numpy as np

from llmlab.trace.events import (
    BlockEvent,
    Captured,
    Decision,
    DraftPolicy,
    DraftRound,
    EngineInfo,
    Event,
    Gap,
    ProbeNote,
    PromptLogprobs,
    RequestFinished,
    RequestSubmitted,
    Span,
    Stage,
    Step,
    StepRow,
    TextEmitted,
    Token,
    WireEvent,
    WireLink,
)
from llmlab.trace.exchange import Exchanges, join
from llmlab.trace.split_events import BlockTransfer, Collective, RankWork


@dataclass(frozen=True, slots=True)
class Rows:
    """One entry per (step, request) that ran, in step order; all arrays have the same length.

    ``step`` indexes ``Index.steps``, ``request`` indexes ``Index.request_ids``. ``recomputed`` counts those
    of the row's positions that had been computed, or served from the cache, before a preemption dropped them.
    ``num_rejected`` of the last positions held draft tokens that were not kept: computed, but not reached.
    """

    step: np.ndarray
    request: np.ndarray
    start: np.ndarray
    num_tokens: np.ndarray
    num_cached: np.ndarray
    is_prefill: np.ndarray
    sampled: np.ndarray
    num_rejected: np.ndarray
    recomputed: np.ndarray


@dataclass(frozen=True)
class Index:
    """Events by kind. ``request_ids`` are in the order in which the requests first appear.

    ``only`` restricts the requests to the named ones (a part of a trace); steps keep all their rows. It may also name
    exchanges, by either side's id.
    ``start_ns`` is the zero of the trace's clock.
    """

    events: Sequence[Event]
    only: tuple[str, ...]
    start_ns: int
    info: EngineInfo | None
    steps: list[Step]
    decisions: list[Decision]
    blocks: list[BlockEvent]
    tokens: list[Token]
    prompt_logprobs: list[PromptLogprobs]
    drafts: list[DraftRound]
    draft_policies: list[DraftPolicy]
    texts: list[TextEmitted]
    spans: list[Span]
    wire: list[WireEvent]
    stages: list[Stage]
    links: list[WireLink]
    captured: list[Captured]
    probe_notes: list[ProbeNote]
    rank_work: list[RankWork]
    collectives: list[Collective]
    transfers: list[BlockTransfer]
    gaps: list[Gap]
    submitted: dict[str, RequestSubmitted]
    finished: dict[str, RequestFinished]
    request_ids: list[str]

    @cached_property
    def code(self) -> dict[str, int]:
        """Request id -> its place in ``request_ids``."""
        return {request_id: i for i, request_id in enumerate(self.request_ids)}

    @cached_property
    def exchanges(self) -> Exchanges:
        """The HTTP exchanges, joined over both sides."""
        return join(self.wire, self.stages, self.links)

    @cached_property
    def marks(self) -> np.ndarray:
        """``(steps, 7)`` nanoseconds: the beginnings of the six phases, then the end."""
        marks = [
            (s.t_ns, s.build_ns, s.forward_ns, s.sample_ns, s.detokenize_ns, s.emit_ns, s.end_ns) for s in self.steps
        ]
        return np.array(marks, dtype=np.int64).reshape(-1, 7)

    @cached_property
    def step_numbers(self) -> np.ndarray:
        """``(steps,)`` numbers of the steps, ascending."""
        return np.array([s.step for s in self.steps], dtype=np.int64)

    def step_index(self, numbers: np.ndarray) -> np.ndarray:
        """Places of step numbers in ``steps``, -1 for a step that is not in the trace."""
        numbers = np.asarray(numbers, dtype=np.int64)
        if not self.steps:
            return np.full(numbers.shape, -1, dtype=np.int64)
        found = np.searchsorted(self.step_numbers, numbers).clip(max=len(self.steps) - 1)
        return np.where(self.step_numbers[found] == numbers, found, -1)

    def seconds(self, t_ns: np.ndarray | Sequence[int]) -> np.ndarray:
        """Seconds on the trace's clock."""
        return (np.asarray(t_ns, dtype=np.int64) - self.start_ns) / 1e9

    @cached_property
    def rows(self) -> Rows:
        """The rows of all steps that belong to the trace's requests."""
        code = self.code
        flat = [
            (i, code[r.request_id], r.start, r.num_tokens, r.num_cached, r.is_prefill, r.sampled, r.num_rejected)
            for i, step in enumerate(self.steps)
            for r in step.rows
            if r.request_id in code
        ]
        table = np.array(flat, dtype=np.int64).reshape(-1, 8)
        step, request, start, num_tokens, num_cached, is_prefill, sampled, rejected = table.T
        recomputed = self._recomputed(request, start, num_tokens - rejected)
        return Rows(step, request, start, num_tokens, num_cached, is_prefill > 0, sampled > 0, rejected, recomputed)

    def _recomputed(self, request: np.ndarray, start: np.ndarray, num_tokens: np.ndarray) -> np.ndarray:
        """Positions of each row below the highest position its request had reached before."""
        order = np.argsort(request, kind="stable")
        end = (start + num_tokens)[order]
        stride = int(end.max(initial=0)) + 1
        shared = np.array([self.num_shared(i) for i in self.request_ids], dtype=np.int64)
        reached = np.maximum.accumulate(end + request[order] * stride)
        before = np.empty_like(reached)
        before[:1], before[1:] = 0, reached[:-1]
        before = np.maximum(before - request[order] * stride, shared[request[order]])
        again = np.empty_like(reached)
        again[order] = np.minimum(end, before) - start[order]
        return again.clip(min=0)

    def num_shared(self, request_id: str) -> int:
        """Leading positions a sample of an ``n > 1`` group took over from its parent: the whole prompt."""
        submitted = self.submitted.get(request_id)
        return len(submitted.prompt_token_ids) if submitted and submitted.parent_id else 0


def build_index(events: Sequence[Event], only: tuple[str, ...] = ()) -> Index:
    """Sort events by kind; requests are also known whose submission was dropped from the ring.

    With ``only``, events about other requests must already be left out.
    """
    kinds: dict[type, list] = defaultdict(list)
    for event in events:
        kinds[type(event)].append(event)
    submitted = {e.request_id: e for e in kinds[RequestSubmitted]}
    finished = {e.request_id: e for e in kinds[RequestFinished]}
    steps = sorted(kinds[Step], key=lambda s: s.step)
    rows = [] if only else [row for step in steps for row in step.rows]
    seen = [_without_wire_ids(only, kinds), submitted, *map(_ids, (rows, kinds[Token], kinds[Decision])), finished]
    return Index(
        events=events,
        only=only,
        start_ns=min((e.t_ns for e in events), default=0),
        info=kinds[EngineInfo][-1] if kinds[EngineInfo] else None,
        steps=steps,
        decisions=kinds[Decision],
        blocks=kinds[BlockEvent],
        tokens=kinds[Token],
        prompt_logprobs=kinds[PromptLogprobs],
        drafts=kinds[DraftRound],
        draft_policies=kinds[DraftPolicy],
        texts=kinds[TextEmitted],
        spans=kinds[Span],
        wire=kinds[WireEvent],
        stages=kinds[Stage],
        links=kinds[WireLink],
        captured=kinds[Captured],
        probe_notes=kinds[ProbeNote],
        rank_work=kinds[RankWork],
        collectives=kinds[Collective],
        transfers=kinds[BlockTransfer],
        gaps=kinds[Gap],
        submitted=submitted,
        finished=finished,
        request_ids=list(dict.fromkeys(chain.from_iterable(seen))),
    )


def _ids(records: Iterable[StepRow | Token | Decision]) -> Iterator[str]:
    return (record.request_id for record in records)


def _without_wire_ids(only: tuple[str, ...], kinds: dict[type, list]) -> list[str]:
    """The ids in ``only`` that are not those of exchanges: requests, also when nothing of them is left."""
    wire_ids = {event.wire_id for kind in (WireEvent, Stage, WireLink) for event in kinds[kind]}
    wire_ids.update(link.other_id for link in kinds[WireLink] if link.relation == "client")
    return [i for i in only if i not in wire_ids]
