"""The waterfall: its bars are the trace's spans and stages, and they add up."""

from __future__ import annotations

from itertools import pairwise

import pytest

import llmlab
from llmlab.errors import UnknownRequest
from llmlab.trace import Trace
from llmlab.trace.events import RequestFinished, Stage, Step, WireEvent, WireLink
from llmlab.views import waterfall
from llmlab.views.scene import Rect

TILES = ["queue", "prefill", "decode", "between its steps"]
PHASES = ["schedule", "build batch", "forward", "sample", "detokenize", "emit"]


def milliseconds(view, *rows: str, side: str = "engine") -> float:
    table = view.table()
    return table[(table.side == side) & table.row.isin(rows)].duration_ms.sum()


@pytest.mark.parametrize("name", ["lab_trace", "draft_trace", "wire_trace"])
def test_queue_steps_and_what_is_between_them_tile_the_requests_time(name, request):
    trace = request.getfixturevalue(name)
    for row in trace.requests.itertuples():
        assert milliseconds(waterfall(trace, row.request_id), *TILES) == pytest.approx(row.e2e_ms, abs=1e-6)


def test_its_rows_are_as_long_as_the_traces_spans(lab_trace):
    for request_id in lab_trace.requests.request_id:
        view = waterfall(lab_trace, request_id)
        spans = lab_trace.spans[lab_trace.spans.request_id == request_id].groupby("name").duration_ms.sum()
        for name in ("queue", "prefill", "decode", "render template", "tokenize"):
            assert milliseconds(view, name) == pytest.approx(spans[name], abs=1e-6)
        between = spans.get("wait", 0) + spans.get("between steps", 0)
        assert milliseconds(view, "between its steps") == pytest.approx(between, abs=1e-6)


def test_the_phases_fill_the_steps(draft_trace):
    view = waterfall(draft_trace, "r4")
    assert milliseconds(view, *PHASES) == pytest.approx(milliseconds(view, "prefill", "decode"), abs=1e-6)


def test_the_stages_of_client_and_gateway_are_those_recorded(wire_trace):
    for request_id in wire_trace.requests.request_id:
        view = waterfall(wire_trace, request_id)
        stages = wire_trace.stages[wire_trace.stages.request_ids.map(lambda ids, r=request_id: r in ids)]
        for (side, name), total in stages.groupby(["side", "name"]).duration_ms.sum().items():
            assert milliseconds(view, name, side=side) == pytest.approx(total, abs=1e-6)


def test_it_reaches_from_the_first_to_the_last_thing_recorded_on_any_side(wire_trace):
    exchange = wire_trace.index.exchanges.by_request_id["r0"]
    table = waterfall(wire_trace, "r0").table()
    assert list(dict.fromkeys(table.side)) == ["client", "gateway", "engine"]
    whole = (exchange.end_ns - exchange.start_ns) / 1e6
    assert (table.start_ms + table.duration_ms).max() == pytest.approx(whole, abs=1e-6)
    assert table.start_ms.min() == 0


def test_every_step_of_the_request_is_one_bar_with_its_number(lab_trace):
    view = waterfall(lab_trace, "r4")
    ran = lab_trace.schedule[(lab_trace.schedule.request_id == "r4") & (lab_trace.schedule.action == "ran")]
    table = view.table()
    assert sorted(table[table.row.isin(["prefill", "decode"])].step) == ran.step.tolist()
    drawn = [m.key["step"] for m in view.scene.marks if isinstance(m, Rect) and m.tip.startswith("decode")]
    assert drawn == ran[~ran.is_prefill.astype(bool)].step.tolist()


def test_bars_of_one_row_are_in_order_and_apart(lab_trace):
    bars = [m for m in waterfall(lab_trace, "r4").scene.marks if isinstance(m, Rect) and m.tip.startswith("decode")]
    assert len(bars) == 39
    assert all(one.x < other.x for one, other in pairwise(bars))


def test_a_preemption_is_told_with_its_reason_and_queued_twice(lab_trace):
    view = waterfall(lab_trace, "r6")
    assert "preempted in step 41: its blocks were needed by an earlier request" in view.text
    assert (view.table().row == "queue").sum() == 2


def test_a_request_that_has_not_finished_is_drawn_as_far_as_it_is_known(lab_trace):
    events = [e for e in lab_trace.events if not (isinstance(e, Step) and e.step > 20)]
    view = waterfall(Trace([e for e in events if not isinstance(e, RequestFinished)]), "r4")
    assert "not finished" in view.text
    assert view.table().step.max() == 20


def test_a_forked_sample_has_its_first_token_without_a_row_of_its_own():
    with llmlab.open("mock", background=False) as lab:
        lab.submit("two answers", n=2, max_tokens=4, temperature=1.0, seed=1).wait()
        trace = lab.trace
    samples = trace.requests.request_id
    assert len(samples) == 2
    assert all("prefill (1 step)" in waterfall(trace, sample).text for sample in samples)


def test_more_stages_than_fit_are_folded_into_one_row(lab_trace):
    start = lab_trace.index.submitted["r0"].t_ns
    stages = [Stage(start - 100 + i, start - 99 + i, "w", "gateway", f"stage {i}", "ok", "", {}) for i in range(60)]
    view = waterfall(Trace([*lab_trace.events, WireLink(start, "w", "engine", "r0"), *stages]), "r0")
    gateway = view.table()[lambda table: table.side == "gateway"]
    assert gateway.row.nunique() == 25
    assert (gateway.row == "36 further stages").sum() == 36


def test_trouble_on_the_wire_has_a_row_of_its_own(wire_trace):
    wire_id = wire_trace.index.exchanges.by_request_id["r3"].wire_id
    start = wire_trace.index.submitted["r3"].t_ns
    fault = WireEvent(start, wire_id, "gateway", "fault", "", 0, "slow network")
    assert "fault" in waterfall(Trace([*wire_trace.events, fault]), "r3").text


def test_many_steps_are_pooled_and_it_says_so(long_trace):
    view = waterfall(long_trace, "r0")
    assert "Neighbouring parts of a row are drawn as one bar where it has more than 80." in view.notes
    assert len(view.svg.encode()) < 64 * 1024
    assert len(view.scene.marks) < 1_000
    assert (view.table().row == "decode").sum() == 511


def test_an_unknown_request_is_refused_with_those_that_are_there(lab_trace):
    with pytest.raises(UnknownRequest, match="r0, r1, r2"):
        waterfall(lab_trace, "r99")
