from __future__ import annotations

import threading

import pytest
from synthetic import make_info

from llmlab.errors import InvalidParameter
from llmlab.trace import Recorder
from llmlab.trace.events import Gap, Span, WireEvent


def span(i: int) -> Span:
    return Span(i, i + 1, "stage", None)


def filled(recorder: Recorder, count: int) -> Recorder:
    recorder.emit(make_info(0, 4, 4, 4))
    for i in range(count):
        recorder.emit(span(i))
    return recorder


def test_a_reader_sees_every_event_once():
    recorder, cursor, seen = filled(Recorder(), 3), 0, []
    for i in range(3, 8):
        events, cursor = recorder.read_since(cursor)
        seen += events
        recorder.emit(span(i))
    seen += recorder.read_since(cursor)[0]
    assert seen[1:] == [span(i) for i in range(8)]
    assert recorder.read_since(cursor + 1) == ([], cursor + 1)


def test_events_that_fell_out_become_one_gap():
    recorder = filled(Recorder(capacity=5), 4)
    _, cursor = recorder.read_since(0)
    for i in range(4, 14):
        recorder.emit(span(i))
    events, _ = recorder.read_since(cursor)
    assert events == [Gap(9, dropped=5), *map(span, range(9, 14))]


def test_snapshot_keeps_the_engine_info_and_counts_the_rest_as_dropped():
    recorder = filled(Recorder(capacity=5), 20)
    info, gap, *rest = recorder.snapshot()
    assert info == make_info(0, 4, 4, 4)
    assert gap == Gap(15, dropped=15)
    assert rest == [span(i) for i in range(15, 20)]
    assert recorder.dropped == 15


def test_wire_events_push_the_oldest_out_like_all_others():
    recorder = filled(Recorder(capacity=4), 2)
    for i in range(6):
        recorder.emit(WireEvent(100 + i, "req_1", "gateway", "frame", "sent", 10, "ping", "{}"))
    info, gap, *rest = recorder.snapshot()
    assert (info, gap) == (make_info(0, 4, 4, 4), Gap(102, dropped=4))
    assert [event.t_ns for event in rest] == [102, 103, 104, 105]


def test_nothing_is_dropped_before_the_ring_is_full():
    recorder = filled(Recorder(capacity=5), 4)
    assert recorder.dropped == 0
    assert not any(isinstance(e, Gap) for e in recorder.snapshot())


def test_info_that_fell_out_is_not_given_twice():
    recorder = filled(Recorder(capacity=2), 5)
    _, cursor = recorder.read_since(0)
    recorder.emit(span(5))
    assert recorder.read_since(cursor)[0] == [span(5)]


def test_a_disabled_recorder_keeps_only_the_engine_info():
    recorder = filled(Recorder(enabled=False), 3)
    with recorder.span("tokenize", "r0"):
        pass
    assert recorder.snapshot() == [make_info(0, 4, 4, 4)]


def test_a_pause_leaves_a_gap():
    recorder = filled(Recorder(), 1)
    recorder.enabled = False
    recorder.emit(span(1))
    recorder.enabled = True
    recorder.emit(span(2))
    kinds = [type(event).__name__ for event in recorder.snapshot()]
    assert kinds == ["EngineInfo", "Span", "Gap", "Span"]


def test_clear_forgets_events_but_says_so():
    recorder = filled(Recorder(), 3)
    _, cursor = recorder.read_since(0)
    recorder.emit(span(3))
    recorder.clear()
    recorder.emit(span(4))
    assert recorder.snapshot() == [make_info(0, 4, 4, 4), Gap(4, dropped=4), span(4)]
    assert recorder.read_since(cursor)[0] == [Gap(4, dropped=1), span(4)]


def test_span_is_recorded_when_its_body_raises():
    recorder = Recorder()
    with pytest.raises(KeyError), recorder.span("tokenize", "r0"):
        raise KeyError
    (recorded,) = recorder.snapshot()
    assert (recorded.name, recorded.request_id) == ("tokenize", "r0")
    assert recorded.end_ns >= recorded.t_ns


def test_writers_in_many_threads_lose_nothing_while_a_reader_polls():
    recorder, seen, cursor = Recorder(capacity=100_000), [], 0
    numbers = [range(k * 5000, (k + 1) * 5000) for k in range(4)]
    threads = [threading.Thread(target=lambda r=r: [recorder.emit(span(i)) for i in r]) for r in numbers]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        events, cursor = recorder.read_since(cursor)
        seen += events
    seen += recorder.read_since(cursor)[0]
    assert sorted(e.t_ns for e in seen) == list(range(20_000))


@pytest.mark.parametrize("capacity", [0, -1, 2.5])
def test_impossible_capacity_is_refused(capacity):
    with pytest.raises(InvalidParameter, match="at least 1"):
        Recorder(capacity=capacity)
