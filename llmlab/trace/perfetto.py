"""Export to the Chrome trace JSON that Perfetto (ui.perfetto.dev) and chrome://tracing open.

Process ``engine`` has the steps with their phases and counters of blocks and queues; process ``requests`` has
one track per request; :mod:`llmlab.trace.perfetto_wire` adds the HTTP exchanges. Prompt and output text are left out.
"""

from __future__ import annotations

import gzip
import json
import os
from collections.abc import Iterator
from typing import Any

import numpy as np
import pandas as pd

from llmlab.trace.index import Index
from llmlab.trace.perfetto_swaps import transfer_events
from llmlab.trace.perfetto_wire import wire_events
from llmlab.trace.store import replacing

ENGINE, REQUESTS = 1, 2
STEP_TRACK = 1

TraceEvent = dict[str, Any]


def to_perfetto(index: Index, spans: pd.DataFrame) -> dict[str, Any]:
    """``{"traceEvents": [...]}``; times are microseconds since the trace's first event."""
    tracks = {request_id: i for i, request_id in enumerate(index.request_ids, start=1)}
    engine_spans = spans[spans.wire_id.isna() | spans.request_id.notna()]
    events = [*_names(tracks), *_spans(engine_spans, tracks), *_counters(index), *_instants(index, tracks)]
    places = {request_id: (REQUESTS, tid) for request_id, tid in tracks.items()}
    events += transfer_events(index, places, (ENGINE, STEP_TRACK))
    events += wire_events(index, places)
    info = index.info
    about = {"model": info.model, "device": info.device, "dtype": info.dtype} if info else {}
    return {"traceEvents": events, "displayTimeUnit": "ms", "otherData": about}


def write(path: str | os.PathLike, trace: dict[str, Any]) -> None:
    """Write the JSON, gzipped when the name ends in ``.gz``; both forms open in Perfetto."""
    data = json.dumps(trace, allow_nan=False, separators=(",", ":")).encode()
    with replacing(path) as file:
        file.write(gzip.compress(data, mtime=0) if os.fspath(path).endswith(".gz") else data)


def _names(tracks: dict[str, int]) -> Iterator[TraceEvent]:
    yield _metadata("process_name", ENGINE, 0, "engine")
    yield _metadata("process_name", REQUESTS, 0, "requests")
    yield _metadata("thread_name", ENGINE, STEP_TRACK, "steps")
    for request_id, tid in tracks.items():
        yield _metadata("thread_name", REQUESTS, tid, f"request {request_id}")


def _metadata(kind: str, pid: int, tid: int, name: str) -> TraceEvent:
    return {"ph": "M", "name": kind, "pid": pid, "tid": tid, "args": {"name": name}}


def _spans(spans: pd.DataFrame, tracks: dict[str, int]) -> Iterator[TraceEvent]:
    # rounding to whole nanoseconds first keeps children inside their parents exactly
    start = np.rint(spans.start_s.to_numpy() * 1e9).astype(np.int64)
    end = np.rint(spans.end_s.to_numpy() * 1e9).astype(np.int64)
    steps = spans.step.fillna(-1).to_numpy(dtype=np.int64).tolist()
    columns = (spans.span_id, spans.request_id, steps, spans.name, start.tolist(), end.tolist(), spans.depth)
    for span_id, request_id, step, name, begin, until, depth in zip(*columns, strict=True):
        place = {"pid": REQUESTS, "tid": tracks[request_id]} if request_id else {"pid": ENGINE, "tid": STEP_TRACK}
        event = {**place, "cat": "llmlab", "name": name, "ts": begin / 1e3}
        if step >= 0:
            event["args"] = {"step": step}
        if depth == 0 and name not in ("request", "step"):
            # stages outside the trees may overlap anything: asynchronous events need no nesting
            yield {**event, "ph": "b", "id": span_id}
            yield {**event, "ph": "e", "id": span_id, "ts": until / 1e3}
        else:
            yield {**event, "ph": "X", "dur": (until - begin) / 1e3}


def _counters(index: Index) -> Iterator[TraceEvent]:
    for step in index.steps:
        # counted when the step's blocks were all allocated, which is where its batch begins to be built
        at = {"ph": "C", "pid": ENGINE, "tid": STEP_TRACK, "ts": (step.build_ns - index.start_ns) / 1e3}
        blocks = {"used": step.used, "cached": step.cached, "free": step.free}
        yield {**at, "name": "K/V blocks", "args": blocks}
        yield {**at, "name": "requests", "args": {"running": step.running, "waiting": step.waiting}}


def _instants(index: Index, tracks: dict[str, int]) -> Iterator[TraceEvent]:
    for decision in index.decisions:
        if decision.action == "preempted":
            args = {"reason": decision.reason, "by": decision.by, "step": decision.step}
            yield _instant(index, decision.t_ns, tracks[decision.request_id], "preempted", args)
    for request_id, finished in index.finished.items():
        args = {"stop_reason": finished.stop_reason, "step": finished.step, **finished.usage}
        yield _instant(index, finished.t_ns, tracks[request_id], "finished", args)


def _instant(index: Index, t_ns: int, tid: int, name: str, args: dict[str, Any]) -> TraceEvent:
    ts = (t_ns - index.start_ns) / 1e3
    return {"ph": "i", "s": "t", "pid": REQUESTS, "tid": tid, "name": name, "ts": ts, "args": args}
