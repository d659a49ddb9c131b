from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from synthetic import MS, clockwork, story, traces

from llmlab.trace import Trace
from llmlab.trace.events import Gap, RequestFinished, RequestSubmitted, Span, Step, StepRow
from llmlab.trace.spans import PHASES


def tree(trace: Trace, request_id: str, depth: int) -> list[tuple[str, float]]:
    spans = trace.spans[(trace.spans.request_id == request_id) & (trace.spans.depth == depth)]
    return list(zip(spans.name, spans.duration_ms, strict=True))


def assert_tiled(trace: Trace) -> None:
    """The leaves of every tree follow each other from its root's start to its end, without holes."""
    spans, leaves = trace.spans, trace.leaves()
    parent = spans.parent_id.fillna(-1).to_numpy(dtype=np.int64)
    root = np.where(parent < 0, spans.span_id, parent)
    root = root[root]  # depth is at most 2
    for root_id, group in leaves.groupby(root[leaves.span_id]):
        whole = spans.loc[root_id]
        assert group.start_s.iloc[0] == whole.start_s
        assert group.end_s.iloc[-1] == whole.end_s
        assert (group.start_s.iloc[1:].to_numpy() == group.end_s.iloc[:-1].to_numpy()).all()
        assert group.duration_ms.sum() == pytest.approx(whole.duration_ms, abs=1e-9)
    roots = spans[(spans.depth == 0) & spans.name.isin(["request", "step"]) & (spans.duration_ms > 0)]
    assert set(roots.span_id) == set(root[leaves.span_id])


def assert_nested(trace: Trace) -> None:
    inner = trace.spans[trace.spans.parent_id.notna()]
    outer = trace.spans.loc[inner.parent_id.to_numpy(dtype=np.int64)]
    assert (inner.depth.to_numpy() == outer.depth.to_numpy() + 1).all()
    assert (inner.start_s.to_numpy() >= outer.start_s.to_numpy()).all()
    assert (inner.end_s.to_numpy() <= outer.end_s.to_numpy()).all()


def test_the_stages_of_one_request():
    trace = Trace(clockwork())
    assert tree(trace, "r0", 0) == [("request", 33.5)]
    assert tree(trace, "r0", 1) == [
        ("queue", 2.0),
        ("prefill", 6.0),
        ("prefill", 6.0),
        ("between steps", 4.0),
        ("wait", 6.0),
        ("between steps", 4.0),
        ("decode", 5.5),
    ]
    assert [name for name, _ in tree(trace, "r0", 2)] == list(PHASES) * 3
    assert tree(trace, "r0", 2)[-1] == ("emit", 0.5)


def test_a_preempted_request_queues_again():
    names = [name for name, _ in tree(Trace(clockwork()), "r1", 1)]
    assert names == ["queue", "prefill", "between steps", "wait", "queue"]


@settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.too_slow])
@given(traces())
def test_leaves_tile_every_request_and_every_step(events):
    trace = Trace(events)
    assert_tiled(trace)
    assert_nested(trace)


@settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.too_slow])
@given(traces())
def test_leaves_tile_when_the_beginning_was_dropped(events):
    trace = Trace([events[0], Gap(events[len(events) // 2].t_ns, 1), *events[len(events) // 2 :]])
    assert_tiled(trace)
    assert_nested(trace)


@settings(deadline=None, max_examples=40, suppress_health_check=[HealthCheck.too_slow])
@given(traces())
def test_a_root_is_the_end_to_end_time_and_its_stages_before(events):
    trace = Trace(events)
    roots = trace.spans[trace.spans.name == "request"].set_index("request_id")
    for r in trace.requests.itertuples():
        before = sum(e.end_ns - e.t_ns for e in events if isinstance(e, Span) and e.request_id == r.request_id)
        leaves = trace.leaves(r.request_id)
        inside = leaves[leaves.start_s >= r.submitted_s]
        assert roots.start_s[r.request_id] <= r.submitted_s
        assert leaves.duration_ms.sum() - inside.duration_ms.sum() >= before / 1e6 - 1e-9
        if r.status == "finished":
            assert inside.duration_ms.sum() == pytest.approx(r.e2e_ms, abs=1e-9)


@settings(deadline=None, max_examples=40, suppress_health_check=[HealthCheck.too_slow])
@given(traces())
def test_every_row_is_a_prefill_or_decode_span_and_nothing_else_is(events):
    trace = Trace(events)
    rows = {
        (r.request_id, s.step, "prefill" if r.is_prefill else "decode")
        for s in events
        if isinstance(s, Step)
        for r in s.rows
    }
    spans = trace.spans[trace.spans.name.isin(["prefill", "decode"])]
    found = set(zip(spans.request_id, spans.step, spans.name, strict=True))
    assert rows <= found
    # a forked sample gets its first token in its group's prefill step, without a row of its own
    assert all("." in request_id and name == "prefill" for request_id, _, name in found - rows)


def test_stages_before_submission_are_leaves_and_overlapping_ones_stand_alone():
    early = [Span(MS // 2, MS, "render template", "r0"), Span(MS, int(1.5 * MS), "tokenize", "r0")]
    overlapping = Span(int(1.2 * MS), int(1.4 * MS), "look up", "r0")
    late = Span(5 * MS, 50 * MS, "stream", "r0")
    trace = Trace([*clockwork(), *early, overlapping, late, Span(MS, 2 * MS, "load", None)])
    assert [name for name, _ in tree(trace, "r0", 1)][:4] == [
        "render template",
        "tokenize",
        "between stages",
        "queue",
    ]
    assert dict(tree(trace, "r0", 0)) == {"request": 35.0, "look up": pytest.approx(0.2), "stream": 45.0}
    assert_tiled(trace)


def test_a_step_that_was_not_recorded_is_not_called_idle_time():
    events = [e for e in clockwork() if not (isinstance(e, Step) and e.step == 2)]
    r0 = Trace(events)
    assert [name for name, _ in tree(r0, "r0", 1)] == [
        "queue",
        "prefill",
        "prefill",
        "not recorded",
        "decode",
    ]
    assert_tiled(r0)


def test_a_request_submitted_while_a_step_runs_is_clipped_to_its_submission():
    events = [dataclasses.replace(e, t_ns=5 * MS) if isinstance(e, RequestSubmitted) else e for e in clockwork()]
    trace = Trace(events)
    assert tree(trace, "r0", 1)[0] == ("prefill", 5.0)
    assert trace.requests.queue_ms.iloc[0] == 0.0
    assert_tiled(trace)


def test_a_forked_sample_takes_part_in_the_step_that_computed_its_prompt():
    trace = Trace(story())
    spans = trace.spans[(trace.spans.request_id == "r4.1") & (trace.spans.depth == 1)]
    names = [name for name in spans.name if name not in ("between stages", "between steps")]
    assert names == ["queue", "prefill", "decode", "decode"]


def test_no_events_give_no_spans():
    assert len(Trace([]).spans) == len(Trace([]).leaves()) == 0


def test_thousands_of_requests_and_steps_are_spanned_without_a_loop_over_both():
    steps, per_step, life = 4000, 16, 8
    events = []
    for i in range(steps):
        now, first = i * 10, i // life * per_step
        rows = tuple(StepRow(f"r{first + k}", i % life, 1, 0, False, True) for k in range(per_step))
        if i % life == 0:
            events += [RequestSubmitted(now + 1, row.request_id, None, 0, None, (1,), {}) for row in rows]
        if i % life == life - 1:
            events += [RequestFinished(now + 8, i, row.request_id, "length", None, {}) for row in rows]
        events.append(Step(*range(now + 2, now + 9), i, rows, 0, per_step, 0, 0, per_step))
    trace = Trace(events)
    counts = trace.spans.name.value_counts()
    assert counts["request"] == counts["queue"] == steps // life * per_step
    assert counts["decode"] == steps * per_step
    assert counts["forward"] == steps * per_step + steps
