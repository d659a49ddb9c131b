"""The parser gives what the standard says, and the same however the stream is cut."""

from __future__ import annotations

import itertools
import json
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmlab.api.sse import DONE, comment, named_frame
from llmlab.api.sse_parser import EventTooLarge, SseEvent, SseParser


def parse(stream: bytes, size: int | None = None) -> tuple[list[SseEvent], bool]:
    parser, step = SseParser(), size or max(len(stream), 1)
    events = [event for i in range(0, len(stream), step) for event in parser.feed(stream[i : i + step])]
    return events, parser.close()


def reference(stream: bytes) -> list[tuple[str, str, str]]:
    """The standard's algorithm on the whole text: (name, data, last id) of each dispatched event."""
    text = stream.decode("utf-8", "replace").removeprefix("\ufeff")
    lines = re.split("\r\n|\r|\n", text)[:-1]  # what follows the last line end is discarded
    found, data, kind, last_id = [], "", "", ""
    for line in lines:
        if line == "":
            if data != "":
                found.append((kind or "message", data[:-1], last_id))
            data, kind = "", ""
            continue
        if line[0] == ":":
            continue
        field, _, value = line.partition(":")
        value = value[1:] if value[:1] == " " else value
        if field == "event":
            kind = value
        if field == "data":
            data += value + "\n"
        if field == "id" and "\0" not in value:
            last_id = value
    return found


FIELDS = [b"data", b"event", b"id", b"retry", b"foo", b":", b": ", b" ", b"\0", b"12", b"ping"]
ENDS = [b"\n", b"\r", b"\r\n", b"\n\n", b"data: x\n\n", b"event: delta\ndata: {}\n\n"]
BYTES = ["é€😀".encode(), "\u2028\u0085".encode(), b"\xf0\x9f", b"\xff", b"\xed\xa0", b"\xef\xbb\xbf", b"\x0b\x0c\x1c"]
streams = st.lists(st.sampled_from(FIELDS + ENDS + BYTES), max_size=30).map(b"".join)
WIRE = "event: a\ndata: é😀\n\n: hi\r\n\r\ndata:1\rdata: 2\r\rid: 7\nretry: 5\n\nevent: b\r\ndata\r\n\r\n".encode()


@given(stream=streams)
def test_same_as_the_standards_algorithm(stream):
    events, _ = parse(stream)
    assert [(e.name, e.data, e.id) for e in events] == reference(stream)


@given(stream=streams, cuts=st.lists(st.integers(0, 200), max_size=20))
def test_any_cuts_give_the_same(stream, cuts):
    parser, bounds = SseParser(), [0, *sorted(c for c in cuts if c <= len(stream)), len(stream)]
    events = [e for a, b in itertools.pairwise(bounds) for e in parser.feed(stream[a:b])]
    assert (events, parser.close()) == parse(stream)


@pytest.mark.parametrize("size", range(1, 65))
@pytest.mark.parametrize("prefix", [b"", b"\xef\xbb\xbf"])
def test_every_piece_size_gives_the_same(size, prefix):
    events, inside = parse(prefix + WIRE, size)
    assert [(e.name, e.data) for e in events] == [("a", "é😀"), ("message", "1\n2"), ("b", "")]
    assert (events[-1].id, events[-1].retry, inside) == ("7", 5, False)


@given(st.dictionaries(st.text(max_size=5), st.text(max_size=20), max_size=3))
def test_reads_what_our_writer_writes(value):
    events, inside = parse(comment("hello") + named_frame("delta", value) + DONE)
    assert not inside
    assert [e.name for e in events] == ["delta", "message"]
    assert json.loads(events[0].data) == value
    assert events[1].data == "[DONE]"


@pytest.mark.parametrize(
    ("stream", "data"),
    [
        (b"\xef\xbb\xbfdata: x\n\n", ["x"]),
        (b"data: x\n\n\xef\xbb\xbfdata: y\n\n", ["x"]),  # a later BOM makes an unknown field
        (b"event: ping\n\n", []),
        (b": comment\n\n", []),
        (b"data:\n\n", [""]),
        (b"data\n\n", [""]),
        (b"data:  two\n\n", [" two"]),
        ("data: a\u2028b\u0085c\n\n".encode(), ["a\u2028b\u0085c"]),
        (b"data: \xf0\x9f\n\n", ["\ufffd"]),
        (b"Data: x\n\n", []),
        (b"data: 1\r\n\r\n\r\ndata: 2\r\n\r\n", ["1", "2"]),
    ],
)
def test_single_rules(stream, data):
    assert [e.data for e in parse(stream)[0]] == data


def test_line_feed_after_carriage_return_in_the_next_piece_ends_nothing():
    parser = SseParser()
    assert parser.feed(b"data: 1\r") == []
    assert parser.feed(b"\ndata: 2\r") == []
    assert [e.data for e in parser.feed(b"\n\r")] == ["1\n2"]
    assert parser.feed(b"\n") == []
    assert not parser.close()


def test_carriage_return_dispatches_without_waiting_for_more():
    assert [e.data for e in SseParser().feed(b"data: 1\r\r")] == ["1"]


def test_ids_last_until_replaced_and_those_with_nul_are_ignored():
    events, _ = parse(b"id: 1\ndata: a\n\nid: 2\0\ndata: b\n\nid\ndata: c\n\n")
    assert [e.id for e in events] == ["1", "1", ""]


@pytest.mark.parametrize("value", [b"-1", b"1.5", b"x", b"", "٣".encode(), b"9" * 5000])
def test_retry_takes_nothing_but_reasonable_digits(value):
    assert parse(b"retry: " + value + b"\ndata: a\n\n")[0][0].retry is None


@pytest.mark.parametrize(
    ("stream", "inside"),
    [
        (b"", False),
        (b"data: x\n\n", False),
        (b"data: x\n", True),
        (b"data: x", True),
        (b"data: x\n\n: bye", False),
        (b"data: x\n\nev", True),
        (b"data: x\r\r", False),
        (b"\xef\xbb\xbf", False),
    ],
)
def test_close_tells_whether_an_event_was_cut(stream, inside):
    events, was_inside = parse(stream)
    assert was_inside is inside
    assert len(events) == stream.count(b"data: x\n\n") + stream.count(b"data: x\r\r")


@pytest.mark.parametrize("size", [1, 7, 1000])
@pytest.mark.parametrize("stream", [b"data: " + b"x" * 100, b": " + b"x" * 100, b"data: x\n" * 20])
def test_one_event_is_bounded(stream, size):
    parser = SseParser(max_event_bytes=64)
    pieces = [stream[i : i + size] for i in range(0, len(stream), size)]
    with pytest.raises(EventTooLarge, match="64 bytes"):
        [parser.feed(piece) for piece in pieces]


def test_many_small_events_are_not_bounded():
    parser = SseParser(max_event_bytes=64)
    assert len(parser.feed(b"data: " + b"x" * 50 + b"\n\n")) == 1
    assert len(parser.feed((b"data: " + b"x" * 50 + b"\n\n") * 50)) == 50
