"""Cutting the events of some requests out of a trace."""

from __future__ import annotations

from collections.abc import Sequence

from llmlab.trace.events import EngineInfo, Event, Gap, Step
from llmlab.trace.index import Index


def events_of(index: Index, request_ids: Sequence[str]) -> list[Event]:
    """The requests' own events, the steps that ran during their lives, the engine's info and all gaps."""
    wanted = set(request_ids)
    begin, end = _lifetime(index, request_ids)
    return [event for event in index.events if _belongs(event, wanted, begin, end)]


def _belongs(event: Event, wanted: set[str], begin: int, end: int) -> bool:
    if isinstance(event, (EngineInfo, Gap)):
        return True
    if isinstance(event, Step):
        return begin < event.end_ns and event.t_ns < end
    return event.request_id in wanted


def _lifetime(index: Index, request_ids: Sequence[str]) -> tuple[int, int]:
    """From the first submission to the last end; unbounded where that is not recorded."""
    submitted = [index.submitted[i].t_ns if i in index.submitted else index.start_ns for i in request_ids]
    last = max((step.end_ns for step in index.steps), default=index.start_ns) + 1
    finished = [index.finished[i].t_ns if i in index.finished else last for i in request_ids]
    return min(submitted), max(finished)
