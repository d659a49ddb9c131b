from __future__ import annotations

import dataclasses
from itertools import pairwise

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from synthetic import MS, clockwork
from synthetic_wire import carried, served, stage, wire

from llmlab.trace import Trace
from llmlab.trace.events import RequestFinished, RequestSubmitted, Step, WireLink
from llmlab.trace.exchange_spans import LEVELS, Piece, innermost


def children(trace: Trace, wire_id: str) -> list[tuple[str, float]]:
    spans = trace.spans[(trace.spans.wire_id == wire_id) & (trace.spans.depth == 1)]
    return [(name, round(ms, 6)) for name, ms in zip(spans.name, spans.duration_ms, strict=True)]


def assert_tiled(trace: Trace) -> None:
    """The leaves of every exchange follow each other from its root's start to its end, requests included."""
    roots = trace.spans[(trace.spans.name == "exchange") & (trace.spans.depth == 0)]
    assert len(roots) == len(trace.exchanges)
    for root in roots.itertuples():
        leaves = trace.leaves(root.wire_id)
        leaves = leaves[leaves.duration_ms > 0]
        if root.duration_ms == 0:
            continue
        assert leaves.start_s.iloc[0] == root.start_s
        assert leaves.end_s.iloc[-1] == root.end_s
        assert (leaves.start_s.iloc[1:].to_numpy() == leaves.end_s.iloc[:-1].to_numpy()).all()
        assert leaves.duration_ms.sum() == pytest.approx(root.duration_ms, abs=1e-9)


def assert_nested(trace: Trace) -> None:
    inner = trace.spans[trace.spans.parent_id.notna()]
    outer = trace.spans.loc[inner.parent_id.to_numpy(dtype="int64")]
    assert (inner.depth.to_numpy() == outer.depth.to_numpy() + 1).all()
    assert (inner.start_s.to_numpy() >= outer.start_s.to_numpy()).all()
    assert (inner.end_s.to_numpy() <= outer.end_s.to_numpy()).all()
    assert (inner.wire_id.fillna("") == outer.wire_id.fillna("").to_numpy()).all()


def test_one_clock_from_the_first_byte_to_the_last():
    trace = Trace(carried())
    assert children(trace, "req_1") == [
        ("assemble", 0.3),
        ("send", 0.2),
        ("network and waiting", 0.3),
        ("between stages", 0.1),
        ("authenticate", 0.2),
        ("decode", 0.4),
        ("between stages", 0.2),
        ("admit", 0.2),
        ("request", 33.5),
        ("stream", 1.0),
        ("streaming", 1.0),
    ]
    assert_tiled(trace)
    assert_nested(trace)


def test_the_requests_own_tree_is_the_same_one_level_deeper():
    alone, carried_tree = Trace(clockwork()).spans, Trace(carried()).spans
    alone = alone[alone.request_id == "r0"].reset_index(drop=True)
    below = carried_tree[carried_tree.request_id == "r0"].reset_index(drop=True)
    for column in ("name", "step", "start_s", "end_s", "duration_ms"):
        assert below[column].equals(alone[column])
    assert below.depth.tolist() == (alone.depth + 1).tolist()
    assert alone.wire_id.isna().all()


def test_an_answer_in_one_piece_is_not_called_streaming_and_its_way_back_is_network():
    events = [
        wire(1, "c", "client", "request"),
        WireLink(2 * MS, "q", "client", "c"),
        wire(2, "q", "gateway", "request"),
        stage(3, 4, "q", "gateway", "decode"),
        wire(6, "q", "gateway", "end"),
        wire(9, "c", "client", "bytes"),
        wire(10, "c", "client", "end"),
    ]
    assert children(Trace(events), "q") == [
        ("network and waiting", 1.0),
        ("between stages", 1.0),
        ("decode", 1.0),
        ("between stages", 2.0),
        ("network and waiting", 4.0),
    ]


def test_waiting_for_a_server_that_is_not_recorded_is_network():
    events = [
        stage(1, 2, "c", "client", "assemble"),
        wire(3, "c", "client", "request"),
        stage(3, 4, "c", "client", "send"),
        wire(9, "c", "client", "error"),
        stage(9, 10, "c", "client", "retry"),
    ]
    assert children(Trace(events), "c") == [
        ("assemble", 1.0),
        ("between stages", 1.0),
        ("send", 1.0),
        ("network and waiting", 5.0),
        ("retry", 1.0),
    ]


def test_without_a_gateways_record_the_clients_wait_is_a_stage():
    events = [e for e in carried() if getattr(e, "side", "") == "client" and e.wire_id == "cl-1"]
    assert children(Trace(events), "cl-1") == [
        ("assemble", 0.3),
        ("send", 0.2),
        ("wait", 13.2),
        ("network and waiting", 2.1),
        ("streaming", 21.6),
    ]


def test_a_request_that_was_carried_by_no_exchange_is_a_root():
    spans = Trace(carried()).spans
    roots = spans[(spans.name == "request") & (spans.depth == 0)]
    assert roots.request_id.tolist() == ["r1"]


def test_two_requests_of_an_exchange_after_each_other_hang_in_it_and_an_overlapping_one_stands_alone():
    def request(name: str, start: int, end: int) -> list:
        return [
            RequestSubmitted(start * MS, name, None, 0, None, (1,), {}),
            WireLink(start * MS, "q", "engine", name),
            RequestFinished(end * MS, 0, name, "length", None, {}),
        ]

    events = [
        wire(0, "q", "gateway", "request"),
        *request("a", 1, 4),
        *request("b", 3, 6),
        *request("c", 4, 8),
        wire(9, "q", "gateway", "end"),
    ]
    trace = Trace(events)
    spans = trace.spans[trace.spans.name == "request"]
    assert dict(zip(spans.request_id, spans.depth, strict=True)) == {"a": 1, "b": 0, "c": 1}
    assert_tiled(trace)
    assert_nested(trace)


def test_an_aborted_request_may_end_after_its_exchange():
    events = [*carried(), WireLink(MS, "req_2", "engine", "r1")]
    events = [dataclasses.replace(e, t_ns=50 * MS) if isinstance(e, RequestFinished) else e for e in events]
    trace = Trace(events)
    assert_tiled(trace)
    assert_nested(trace)


@settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.too_slow])
@given(served())
def test_leaves_tile_every_exchange(events):
    trace = Trace(events)
    assert_tiled(trace)
    assert_nested(trace)
    roots = trace.spans[trace.spans.name == "request"]
    assert sorted(roots.request_id) == sorted(trace.requests.request_id)


@settings(deadline=None, max_examples=30, suppress_health_check=[HealthCheck.too_slow])
@given(served())
def test_a_requests_leaves_tile_it_wherever_it_hangs(events):
    trace = Trace(events)
    roots = trace.spans[trace.spans.name == "request"].set_index("request_id")
    for request_id, root in roots.iterrows():
        assert trace.leaves(request_id).duration_ms.sum() == pytest.approx(root.duration_ms, abs=1e-9)


pieces = st.builds(
    lambda start, length, side: Piece(start, start + length, side, side),
    st.integers(0, 30),
    st.integers(0, 10),
    st.sampled_from([*LEVELS, "proxy"]),
)


@given(st.lists(pieces, max_size=12))
def test_the_innermost_piece_of_every_moment(given_pieces):
    """Against looking at every moment on its own."""
    found = list(innermost(given_pieces))
    assert all(a.end <= b.start for a, b in pairwise(found))
    for moment in range(45):
        going_on = [p for p in given_pieces if p.start <= moment < p.end]
        shown = [p for p in found if p.start <= moment < p.end]
        assert bool(shown) == bool(going_on)
        if going_on:
            level = max(LEVELS.get(p.side, 0) for p in going_on)
            latest = max(p.start for p in going_on if LEVELS.get(p.side, 0) == level)
            origin = [p for p in going_on if p.side == shown[0].side and p.start == latest]
            assert LEVELS.get(shown[0].side, 0) == level
            assert origin


def test_thousands_of_stages_and_exchanges_take_no_loop_over_both():
    events = [stage(i, 20_000 - i, "q", "gateway", "nested") for i in range(3000)]
    for i in range(3000):
        events += [wire(i, f"e{i}", "gateway", "request"), stage(i, i + 1, f"e{i}", "gateway", "decode")]
        events += [WireLink(i * MS, f"e{i}", "engine", f"r{i}"), wire(i + 2, f"e{i}", "gateway", "end")]
    counts = Trace(events).spans.name.value_counts()
    assert counts["exchange"] == 3001
    assert counts["decode"] == 3000
    assert counts["nested"] == 2 * 3000 - 1


def test_steps_stay_the_engines_own():
    spans = Trace(carried()).spans
    steps = spans[spans.name == "step"]
    assert len(steps) == sum(isinstance(e, Step) for e in carried())
    assert steps.wire_id.isna().all()
