from __future__ import annotations

import math

import pandas as pd
import pytest
from hypothesis import HealthCheck, given, settings
from synthetic import MS, clockwork, make_info
from synthetic_wire import carried, served, stage, wire

from llmlab.errors import UnknownRequest
from llmlab.trace import Trace
from llmlab.trace.events import Gap, RequestSubmitted, Stage, WireEvent, WireLink


@pytest.fixture(scope="module")
def trace() -> Trace:
    return Trace(carried())


def test_an_exchange_is_joined_over_both_sides(trace):
    row = trace.exchanges.iloc[0]
    assert (row.wire_id, row.client_id, row.request_ids) == ("req_1", "cl-1", ("r0",))
    assert (row.path, row.status, row.stream, row.outcome) == ("/v1/messages", 200, True, "complete")
    assert (row.bytes_sent, row.bytes_received, row.frames) == (13, 200, 2)


def test_times_are_the_clients(trace):
    row = trace.exchanges.iloc[0]
    assert (row.sent_s, row.head_s, row.first_frame_s, row.first_delta_s) == (0.0005, 0.0138, 0.0159, 0.016)
    assert (row.end_s, row.ttft_ms) == (0.0375, pytest.approx(15.5))


def test_without_a_client_the_gateways_times_are_shown_and_no_ttft():
    events = [e for e in carried() if getattr(e, "side", "") != "client"]
    row = Trace(events).exchanges.iloc[0]
    assert (row.client_id, row.sent_s, row.first_frame_s, row.frames) == ("cl-1", 0.0009, 0.0155, 2)
    assert math.isnan(row.ttft_ms)
    assert math.isnan(row.first_delta_s)


def test_a_refusal_and_a_lost_connection_are_errors(trace):
    refused, lost = trace.exchanges.iloc[1], trace.exchanges.iloc[2]
    assert (refused.wire_id, refused.client_id, refused.status, refused.outcome) == ("req_2", None, 401, "error")
    assert (lost.wire_id, lost.client_id, lost.status, lost.outcome) == (None, "cl-3", pd.NA, "error")


@pytest.mark.parametrize(
    ("kinds", "outcome"),
    [
        (["end"], "complete"),
        (["error", "end"], "error"),
        (["disconnect", "end"], "disconnected"),
        (["error"], "error"),
        (["end", "disconnect"], "complete"),
        ([], None),
    ],
)
def test_outcomes(kinds, outcome):
    events = [wire(1, "q", "gateway", "request"), wire(2, "q", "gateway", "response", 0, "200")]
    events += [wire(3 + i, "q", "gateway", kind) for i, kind in enumerate(kinds)]
    assert Trace(events).exchanges.outcome.tolist() == [outcome]


def test_after_a_retry_the_row_describes_the_last_attempt_from_the_first_sending_on():
    events = [
        wire(1, "c", "client", "request", 10, "POST /v1/messages"),
        wire(2, "c", "client", "response", 30, "529"),
        wire(2, "c", "client", "retry", 0, "overloaded_error"),
        wire(5, "c", "client", "request", 10, "POST /v1/messages"),
        wire(6, "c", "client", "response", 0, "200"),
        wire(7, "c", "client", "frame", 50, "content_block_delta", "{}"),
        wire(8, "c", "client", "delta", 1, "text", "x"),
        wire(9, "c", "client", "end"),
    ]
    row = Trace([make_info(0, 4, 4, 4), *events]).exchanges.iloc[0]
    assert (row.status, row.frames, row.bytes_received, row.outcome) == (200, 1, 50, "complete")
    assert (row.sent_s, row.ttft_ms) == (0.001, pytest.approx(7.0))


def test_wire_and_stages_know_both_ids_and_the_requests(trace):
    for table in (trace.wire, trace.stages):
        first = table[table.wire_id == "req_1"]
        assert set(first.side) == {"client", "gateway"}
        assert set(first.client_id) == {"cl-1"}
        assert set(first.request_ids) == {("r0",)}
    assert trace.stages.duration_ms.iloc[0] == pytest.approx(0.3)
    assert trace.stages.details.iloc[0] == {"n": 1}
    assert len(trace.wire) == sum(isinstance(e, WireEvent) for e in carried())


def test_a_clients_id_cannot_pass_for_the_gateways_or_an_engine_requests():
    """A client may call its exchange whatever it likes."""
    events = [
        *clockwork(),
        WireLink(MS, "req_1", "client", "req_2"),
        wire(1, "req_1", "gateway", "request", 5, "POST /a"),
        WireLink(MS, "req_2", "client", "r0"),
        wire(2, "req_2", "gateway", "request", 6, "POST /b"),
        wire(1, "req_2", "client", "request", 5, "POST /a"),
    ]
    trace = Trace(events)
    assert trace.exchanges.bytes_sent.tolist() == [5, 6]
    assert trace.exchanges.client_id.tolist() == ["req_2", "r0"]
    assert trace.for_request("req_2").exchanges.path.tolist() == ["/b"]
    part = trace.for_request("r0")
    assert part.requests.request_id.tolist() == ["r0"]
    assert len(part.exchanges) == 0


def test_an_id_used_for_two_exchanges_goes_to_the_last():
    events = [
        WireLink(MS, "req_1", "client", "c"),
        wire(1, "req_1", "gateway", "request", 5, "POST /a"),
        WireLink(2 * MS, "req_2", "client", "c"),
        wire(2, "req_2", "gateway", "request", 6, "POST /a"),
        wire(0.5, "c", "client", "request", 7, "POST /a"),
    ]
    trace = Trace(events)
    assert trace.exchanges.client_id.tolist() == ["c", "c"]
    assert trace.wire.wire_id.tolist() == ["req_1", "req_2", "req_2"]


def test_hostile_text_is_kept_as_it_is(tmp_path):
    text = "\ud83d <script>\x00\u2028 'event: x\n\n"
    events = [
        wire(1, text, "gateway", "request", 5, f"POST /{text}", text),
        Stage(MS, 2 * MS, text, "gateway", text, text, text, {text: [text, None, 1.5, {"nested": text}]}),
        WireLink(MS, text, "client", text),
        WireLink(MS, text, "engine", text),
        wire(2, text, "proxy", "fault", 0, text, text),
        wire(2, "x", "somewhere", "news", 0, "999 999", text),
    ]
    trace = Trace.load(Trace(events).save(tmp_path / "hostile"))
    assert trace.events == tuple(events)
    assert trace.wire.text.tolist() == [text, text, text]
    assert trace.stages.details.tolist() == [{text: [text, None, 1.5, {"nested": text}]}]
    assert trace.exchanges.status.isna().all()
    assert len(trace.spans) == len(Trace(events).spans) > 0


def test_what_a_proxy_records_belongs_to_the_exchange_whose_id_it_gives_else_to_none(trace):
    events = [wire(5, "cl-1", "proxy", "fault", 0, "delay"), wire(6, "tcp-1", "proxy", "fault", 0, "drop")]
    both = Trace([*events, *carried()])
    assert both.wire.wire_id.tolist()[:2] == ["req_1", "tcp-1"]
    assert both.exchanges.wire_id.tolist() == trace.exchanges.wire_id.tolist()
    assert both.for_request("r0").wire.name.tolist()[0] == "delay"


def test_a_stage_without_an_id_is_in_no_exchange():
    trace = Trace([stage(1, 2, "", "client", "assemble"), stage(3, 4, "", "gateway", "render")])
    assert trace.stages.wire_id.tolist() == ["", ""]
    assert len(trace.exchanges) == len(trace.spans) == 0


# -- parts --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("any_id", ["r0", "req_1", "cl-1"])
def test_a_part_keeps_the_exchange_that_carried_its_request(trace, any_id):
    part = trace.for_request(any_id)
    assert part.requests.request_id.tolist() == ["r0"]
    assert part.check() == []
    pd.testing.assert_frame_equal(part.exchanges, trace.exchanges.iloc[:1])
    theirs = trace.spans[trace.spans.wire_id == "req_1"].reset_index(drop=True)
    ours = part.spans[part.spans.wire_id == "req_1"].reset_index(drop=True)
    pd.testing.assert_frame_equal(ours, theirs)


def test_a_part_about_an_exchange_that_reached_no_engine(trace, tmp_path):
    for any_id in ("req_2", "cl-3"):
        part = trace.for_request(any_id)
        assert (len(part.exchanges), len(part.requests), len(part.steps)) == (1, 0, 0)
        assert Trace.load(part.save(tmp_path / any_id)).requests.empty


def test_a_saved_part_loads_equal(trace, tmp_path):
    loaded = Trace.load(trace.for_request("cl-1").save(tmp_path / "part"))
    assert loaded.only == ("req_1", "r0")
    pd.testing.assert_frame_equal(loaded.exchanges, trace.exchanges.iloc[:1])
    assert loaded.requests.request_id.tolist() == ["r0"]


@settings(deadline=None, max_examples=25, suppress_health_check=[HealthCheck.too_slow])
@given(served())
def test_a_part_shows_its_exchange_as_the_whole_does(events):
    whole = Trace(events)
    for wire_id in whole.exchanges.wire_id:
        part = whole.for_request(wire_id)
        for name in ("exchanges", "wire", "stages", "spans"):
            ours, theirs = (getattr(trace, name) for trace in (part, whole))
            ours, theirs = (table[table.wire_id == wire_id].reset_index(drop=True) for table in (ours, theirs))
            ids = ["span_id", "parent_id"] if name == "spans" else []
            pd.testing.assert_frame_equal(ours.drop(columns=ids), theirs.drop(columns=ids))
        assert part.check() == []


def test_unknown_ids_are_refused_with_the_known_ones(trace):
    with pytest.raises(UnknownRequest, match=r"'r9' is not in the trace, which has: r0, r1, req_1, req_2, cl-3"):
        trace.for_request("r9")
    with pytest.raises(UnknownRequest):
        trace.leaves("cl-9")


def test_repr_counts_exchanges(trace):
    assert repr(trace) == "<Trace of synthetic: 3 exchanges, 2 requests, 5 steps, 58 events>"


@settings(deadline=None, max_examples=40, suppress_health_check=[HealthCheck.too_slow])
@given(served())
def test_every_exchange_has_a_row_and_every_event_a_place(events):
    trace = Trace(events)
    assert set(trace.exchanges.wire_id) == {e.wire_id for e in events if isinstance(e, WireLink)}
    assert set(trace.wire.wire_id) == set(trace.exchanges.wire_id)
    linked = {r for ids in trace.exchanges.request_ids for r in ids}
    assert linked <= {e.request_id for e in events if isinstance(e, RequestSubmitted)}
    assert trace.check() == []


@settings(deadline=None, max_examples=20, suppress_health_check=[HealthCheck.too_slow])
@given(served())
def test_losing_the_beginning_is_no_contradiction_and_breaks_no_table(events):
    for start in range(1, len(events), 5):
        trace = Trace([events[0], Gap(events[start].t_ns, start - 1), *events[start:]])
        assert trace.check() == []
        assert len(trace.wire) + len(trace.stages) <= len(events)
        assert trace.spans.duration_ms.ge(0).all()
        assert len(trace.exchanges) == len({*trace.wire.wire_id, *trace.stages.wire_id, *_ids_of(trace)} - {None})


def _ids_of(trace: Trace) -> list[str]:
    return [e.client_id for e in trace.exchanges.itertuples() if e.wire_id is None]


def test_a_stage_before_the_first_event_begins_the_exchange(trace):
    assert trace.spans[trace.spans.name == "exchange"].start_s.iloc[0] == 0.0001
    assert Trace([stage(1, 2, "c", "client", "assemble")]).spans.name.tolist() == ["exchange", "assemble"]
