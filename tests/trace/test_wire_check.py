from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from synthetic import MS
from synthetic_wire import carried, stage, text_frame, wire

from llmlab.trace import Trace
from llmlab.trace.events import Event, Gap, Stage, WireEvent, WireLink


def changed(side: str, kind: str, which: int, change: Callable[[WireEvent], WireEvent | None]) -> list[Event]:
    """The carried exchange with one of a side's events changed, or left out."""
    events = carried()
    found = [i for i, e in enumerate(events) if isinstance(e, WireEvent) and (e.side, e.kind) == (side, kind)]
    new = change(events[found[which]])
    return [*events[: found[which]], *([] if new is None else [new]), *events[found[which] + 1 :]]


def test_what_both_sides_recorded_agrees():
    assert Trace(carried()).check() == []


@pytest.mark.parametrize(
    ("side", "kind", "which", "change", "message"),
    [
        ("gateway", "frame", 0, lambda e: replace(e, size=101), "201 bytes, more than the 200"),
        ("client", "bytes", 1, lambda e: replace(e, size=99), "sent 200 bytes, the client received 199"),
        ("client", "bytes", 1, lambda e: None, "sent 200 bytes, the client received 100"),
        ("client", "frame", 1, lambda e: None, "sent 2 frames, the client read 1"),
        ("client", "delta", 1, lambda e: replace(e, text="c"), "deltas is not the text of the gateway's frames"),
        ("client", "delta", 1, lambda e: None, "deltas is not the text of the gateway's frames"),
        ("gateway", "frame", 0, lambda e: replace(e, text=text_frame("z")), "deltas is not the text"),
        ("gateway", "end", 0, lambda e: replace(e, t_ns=20 * MS), "recorded frame 'content_block_delta' after its end"),
        ("client", "end", 0, lambda e: replace(e, t_ns=20 * MS), "client recorded bytes '' after its end"),
    ],
)
def test_a_contradiction_is_found(side, kind, which, change, message):
    found = Trace(changed(side, kind, which, change)).check()
    assert any(message in violation and "exchange req_1" in violation for violation in found), found


def test_a_link_to_a_request_that_is_nowhere_is_found():
    events = [replace(e, other_id="r7") if isinstance(e, WireLink) and e.relation == "engine" else e for e in carried()]
    assert Trace(events).check() == ["exchange req_1: it is linked to request r7, which is not in the trace"]


def test_a_stage_that_ends_before_it_begins_is_found():
    assert "ends before it begins" in Trace([*carried(), stage(9, 8, "req_1", "gateway", "late")]).check()[0]


def test_an_exchange_that_is_over_for_the_client_must_end_at_the_gateway():
    events = changed("gateway", "end", 0, lambda e: None)
    assert Trace(events).check() == []
    events.append(wire(1037.6, "later", "client", "request"))
    assert Trace(events).check() == ["exchange req_1: it is over for the client, but the gateway recorded no end"]


def test_an_injected_fault_excuses_what_it_disturbs():
    events = changed("client", "bytes", 1, lambda e: None)
    assert Trace([*events, wire(20, "req_1", "gateway", "fault", 0, "drop")]).check() == []
    assert Trace([*events, wire(20, "cl-1", "proxy", "fault", 0, "split")]).check() == []


def test_an_exchange_from_before_a_gap_is_not_compared():
    events = changed("client", "bytes", 1, lambda e: None)
    place = next(i for i, e in enumerate(events) if isinstance(e, WireEvent) and e.kind == "frame")
    gap = Gap(events[place].t_ns, 3)
    assert Trace([*events[:place], gap, *events[place:]]).check() == []
    assert len(Trace([events[0], gap, *events[1:]]).check()) == 1


@pytest.mark.parametrize("mark", ["\n[cut: 9 more characters]", "... (9 characters cut)", "[key]"])
def test_texts_of_which_something_was_removed_are_not_compared(mark):
    events = changed("client", "delta", 0, lambda e: replace(e, text=f"z{mark}"))
    assert Trace(events).check() == []


def test_an_answer_that_was_not_complete_is_not_compared():
    events = changed("client", "end", 0, lambda e: replace(e, kind="disconnect"))
    events = [e for e in events if not (isinstance(e, WireEvent) and e.side == "client" and e.t_ns == 36_800_000)]
    assert Trace(events).check() == []


def test_frames_that_are_no_json_do_not_stop_the_check():
    events = carried()
    for data in ("[" * 100_000, "{", "null", '{"delta": [1]}', '{"delta": {"text": 7}}'):
        more = wire(36, "req_1", "gateway", "frame", 0, "x", data), wire(36, "cl-1", "client", "frame", 0, "x", data)
        assert Trace([*events, *more]).check() == []


def test_stages_do_not_make_an_exchange_whole_after_a_gap():
    events = [Gap(0, 4), stage(1, 2, "q", "gateway", "stream"), wire(3, "q", "gateway", "end", 5, "ok")]
    events += [wire(4, "q", "gateway", "frame", 9, "x"), WireLink(5, "q", "engine", "r0")]
    assert Trace(events).check() == []
    assert any(isinstance(e, Stage) for e in events)
