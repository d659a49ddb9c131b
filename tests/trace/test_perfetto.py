from __future__ import annotations

import gzip
import json
from collections import defaultdict

from hypothesis import HealthCheck, given, settings
from synthetic import MS, clockwork, story, traces

from llmlab.trace import Trace
from llmlab.trace.events import RequestFinished, Span
from llmlab.trace.perfetto import ENGINE, REQUESTS


def of_kind(trace: dict, ph: str) -> list[dict]:
    return [event for event in trace["traceEvents"] if event["ph"] == ph]


def track_names(trace: dict, pid: int) -> dict[int, str]:
    return {e["tid"]: e["args"]["name"] for e in of_kind(trace, "M") if e["pid"] == pid and e["name"] == "thread_name"}


def assert_strictly_nested(trace: dict) -> None:
    """On each track every slice lies inside the open one or after it, to the nanosecond."""
    tracks = defaultdict(list)
    for event in of_kind(trace, "X"):
        start = round(event["ts"] * 1e3)
        tracks[event["pid"], event["tid"]].append((start, start + round(event["dur"] * 1e3)))
    for slices in tracks.values():
        open_until = []
        for start, end in sorted(slices, key=lambda s: (s[0], -s[1])):
            while open_until and open_until[-1] <= start:
                open_until.pop()
            assert not open_until or end <= open_until[-1]
            open_until.append(end)


@settings(deadline=None, max_examples=40, suppress_health_check=[HealthCheck.too_slow])
@given(traces())
def test_export_is_valid_and_every_request_has_a_track(events):
    trace = Trace(events)
    exported = json.loads(json.dumps(trace.to_perfetto(), allow_nan=False))
    assert all(event.get("ts", 0) >= 0 and event.get("dur", 0) >= 0 for event in exported["traceEvents"])
    assert_strictly_nested(exported)
    names = track_names(exported, REQUESTS)
    assert list(names.values()) == [f"request {i}" for i in trace.requests.request_id]
    roots = [e["tid"] for e in of_kind(exported, "X") if e["name"] == "request"]
    assert sorted(roots) == sorted(names)


def test_steps_phases_and_counters_are_on_the_engine():
    exported = Trace(clockwork()).to_perfetto()
    engine = [e for e in of_kind(exported, "X") if e["pid"] == ENGINE]
    assert [e["ts"] for e in engine if e["name"] == "step"] == [4000, 10000, 20000, 30000, 40000]
    assert sum(e["name"] == "forward" for e in engine) == 5
    blocks = [e for e in of_kind(exported, "C") if e["name"] == "K/V blocks"]
    assert [e["args"]["used"] for e in blocks] == [1, 2, 3, 2, 0]
    assert all(sum(e["args"].values()) == 4 for e in blocks)
    assert track_names(exported, ENGINE) == {1: "steps"}


def test_preemption_and_finish_are_instants_on_their_request():
    exported = Trace(clockwork()).to_perfetto()
    names = track_names(exported, REQUESTS)
    found = [(names[e["tid"]], e["name"], e["ts"]) for e in of_kind(exported, "i")]
    assert found == [("request r1", "preempted", 30500), ("request r0", "finished", 35500)]
    assert sum(isinstance(e, RequestFinished) for e in story()) == 7


def test_stages_outside_the_tree_are_asynchronous():
    events = [*clockwork(), Span(5 * MS, 50 * MS, "stream", "r0"), Span(8 * MS, 60 * MS, "stream", "r0")]
    exported = Trace(events).to_perfetto()
    assert_strictly_nested(exported)
    begun, ended = of_kind(exported, "b"), of_kind(exported, "e")
    assert [e["id"] for e in begun] == [e["id"] for e in ended]
    assert [(b["ts"], e["ts"]) for b, e in zip(begun, ended, strict=True)] == [(5000, 50000), (8000, 60000)]


def test_prompt_text_is_not_exported():
    assert "some text" not in json.dumps(Trace(story()).to_perfetto())


def test_written_file_is_what_was_returned(tmp_path):
    trace = Trace(story())
    plain, packed = tmp_path / "run.json", tmp_path / "run.json.gz"
    exported = trace.to_perfetto(plain)
    trace.to_perfetto(packed)
    assert json.loads(plain.read_text()) == json.loads(gzip.decompress(packed.read_bytes())) == exported
    assert sorted(p.name for p in tmp_path.iterdir()) == ["run.json", "run.json.gz"]
