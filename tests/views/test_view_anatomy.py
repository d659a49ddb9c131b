"""The anatomy of a request: its bytes add up, and every part says what it is for."""

from __future__ import annotations

import json
import time
from xml.etree import ElementTree

import exchange_events as made
import pytest
import recordings

from llmlab.client.fields import explain
from llmlab.errors import InvalidParameter, UnknownRequest
from llmlab.trace import Trace
from llmlab.views.anatomy import anatomy
from llmlab.views.json_parts import parse
from llmlab.views.scene import Rect, Text

MARKER = {"type": "ephemeral"}
BODY = {
    "model": "m",
    "max_tokens": 9,
    "stream": True,
    "temperature": 0.5,
    "tools": [{"name": "look", "input_schema": {"type": "object"}, "cache_control": {**MARKER, "ttl": "1h"}}],
    "system": [{"type": "text", "text": "Bé brief. 界"}],
    "messages": [
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": [{"type": "text", "text": "Yes?"}]},
        {
            "role": "user",
            "content": [{"type": "text", "text": "Go on."}, {"type": "text", "text": "!", "cache_control": MARKER}],
        },
    ],
}


def leaf_bytes(view) -> int:
    table = view.table()
    return int(table.bytes[table.is_leaf].sum())


def recorded(text: str, *, size: int | None = None, more: tuple = ()) -> Trace:
    return Trace([made.request(text, size=size), *more])


@pytest.mark.parametrize("text", [json.dumps(BODY), json.dumps(BODY, ensure_ascii=False), json.dumps(BODY, indent=3)])
def test_bytes_add_up_however_the_body_was_written(text):
    view = anatomy(recorded(text))
    assert leaf_bytes(view) == len(text.encode())
    table = view.table()
    assert table.bytes[table.depth == 0].sum() == len(text.encode())


def test_every_exchange_adds_up_to_what_was_sent(wire_trace):
    for row in wire_trace.exchanges.itertuples():
        assert leaf_bytes(anatomy(wire_trace, row.wire_id)) == row.bytes_sent


def test_parents_are_the_sum_of_what_is_below():
    table = anatomy(None, body=BODY).table()
    for depth, parent in ((0, "messages"), (0, "tools"), (1, "messages.2")):
        below = table[(table.depth == depth + 1) & table.path.str.startswith(parent)]
        below = below[[p.count(".") >= depth for p in below.path]]
        assert int(table.bytes[(table.path == parent) & (table.depth == depth)].iloc[0]) == below.bytes.sum()


def test_fields_have_the_sizes_the_client_explains():
    ours = {row.path: row.bytes for row in anatomy(None, body=BODY).table().itertuples() if row.depth == 0}
    theirs = {row.name: row.bytes - 1 for row in explain(BODY) if row.where == "body"}  # theirs have a comma or brace
    assert {name: ours[name] for name in theirs} == theirs


def test_roles_say_what_a_field_is_for():
    table = anatomy(None, body=BODY).table()
    roles = {row.path: row.role for row in table.itertuples() if row.is_leaf and row.role != "syntax"}
    assert (roles["temperature"], roles["stream"], roles["messages.0"]) == ("policy", "transport", "content")
    assert roles["tools.0.cache_control"] == "caching"


def test_breakpoints_are_marked_in_the_order_of_the_prefix():
    body = {"messages": BODY["messages"], "tools": BODY["tools"], "model": "m", "cache_control": MARKER}
    view = anatomy(None, body=body)
    assert "cache breakpoints: tools.0 (1h), messages.2.content.1 (5m), the whole request (5m)" in view.text
    drawn = [mark.text for mark in view.scene.marks if isinstance(mark, Text) and mark.text.startswith("▲")]
    assert [text.split(",")[0][-1] for text in drawn] == ["2", "1", "3"]
    assert "cache breakpoints: none" in anatomy(None, body={"model": "m"}).text


def test_tokens_are_the_engine_s_or_counted_and_never_guessed(wire_trace):
    (exchange, *_) = wire_trace.exchanges.itertuples()
    prompt = len(wire_trace.index.submitted[exchange.request_ids[0]].prompt_token_ids)
    plain = anatomy(wire_trace, exchange.wire_id)
    assert f"the engine's prompt: {prompt} tokens" in plain.text
    assert plain.table().tokens.isna().all()
    counted = anatomy(wire_trace, exchange.wire_id, count=len)
    table = counted.table()
    content = table[(table.role == "content") & table.is_leaf]
    assert list(content.tokens) == [len(value) for value in content.value]
    assert table.tokens[table.is_leaf].sum() == content.tokens.sum() > 0
    assert "no engine recorded this request" in anatomy(None, body=BODY).text


def test_a_second_run_has_the_same_text_and_another_body_another(wire_trace):
    again = recordings.record_wire()
    ids = [[exchange.id for exchange in trace.index.exchanges.all] for trace in (wire_trace, again)]
    one, other = ([str(anatomy(t, i)) for i in found] for t, found in zip((wire_trace, again), ids, strict=True))
    assert one == other
    assert len(set(one)) == 4
    assert anatomy(wire_trace, ids[0][0]).scene.marks != anatomy(wire_trace, ids[0][1]).scene.marks


def test_a_cut_body_shows_what_is_known_and_still_adds_up():
    text = json.dumps(
        {**BODY, "messages": [{"role": "user", "content": "one"}, {"role": "user", "content": "x" * 900}]}
    )
    for length in range(1, len(text), 7):
        view = anatomy(recorded(f"{text[:length]}... (1,234 characters cut)", size=len(text.encode())))
        assert leaf_bytes(view) == len(text.encode())
        assert view.table().role.iloc[-1] == "not known"
        assert f"cut in the record: {view.table().bytes.iloc[-1]:,} bytes" in view.text
    table = view.table()
    assert {"model", "tools", "messages.0"} <= set(table.path)
    assert "messages.1" not in set(table.path)


def test_the_side_that_recorded_more_is_used():
    text = json.dumps(BODY)
    cut = made.request(text[:50] + "... (9 characters cut)", size=len(text.encode()))
    whole = made.request(text, side="gateway", wire_id="g", t_ns=5)
    view = anatomy(Trace([cut, whole, made.WireLink(6, "g", "client", "c")]))
    assert "recorded by the gateway" in view.text
    assert not view.notes


def test_a_record_that_was_changed_is_said():
    text = json.dumps({"model": "m", "system": "[key]"})
    view = anatomy(recorded(text, size=len(text) + 20))
    assert leaf_bytes(view) == len(text)
    assert "it was changed" in " ".join(view.notes)


@pytest.mark.parametrize(
    "text", ["", "[1]", "nonsense", '"x"', "{", '{"a"', '{"a":', '{"a":1,}', "{" * 5_000, '{"a":1} tail']
)
def test_bodies_that_are_no_object_still_add_up(text):
    assert leaf_bytes(anatomy(recorded(text))) == len(text)


def test_places_of_values_are_those_of_the_standard_parser():
    text = json.dumps(BODY, indent=1)
    root = parse(text)
    for child in root.children:
        assert json.loads(child.text(text)) == BODY[child.key]
        assert text[child.begin :].startswith(json.dumps(child.key))


def test_long_lists_are_pooled_and_the_table_is_not():
    body = {"model": "m", "messages": [{"role": "user", "content": [{"type": "text", "text": "hi"}] * 3}] * 500}
    start = time.perf_counter()
    view = anatomy(None, body=body)
    assert time.perf_counter() - start < 2
    assert len(view.svg) < 64_000
    assert len(view.table()) > 2_000
    assert any("drawn as one" in note for note in view.notes)
    big = anatomy(None, body={"model": "m", "system": "x" * 10_000_000})
    assert len(big.svg) < 64_000


def test_hostile_fields_stay_text():
    evil = recordings.MARKUP + recordings.INVISIBLE + "\ud800"
    view = anatomy(
        None,
        body={
            evil: evil,
            "messages": [{"role": evil, "content": [{"type": evil, "text": evil}, 3, None]}, 7],
            "tools": [evil],
        },
    )
    ElementTree.fromstring(view.svg)
    assert not {"\u202e", "\x00", "\ud800", "\n"} & set(view.svg)
    assert not {"\u202e", "\x00", "\ud800"} & set(view.text)


def test_mistakes_say_what_would_work(wire_trace, lab_trace):
    with pytest.raises(UnknownRequest, match="it has req_"):
        anatomy(wire_trace, "nothing")
    with pytest.raises(InvalidParameter, match="dict"):
        anatomy(None, body=[1])
    with pytest.raises(InvalidParameter, match="as JSON"):
        anatomy(None, body={"a": object()})
    with pytest.raises(InvalidParameter, match="needs a trace"):
        anatomy(None)
    assert "lab.client().send" in anatomy(lab_trace).text


def test_bars_are_shares_of_the_whole_body():
    view = anatomy(None, body=BODY)
    bars = [mark for mark in view.scene.marks if isinstance(mark, Rect) and mark.y == 62]
    assert sum(bar.w for bar in bars) == pytest.approx(960)
