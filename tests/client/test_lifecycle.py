"""The order of a Messages stream: what is allowed passes, each violation is named."""

from __future__ import annotations

import pytest
from scripted_server import HELLO, block, end, start, text, thinking, tool

from llmlab.client.lifecycle import Lifecycle
from llmlab.client.stream_errors import ProtocolViolation


def run(events) -> Lifecycle:
    lifecycle = Lifecycle()
    for event in events:
        lifecycle.check(event)
    return lifecycle


MESSAGE_STOP = {"type": "message_stop"}
SIGNATURE = {"type": "signature_delta", "signature": "b"}


@pytest.mark.parametrize(
    "events",
    [
        HELLO,
        [start(), *end()],
        [start(), *thinking(0, "hm"), *text(1, "a"), *tool(2, "", "{}"), *end("tool_use")],
        [start(), *text(0, "a"), end()[0], end()[0], MESSAGE_STOP],
        [{"type": "ping"}, {"type": "novelty"}, *HELLO, {"type": "ping"}],
        [start(), *text(0)[:1], {"type": "novelty", "index": 9}, *text(0, "a")[1:], *end()],
        [start(), *block(0, "text", {"type": "novel_delta"}, text=""), *end()],
        [start(), *block(0, "novel", {"type": "text_delta", "text": "a"}), *end()],
    ],
)
def test_allowed_orders(events):
    assert run(events).is_complete


def test_complete_only_after_message_stop():
    assert not run(HELLO[:-1]).is_complete


def delta(index, kind="text_delta"):
    return {"type": "content_block_delta", "index": index, "delta": {"type": kind, "text": "a"}}


@pytest.mark.parametrize(
    ("events", "problem"),
    [
        ([delta(0)], "before message_start"),
        (text(0, "a"), "before message_start"),
        ([start(), start()], "second message_start"),
        ([start(), delta(0)], "outside a content block"),
        ([start(), *text(1, "a")], "indices have no gaps"),
        ([start(), *text(0, "a"), *text(0, "b")], "indices have no gaps"),
        ([start(), *text(True, "a")], "indices have no gaps"),
        ([start(), *text(0, "a"), *text(2, "b")], "indices have no gaps"),
        ([start(), text(0)[0], text(1)[0]], "block 0 was open"),
        ([start(), text(0)[0], delta(1)], "while 0 is open"),
        ([start(), text(0)[0], text(1)[-1]], "while 0 is open"),
        ([start(), text(0)[0], end()[0]], "block 0 was open"),
        ([start(), text(0)[0], MESSAGE_STOP], "block 0 was open"),
        ([start(), *text(0), MESSAGE_STOP], "before message_delta"),
        ([start(), end()[0], *text(0)], "after message_delta"),
        ([end()[0]], "before message_start"),
        ([*HELLO, MESSAGE_STOP], "after the end"),
        ([*HELLO, {"type": "novelty"}], "after the end"),
        ([start(), {"type": "error", "error": {}}, *text(0)], "after the end"),
        ([start(), *block(0, "text", {"type": "thinking_delta"}, text="")], "thinking_delta came inside .* 'text'"),
        ([start(), *block(0, "thinking", {"type": "text_delta"})], "text_delta came inside"),
        ([start(), *block(0, "text", {"type": "input_json_delta"})], "input_json_delta came inside"),
        ([start(), *block(0, "redacted_thinking", SIGNATURE)], "signature_delta came inside"),
        ([start(), *block(0, "text", {})], "no delta with a type"),
        ([start(), *block(0, "text", text=5)], "not text"),
        ([start(), *block(0, "tool_use", id="a")], "without an id and a name"),
        ([start(), {"type": "content_block_start", "index": 0}], "no block with a type"),
        ([{"type": "message_start"}], "no message"),
        ([start(), {"type": "message_delta", "delta": []}], "no delta"),
        ([start(), {"type": "message_delta", "delta": {"stop_reason": ["a"]}}], "not a string"),
        (["text"], "not a JSON object"),
        ([{"type": 3}], "not a JSON object"),
    ],
)
def test_violations_are_named(events, problem):
    with pytest.raises(ProtocolViolation, match=problem):
        run(events)
