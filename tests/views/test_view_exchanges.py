"""The exchanges as they were seen: what came when, what was counted, and which are drawn."""

from __future__ import annotations

import pytest

from llmlab.errors import UnknownRequest
from llmlab.trace import Trace
from llmlab.trace.events import WireEvent
from llmlab.views import exchanges
from llmlab.views.exchanges import MAX_ROWS, MAX_TICKS
from llmlab.views.scene import Line, Rect, Text


def sent(wire_id, t=0, *deltas, end=None, status=None):
    """What a client records of one exchange; times in milliseconds."""

    def event(at, kind, name="", text=None):
        return WireEvent(int(1e6 * at), wire_id, "client", kind, "", 0, name, text)

    found = [event(t, "request", "POST /v1/messages")]
    found += [] if status is None else [event(t + 1, "response", str(status))]
    found += [event(t + at, "delta", "text", "x") for at in deltas]
    return found + ([] if end is None else [event(t + end, "end")])


def test_times_and_counts_are_those_of_the_trace(wire_trace):
    view = exchanges(wire_trace)
    table, known = view.table(), wire_trace.exchanges
    assert table["ttft_ms"].tolist() == pytest.approx(known["ttft_ms"].tolist(), nan_ok=True)
    assert table["outcome"].tolist() == known["outcome"].fillna("open").tolist()
    texts = [e for e in wire_trace.index.wire if e.kind == "delta" and e.side == "client"]
    assert table["fragments"].sum() == len(texts)


def test_times_count_from_sending_and_between_fragments():
    table = exchanges(Trace(sent("a", 5, 10, 12, 18, end=20, status=200))).table()
    row = table.iloc[0]
    assert (row["ttft_ms"], row["itl_ms"], row["total_ms"], row["fragments"]) == (10, 4, 20, 3)


def test_what_was_not_recorded_is_absent():
    view = exchanges(Trace(sent("a")))
    row = view.table().iloc[0]
    assert row[["ttft_ms", "itl_ms", "total_ms", "prompt_tokens", "output_tokens"]].isna().all()
    assert view.text == "1. POST /v1/messages: no answer, open, 0 fragments, no usage"


def test_bars_are_to_scale_and_within_the_picture():
    events = sent("a", 0, 10, 20, end=40, status=200) + sent("b", 100, 5, 10, end=20, status=500)
    view = exchanges(Trace(events), width=600)
    bars = [mark for mark in view.scene.marks if isinstance(mark, Rect) and mark.key]
    lengths = [sum(bar.w for bar in bars if bar.key["wire"] == name) for name in "ab"]
    assert lengths[0] == pytest.approx(2 * lengths[1])
    assert all(bar.x >= 0 and bar.x + bar.w <= 600 for bar in bars)
    words = [mark for mark in view.scene.marks if isinstance(mark, Text)]
    assert any("500, error" in mark.text and mark.fill == "alarm" for mark in words)


def test_the_latest_are_drawn_or_those_up_to_the_chosen_one():
    trace = Trace([event for i in range(40) for event in sent(f"x{i}", 10 * i, 1, end=2, status=200)])

    def drawn(view):
        return list(dict.fromkeys(mark.key["wire"] for mark in view.scene.marks if mark.key))

    assert drawn(exchanges(trace)) == [f"x{i}" for i in range(40 - MAX_ROWS, 40)]
    assert drawn(exchanges(trace, "x20")) == [f"x{i}" for i in range(21 - MAX_ROWS, 21)]
    assert drawn(exchanges(trace, "x3")) == [f"x{i}" for i in range(MAX_ROWS)]
    assert exchanges(trace).notes == (f"{MAX_ROWS} of 40 exchanges are drawn: see table().",)
    assert len(exchanges(trace).table()) == 40


def test_an_exchange_that_is_not_there_is_refused():
    with pytest.raises(UnknownRequest, match="nobody"):
        exchanges(Trace([]), "nobody")


def test_a_long_answer_has_no_more_lines_than_can_be_told_apart():
    view = exchanges(Trace(sent("a", 0, *range(1, 20_001), end=20_002, status=200)))
    assert sum(isinstance(mark, Line) for mark in view.scene.marks) <= MAX_TICKS
    assert view.table()["fragments"].tolist() == [20_000]
