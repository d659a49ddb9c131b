from __future__ import annotations

import json

from hypothesis import HealthCheck, given, settings
from synthetic import MS
from synthetic_wire import carried, served, stage
from test_perfetto import assert_strictly_nested, of_kind, track_names

from llmlab.trace import Trace
from llmlab.trace.events import WireLink
from llmlab.trace.perfetto import REQUESTS
from llmlab.trace.perfetto_wire import PROCESSES

CLIENT, GATEWAY = PROCESSES["client"], PROCESSES["gateway"]


def test_each_side_has_a_track_per_exchange_with_its_stages():
    exported = Trace(carried()).to_perfetto()
    assert track_names(exported, CLIENT) == {1: "exchange req_1", 3: "exchange cl-3"}
    assert track_names(exported, GATEWAY) == {1: "exchange req_1", 2: "exchange req_2"}
    slices = [(e["pid"], e["name"], e["ts"], e["dur"]) for e in of_kind(exported, "X") if e["tid"] == 1]
    assert (CLIENT, "exchange", 100, 37400) in slices
    assert (GATEWAY, "exchange", 900, 35700) in slices
    assert (GATEWAY, "decode", 1200, 400) in slices
    assert (CLIENT, "wait", 600, 13200) in slices


def test_arrows_lead_from_the_client_to_the_gateway_to_the_engine():
    exported = Trace(carried()).to_perfetto()
    tails, heads = of_kind(exported, "s"), of_kind(exported, "f")
    found = {(s["name"], s["pid"], s["ts"], f["pid"], f["ts"]) for s, f in zip(tails, heads, strict=True)}
    assert found == {("carries", CLIENT, 500, GATEWAY, 900), ("serves", GATEWAY, 2000, REQUESTS, 2000)}
    assert [s["id"] for s in tails] == [f["id"] for f in heads] == [1, 2]


def test_trouble_is_an_instant_on_its_track():
    exported = Trace(carried()).to_perfetto()
    found = [(e["pid"], e["tid"], e["name"], e["args"]) for e in of_kind(exported, "i") if e["pid"] != REQUESTS]
    assert found == [(CLIENT, 3, "error", {"what": "ConnectionLost"})]


def test_stages_that_overlap_are_asynchronous():
    events = [stage(1, 5, "q", "gateway", "a"), stage(2, 6, "q", "gateway", "b"), stage(3, 4, "q", "gateway", "c")]
    exported = Trace(events).to_perfetto()
    assert_strictly_nested(exported)
    assert [e["name"] for e in of_kind(exported, "X")] == ["exchange", "a", "c"]
    assert [e["name"] for e in of_kind(exported, "b")] == ["b"]


def test_a_link_without_a_record_of_its_exchange_draws_nothing():
    events = [*carried(), WireLink(MS, "req_9", "engine", "r1"), WireLink(MS, "req_1", "engine", "r9")]
    assert len(of_kind(Trace(events).to_perfetto(), "s")) == 2


def test_bodies_and_frames_are_not_exported():
    exported = json.dumps(Trace(carried()).to_perfetto())
    assert "text_delta" not in exported
    assert "model" in exported  # the engine's, in otherData
    assert '\\"model\\"' not in exported


@settings(deadline=None, max_examples=40, suppress_health_check=[HealthCheck.too_slow])
@given(served())
def test_export_is_valid_and_every_arrow_touches_two_slices(events):
    exported = json.loads(json.dumps(Trace(events).to_perfetto(), allow_nan=False))
    assert_strictly_nested(exported)
    slices: dict[tuple[int, int], list[tuple[float, float]]] = {}
    for event in of_kind(exported, "X"):
        slices.setdefault((event["pid"], event["tid"]), []).append((event["ts"], event["ts"] + event["dur"] + 1e-3))
    for end in [*of_kind(exported, "s"), *of_kind(exported, "f")]:
        assert any(start <= end["ts"] <= until for start, until in slices[end["pid"], end["tid"]])
