"""The wire view: frames, pieces and the message put together from them, as they were recorded."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from xml.etree import ElementTree

import exchange_events as made
import pictures
import pytest
import recordings

from llmlab.errors import UnknownRequest
from llmlab.trace import Trace
from llmlab.trace.events import WireEvent
from llmlab.views.scene import Rect, Text
from llmlab.views.wire_view import wire_view

MS = made.MS


def ids(trace: Trace) -> list[str]:
    return [exchange.id for exchange in trace.index.exchanges.all]


def words(view) -> str:
    return "\n".join(mark.text for mark in view.scene.marks if isinstance(mark, Text))


def notice(kind: str, name: str, at: int, text: str | None = None) -> WireEvent:
    return WireEvent(at, "c", "client", kind, "", 0, name, text)


def test_a_second_run_of_the_same_requests_has_the_same_text(wire_trace):
    again = recordings.record_wire()
    one, other = ([str(wire_view(trace, i)) for i in ids(trace)] for trace in (wire_trace, again))
    assert one == other
    assert len(set(one)) == len(one) == 4


def test_frames_and_bytes_are_those_of_the_exchanges_table(wire_trace):
    for row in wire_trace.exchanges.itertuples():
        table = wire_view(wire_trace, row.wire_id).table()
        frames = table[table.kind == "frame"]
        assert len(frames) == row.frames
        pieces = frames.drop_duplicates("piece").piece_bytes.sum() + table[table.kind == "bytes"].bytes.sum()
        assert pieces == (row.bytes_received if row.client_id and row.stream else 0)


def test_the_message_is_what_the_engine_said(wire_trace):
    for row in wire_trace.exchanges.itertuples():
        said = "".join(text.text for text in wire_trace.index.texts if text.request_id in row.request_ids)
        table = wire_view(wire_trace, row.wire_id).table()
        if row.stream:
            assert "".join(table.added.dropna()) == said
        else:
            assert f"{len(said)} characters" in wire_view(wire_trace, row.wire_id).text


def test_the_client_s_deltas_are_what_was_appended(wire_trace):
    exchange = next(each for each in wire_trace.index.exchanges.all if each.client_id)
    deltas = [event.text for event in exchange.of("client") if event.kind == "delta"]
    table = wire_view(wire_trace, exchange.id).table()
    assert list(table[table.operation == "append"].added) == deltas


def test_any_side_s_id_and_the_engine_s_lead_to_the_exchange(wire_trace):
    first = wire_trace.index.exchanges.all[0]
    views = [wire_view(wire_trace, i).text for i in (first.wire_id, first.client_id, first.request_ids[0])]
    assert len(set(views)) == 1
    assert wire_view(wire_trace).text == wire_view(wire_trace, ids(wire_trace)[-1]).text
    with pytest.raises(UnknownRequest, match="it has req_"):
        wire_view(wire_trace, "nothing")


def test_both_sides_times_are_shown_and_the_gateway_sends_before_the_client_receives():
    table = wire_view(made.stream(made.hello(["a", "b"]))).table()
    frames = table[table.kind == "frame"]
    assert (frames.gateway_ms < frames.client_ms).all()
    assert "gateway ms" in words(wire_view(made.stream(made.hello(["a"]))))
    assert "gateway ms" not in words(wire_view(made.stream(made.hello(["a"]), gateway=False)))


def test_frames_that_differ_between_the_sides_are_not_paired():
    trace = made.stream(made.hello(["a", "b"]), gateway=False)
    other = WireEvent(5, "g", "gateway", "frame", "sent", 9, "ping", '{"type":"ping"}')
    link = made.WireLink(1, "g", "client", "c")
    table = wire_view(Trace([*trace.events, other, link])).table()
    assert table[table.kind == "frame"].gateway_ms.isna().all()


def test_frames_the_client_never_got_are_marked():
    events = made.hello(["a", "b", "c"])
    trace = made.stream(events)
    lost = [e for e in trace.events if not (getattr(e, "side", "") == "client" and e.t_ns > 5 * MS)]
    view = wire_view(Trace(lost))
    frames = view.table()[view.table().kind == "frame"]
    assert len(frames) == len(events)
    assert frames.client_ms.isna().sum() == frames.operation.isna().sum() > 0
    assert "(not received)" in words(view)
    assert "No proper end" in " ".join(view.notes)


def test_a_frame_in_many_pieces_and_many_frames_in_one_piece():
    view = wire_view(made.stream(made.hello(["a", "b"]), split=20))
    table = view.table()
    whole = sum(event.size for event in view_events(view, "bytes"))
    assert table[table.kind == "bytes"].bytes.sum() + table.drop_duplicates("piece").piece_bytes.sum() == whole
    assert "no frame ends in this piece" in words(view)


def view_events(view, kind):
    trace = made.stream(made.hello(["a", "b"]), split=20)
    return [event for event in trace.index.wire if event.kind == kind and event.side == "client"]


def test_append_overwrite_and_snapshot_are_told_apart():
    events = made.hello(["x"])
    block = {"type": "content_block_start", "index": 0, "content_block": {"type": "thinking", "thinking": ""}}
    deltas = [
        {"type": "content_block_delta", "index": 0, "delta": {"type": "thinking_delta", "thinking": "hm"}},
        {"type": "content_block_delta", "index": 0, "delta": {"type": "signature_delta", "signature": "one"}},
        {"type": "content_block_delta", "index": 0, "delta": {"type": "signature_delta", "signature": "two"}},
    ]
    view = wire_view(made.stream([events[0], block, *deltas, *events[-3:]]))
    operations = list(view.table().operation.dropna())
    assert operations == ["snapshot", "open", "append", "overwrite", "overwrite", "close", "snapshot", "complete"]
    assert 'assembled thinking: 2 characters "hm"' in view.text


def test_warnings_faults_retries_and_disconnects_are_marked():
    more = (
        notice("warning", "stall", 20 * MS, "0.4 s without bytes"),
        notice("fault", "drop after 9 bytes", 21 * MS),
        notice("retry", "status 529", 22 * MS, "3 s: retry-after"),
        notice("disconnect", "the client left", 23 * MS),
    )
    view = wire_view(made.stream(made.hello(["a"]), more=more))
    for said in ("warning (client): stall", "fault (client): drop after 9 bytes", "retry (client): status 529"):
        assert said in view.text
        assert said in words(view)
    assert "disconnect (client): the client left" in words(view)
    assert sum(isinstance(mark, Rect) and mark.stroke == "c5" and mark.width == 1.5 for mark in view.scene.marks) == 4


def test_the_next_attempt_is_named():
    from llmlab.trace.events import Stage

    first = made.stream(made.hello(["a"]), gateway=False)
    retry = Stage(30 * MS, 31 * MS, "c", "client", "retry", "retried", "status 529", {"next_id": "d"})
    second = made.request("{}", wire_id="d", t_ns=40 * MS)
    assert "tried again as exchange 2" in wire_view(Trace([*first.events, retry, second]), "c").text


def test_a_frame_that_is_cut_in_the_record_is_said():
    trace = made.stream(made.hello(["a", "b"]), gateway=False)
    events = [
        WireEvent(
            e.t_ns, e.wire_id, e.side, e.kind, e.direction, e.size, e.name, e.text[:20] + "... (9 characters cut)"
        )
        if getattr(e, "kind", "") == "frame" and '"b"' in e.text
        else e
        for e in trace.events
    ]
    view = wire_view(Trace(events))
    assert "cut in the record" in view.text
    assert any("lacks what was cut" in note for note in view.notes)
    assert 'assembled text: 1 character "a"' in view.text


def test_a_long_stream_is_windowed_and_its_table_is_not():
    texts = [f" wörd{i}" for i in range(600)]
    trace = made.stream(made.hello(texts))
    start = time.perf_counter()
    view = wire_view(trace)
    assert time.perf_counter() - start < 2
    assert len(view.svg) < 64_000
    table = view.table()
    assert (table.kind == "frame").sum() == 605
    assert "".join(table.added.dropna()) == "".join(texts)
    assert "not drawn: 565 x content_block_delta" in words(view)


def test_ten_megabytes_in_one_field_are_no_trouble():
    trace = made.stream(made.hello(["x" * 10_000_000]), gateway=False)
    start = time.perf_counter()
    view = wire_view(trace)
    assert len(view.svg) < 64_000
    assert time.perf_counter() - start < 3
    assert "10,000,000 characters" in view.text


def test_hostile_text_stays_text(hostile_trace):
    view = wire_view(hostile_trace)
    root = ElementTree.fromstring(view.svg)
    assert {element.tag.rpartition("}")[2] for element in root.iter()} <= {
        "svg",
        "title",
        "rect",
        "text",
        "polyline",
        "g",
        "line",
    }
    assert not {"\u202e", "\x00", "\ud800", "\n"} & set(words_drawn(root))
    assert not {"\u202e", "\x00", "\ud800"} & set(str(view))


def words_drawn(root) -> str:
    return "".join(element.text or "" for element in root.iter())


@pytest.mark.parametrize("make", [recordings.record_wire, recordings.record_hostile])
@pytest.mark.parametrize("width", [640, 960, 1400])
def test_nothing_is_drawn_outside(make, width):
    trace = make()
    for exchange in trace.index.exchanges.all:
        scene = wire_view(trace, exchange.id, width=width).scene
        for mark in scene.marks:
            if isinstance(mark, Rect):
                assert mark.x >= 0
                assert mark.x + mark.w <= width + 0.5
                assert mark.y + mark.h <= scene.height


def test_a_trace_without_exchanges_says_how_to_record_one(lab_trace):
    view = wire_view(lab_trace)
    assert "lab.client().send" in view.text
    assert view.table().empty
    assert "lab.client().send" in words(view)


def test_a_loaded_trace_gives_the_same_picture_without_torch(wire_trace, tmp_path):
    path = wire_trace.save(tmp_path / "w.trace.jsonl.gz")
    code = (
        "import sys\nfrom llmlab.trace import Trace\nfrom llmlab.views.wire_view import wire_view\n"
        "from llmlab.views.anatomy import anatomy\nfrom llmlab.views.compare import compare\n"
        f"t = Trace.load({str(path)!r})\nanatomy(t).svg, compare(t, t).svg\n"
        "assert not {'torch', 'transformers', 'httpx2', 'starlette'} & set(sys.modules), sys.modules.keys()\n"
        "sys.stdout.buffer.write(wire_view(t).svg.encode())"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True).stdout.decode()
    assert out == wire_view(wire_trace).svg


def test_hostile_replies_in_one_piece_stay_text():
    evil = recordings.INVISIBLE
    body = json.dumps({"content": [{"type": evil, "text": evil}], "stop_reason": evil, "usage": {evil: 3}})
    reply = WireEvent(MS, "c", "client", "response", "received", 9, "200", "a: b")
    view = wire_view(
        Trace([made.request("{}"), reply, WireEvent(2 * MS, "c", "client", "bytes", "received", 9, "", body)])
    )
    assert "stop reason: a<202E>b" in view.text
    assert not {"\u202e", "\x00"} & set(str(view))


def test_the_name_of_a_side_is_untrusted_too():
    side = "<b>\u202e\x1b[2J" + "x" * 10_000
    view = wire_view(Trace([made.request("{}", side=kind, wire_id="g") for kind in ("gateway", side)]))
    assert len(view.text) < 2_000
    assert "\u202e" not in str(view)
    assert "\x1b" not in str(view)
    assert pictures.outside(view.scene) == []
