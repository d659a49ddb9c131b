"""The usage ledger: the engine's counts, the wire's and both protocols' are one ledger, and a lie is told."""

from __future__ import annotations

import json
from dataclasses import replace

import httpx2
import pytest
from recordings import message

import llmlab
from llmlab.trace import Trace
from llmlab.trace.events import WireEvent
from llmlab.views import usage_ledger
from llmlab.views.scene import Rect


def ledger(view, name: str) -> dict[str, int]:
    table = view.table()
    return dict(table[table.ledger == name][["field", "tokens"]].itertuples(index=False))


@pytest.mark.parametrize("name", ["lab_trace", "draft_trace", "wire_trace"])
def test_the_engines_rows_are_what_its_usage_says(name, request):
    trace = request.getfixturevalue(name)
    for request_id, finished in trace.index.finished.items():
        mine, usage = ledger(usage_ledger(trace, request_id), "engine"), finished.usage
        assert mine["prompt from the prefix cache"] == usage["cached_tokens"]
        assert mine["prompt computed"] == usage["prompt_tokens"] - usage["cached_tokens"]
        assert mine["output"] == usage["output_tokens"]
        assert mine.get("recomputed after preemption", 0) == usage["recomputed_tokens"]
        assert mine.get("accepted drafts in the output", 0) == usage.get("accepted_draft_tokens", 0)
        assert mine.get("rejected drafts", 0) == usage.get("rejected_draft_tokens", 0)


@pytest.mark.parametrize("name", ["lab_trace", "draft_trace", "wire_trace"])
def test_what_was_computed_is_what_its_rows_in_all_steps_hold(name, request):
    trace = request.getfixturevalue(name)
    ran = trace.schedule[trace.schedule.action == "ran"].groupby("request_id").num_tokens.sum()
    for request_id in trace.requests.request_id:
        assert usage_ledger(trace, request_id).text.endswith(f"= {ran[request_id]:,} tokens computed")


def test_both_protocols_add_up_to_the_same_ledger(lab_trace, wire_trace):
    for trace in (lab_trace, wire_trace):
        for row in trace.requests.itertuples():
            view = usage_ledger(trace, row.request_id)
            messages, chat = ledger(view, "Messages"), ledger(view, "Chat Completions")
            cache = messages["cache_read_input_tokens"] + messages["cache_creation_input_tokens"]
            assert messages["input_tokens"] + cache == chat["prompt_tokens"] == row.num_prompt_tokens
            assert messages["output_tokens"] == chat["completion_tokens"] == row.num_output_tokens
            assert chat["total_tokens"] == row.num_prompt_tokens + row.num_output_tokens


def test_the_protocol_that_was_spoken_is_read_from_the_wire(wire_trace):
    sources = [dict(usage_ledger(wire_trace, r).table()[["ledger", "source"]].values) for r in ("r0", "r1", "r2", "r3")]
    assert [s["Messages"] for s in sources] == ["wire", "wire", "computed", "computed"]
    assert [s["Chat Completions"] for s in sources] == ["computed", "computed", "wire", "wire"]


def test_cache_markers_are_counted_as_written_and_as_read(wire_trace):
    first = ledger(usage_ledger(wire_trace, "r0"), "Messages")
    second = ledger(usage_ledger(wire_trace, "r1"), "Messages")
    assert first["cache_read_input_tokens"] == 0 < first["cache_creation_input_tokens"]
    assert second["cache_read_input_tokens"] > 0


def test_without_an_exchange_both_are_computed_and_thinking_is_not_invented(lab_trace):
    view = usage_ledger(lab_trace, "r7")
    assert set(view.table().source) == {"recorded", "computed"}
    assert not {"thinking_tokens", "reasoning_tokens"} & set(view.table().field)
    assert view.notes[0].startswith("No exchange carried this request")


def changed(trace: Trace, request_id: str, old: str, new: str) -> Trace:
    """The trace with other words in everything that crossed the wire for a request."""
    exchange = trace.index.exchanges.by_request_id[request_id]
    mine = set(map(id, exchange.events))
    return Trace([replace(e, text=(e.text or "").replace(old, new)) if id(e) in mine else e for e in trace.events])


def test_a_wire_that_counts_otherwise_is_shown_and_told(wire_trace):
    view = usage_ledger(changed(wire_trace, "r0", '"output_tokens":8', '"output_tokens":11'), "r0")
    assert ledger(view, "Messages")["output_tokens"] == 11
    assert "the wire counts 272 prompt + 11 output = 283 tokens, but the engine 272 prompt + 8 output" in view.text


@pytest.mark.parametrize("number", ["-1", "true", "1e400", '"8"', "[8]", "9" * 30, "8.5"])
def test_what_is_no_count_is_not_drawn_as_one(wire_trace, number):
    view = usage_ledger(changed(wire_trace, "r3", '"completion_tokens":8', f'"completion_tokens":{number}'), "r3")
    assert "fields that are no counts" in view.notes[0]
    assert ledger(view, "Chat Completions")["completion_tokens"] == 8
    assert set(view.table().source) == {"recorded", "computed"}


def test_an_answer_without_usage_is_told(wire_trace):
    view = usage_ledger(changed(wire_trace, "r3", '"usage"', '"used"'), "r3")
    assert view.notes[0].startswith("No usage is in the exchange's record")


def test_a_body_nested_without_end_is_none(wire_trace):
    exchange = wire_trace.index.exchanges.by_request_id["r3"]
    deep = WireEvent(
        exchange.end_ns, exchange.wire_id, "gateway", "frame", "sent", 9, "data", '{"usage":' + "[" * 50_000
    )
    assert ledger(usage_ledger(Trace([*wire_trace.events, deep]), "r3"), "Chat Completions")["completion_tokens"] == 8


def test_samples_of_one_answer_are_counted_together_on_the_wire():
    with llmlab.open("mock") as lab:
        body = message("two answers", n=2, temperature=1.0, seed=1)
        reply = httpx2.post(f"{lab.serve().url}/v1/chat/completions", json=body).json()
    trace = lab.trace
    outputs = trace.requests.num_output_tokens
    assert json.loads(json.dumps(reply["usage"]))["completion_tokens"] == outputs.sum()
    for request_id in trace.requests.request_id:
        view = usage_ledger(trace, request_id)
        assert f"+ {outputs.sum()} output" in view.text
        assert "the wire, the other protocol and the engine count" in view.text
        assert "2 engine requests of one answer" in view.notes[0]
    second = ledger(usage_ledger(trace, trace.requests.request_id[1]), "engine")
    assert second["prompt shared with the first sample"] == trace.requests.num_prompt_tokens[1]


def test_the_fields_of_one_ledger_lie_end_to_end_on_the_axis(wire_trace):
    view = usage_ledger(wire_trace, "r1")
    bars = {m.tip.split(": ")[1].split(" ")[0]: m for m in view.scene.marks if isinstance(m, Rect) and m.tip[0] == "M"}
    read, written, fresh = (bars[f"{n}input_tokens"] for n in ("cache_read_", "cache_creation_", ""))
    assert read.x + read.w == pytest.approx(written.x)
    assert written.x + written.w == pytest.approx(fresh.x)
    assert fresh.x + fresh.w == pytest.approx(bars["output_tokens"].x)
