"""What the client does after a failure: again, with another model, with less, or with what it has."""

from __future__ import annotations

import random

import pytest
from scripted_server import (
    DROP,
    HELLO,
    OPEN_HEAD,
    ScriptedServer,
    chunked,
    end,
    frames,
    pause,
    refusal,
    reply,
    start,
    text,
    thinking,
    tool,
)

from llmlab.client.client import Client
from llmlab.client.overflow import Healing, NoRoomLeft
from llmlab.client.retry import RetryPolicy
from llmlab.client.stream_errors import ConnectionLost, InvalidRequest, Overloaded, RateLimited, StreamIncomplete
from llmlab.client.timeouts import Timeouts

REQUEST = {"model": "large", "max_tokens": 2000, "messages": [{"role": "user", "content": "hi"}]}
GOOD = chunked(frames(*HELLO))
BUSY = refusal(529, "overloaded_error")
BUSY_EVENT = {"type": "error", "error": {"type": "overloaded_error", "message": "busy"}}


class Lab:
    """A client of a scripted server, its waits, and the deltas of the last request."""

    def __init__(self, *answers, **options):
        self.server, self.waits, self.deltas = ScriptedServer(*answers), [], []
        self.client = Client(self.server.url, sleep=self.waits.append, rng=random.Random(1), **options)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.client.close()
        self.server.__exit__()

    def send(self):
        with self.client.stream(REQUEST) as exchange:
            self.deltas.extend(exchange)
            return exchange.message

    def sent(self, field):
        return [request.body[field] for request in self.server.requests]


def test_busy_server_is_asked_again_after_growing_waits():
    with Lab(BUSY, BUSY, reply(500, "x"), GOOD) as lab:
        message = lab.send()
    assert (message.text, message.attempts) == ("Hello", 4)
    assert all(low <= wait <= high for wait, low, high in zip(lab.waits, (0.375, 0.75, 1.5), (0.5, 1, 2), strict=True))


def test_each_attempt_has_an_id_of_its_own_and_its_number():
    with Lab(BUSY, GOOD) as lab:
        message = lab.send()
    headers = [request.headers for request in lab.server.requests]
    assert [h["x-llmlab-retry-count"] for h in headers] == ["0", "1"]
    assert len({h["x-client-request-id"] for h in headers}) == 2
    assert message.client_request_id == headers[1]["x-client-request-id"]


def test_retries_run_out():
    with Lab(BUSY, retries=RetryPolicy(max_retries=2)) as lab:
        with pytest.raises(Overloaded) as caught:
            lab.send()
        assert (len(lab.server.requests), caught.value.attempts, len(lab.waits)) == (3, 3, 2)


def test_wait_the_server_asked_for_is_kept_to():
    with Lab(refusal(429, "rate_limit_error", retry_after="17.5"), GOOD) as lab:
        lab.send()
    assert lab.waits == [17.5]


def test_server_can_forbid_and_allow_retries():
    with Lab(refusal(429, "rate_limit_error", x_should_retry="false"), GOOD) as lab, pytest.raises(RateLimited):
        lab.send()
    with Lab(refusal(400, "invalid_request_error", x_should_retry="true"), GOOD) as lab:
        assert lab.send().text == "Hello"


def test_wrong_requests_are_not_sent_again():
    with Lab(refusal(400, "invalid_request_error"), GOOD) as lab:
        with pytest.raises(InvalidRequest):
            lab.send()
        assert len(lab.server.requests) == 1


def test_third_overload_in_a_row_goes_to_the_fallback_model():
    with Lab(BUSY, BUSY, BUSY, GOOD, fallback_model="small") as lab:
        lab.send()
        assert lab.sent("model") == ["large"] * 3 + ["small"]
        assert len(lab.waits) == 2  # the other model is asked at once


def test_fallback_model_is_waited_for_like_any_other():
    with Lab(BUSY, BUSY, BUSY, BUSY, BUSY, BUSY, GOOD, fallback_model="small") as lab:
        lab.send()
        assert lab.sent("model") == ["large"] * 3 + ["small"] * 4
        assert len(lab.waits) == 5


def test_a_connection_is_let_go_before_the_wait_not_after():
    server = ScriptedServer([OPEN_HEAD, frames(start()), pause(5)], GOOD)
    seen = []
    with (
        server,
        Client(server.url, timeouts=Timeouts(idle_s=0.1), sleep=lambda s: seen.append(server.gone.wait(2))) as c,
    ):
        assert c.send(REQUEST).text == "Hello"
    assert seen == [True]


def test_overloads_with_something_else_between_are_not_in_a_row():
    with Lab(BUSY, BUSY, reply(500, "x"), BUSY, GOOD, fallback_model="small") as lab:
        lab.send()
        assert lab.sent("model") == ["large"] * 5


def test_without_a_fallback_model_the_same_one_is_asked_on():
    with Lab(BUSY, BUSY, BUSY, BUSY, GOOD) as lab:
        lab.send()
        assert lab.sent("model") == ["large"] * 5


@pytest.mark.parametrize("break_", [[DROP], [], [frames(BUSY_EVENT)]])
def test_break_before_the_first_block_is_retried(break_):
    with Lab([OPEN_HEAD, frames(start()), 0.05, *break_], GOOD) as lab:
        assert lab.send().text == "Hello"
    assert [d.kind for d in lab.deltas][:3] == ["message_start", "restart", "message_start"]


def test_refused_connection_attempts_leave_no_restart():
    with Lab(BUSY, GOOD) as lab:
        lab.send()
    assert "restart" not in [d.kind for d in lab.deltas]


@pytest.mark.parametrize("break_", [[DROP], [], [frames(BUSY_EVENT)]])
def test_break_after_thinking_is_retried_and_what_was_thought_is_void(break_):
    with Lab([OPEN_HEAD, frames(start(), *thinking(0, "hm")), 0.05, *break_], GOOD) as lab:
        message = lab.send()
    assert (message.thinking, message.text) == ("", "Hello")
    assert [d.kind for d in lab.deltas].count("restart") == 1


@pytest.mark.parametrize("break_", [[DROP], [], [frames(BUSY_EVENT)]])
def test_break_after_a_whole_tool_call_keeps_it(break_):
    events = [start(), *text(0, "let me"), *tool(1, '{"a":1}'), *tool(2, '{"a"')[:2]]
    with Lab([OPEN_HEAD, frames(*events), 0.05, *break_], GOOD) as lab:
        message = lab.send()
        assert len(lab.server.requests) == 1
    assert [b["type"] for b in message.content] == ["text", "tool_use"]
    assert (message.tool_uses[0]["input"], message.stop_reason) == ({"a": 1}, "tool_use")
    assert message.cut_off
    assert not message.is_complete


def test_break_after_text_is_raised_with_what_came():
    with Lab([OPEN_HEAD, frames(start(), *text(0, "a"))], GOOD) as lab:
        with pytest.raises(StreamIncomplete) as caught:
            lab.send()
        assert len(lab.server.requests) == 1
    assert caught.value.partial.text == "a"


@pytest.mark.parametrize("events", [thinking(0, "hm"), tool(0, "{}")])
def test_strict_policy_raises_once_anything_was_shown(events):
    with Lab([OPEN_HEAD, frames(start(), *events)], GOOD, retries=RetryPolicy(mid_stream="never")) as lab:
        with pytest.raises(StreamIncomplete):
            lab.send()
        assert len(lab.server.requests) == 1


def test_error_event_that_would_come_again_is_raised():
    event = {"type": "error", "error": {"type": "invalid_request_error", "message": "no"}}
    with Lab(chunked(frames(start(), event)), GOOD) as lab, pytest.raises(InvalidRequest):
        lab.send()


def test_lost_connections_are_retried():
    with Lab([DROP], [DROP], GOOD) as lab:
        assert lab.send().attempts == 3


def test_lost_connections_run_out_too():
    with Lab([DROP], retries=RetryPolicy(max_retries=1)) as lab, pytest.raises(ConnectionLost) as caught:
        lab.send()
    assert caught.value.attempts == 2


def overflow(*numbers):
    words = "input length and `max_tokens` exceed context limit: {} + {} > {}, decrease input length".format(*numbers)
    return refusal(400, "invalid_request_error", words)


SMALL = Healing(margin=64, floor=256)


def test_overflow_is_repaired_at_once():
    with Lab(overflow(7000, 2000, 8192), GOOD, healing=SMALL) as lab:
        assert lab.send().text == "Hello"
        assert (lab.sent("max_tokens"), lab.waits) == ([2000, 8192 - 7000 - 64], [])


def test_repair_does_not_use_up_retries():
    policy = RetryPolicy(max_retries=0)
    with Lab(overflow(7000, 2000, 8192), GOOD, healing=SMALL, retries=policy) as lab:
        assert lab.send().attempts == 2


def test_overflow_without_room_gives_up_with_the_numbers():
    with Lab(overflow(8000, 2000, 8192), healing=SMALL) as lab:
        with pytest.raises(NoRoomLeft) as caught:
            lab.send()
        assert len(lab.server.requests) == 1
    assert (caught.value.input_tokens, caught.value.context, caught.value.request_id) == (8000, 8192, "req_1")


def test_a_server_that_is_never_content_is_left():
    with Lab(overflow(7000, 2000, 8192), healing=SMALL) as lab:
        with pytest.raises(InvalidRequest):
            lab.send()
        assert len(lab.server.requests) == 3


def test_request_of_the_caller_is_not_changed():
    with Lab(overflow(7000, 2000, 8192), GOOD, healing=SMALL) as lab:
        lab.send()
    assert REQUEST["max_tokens"] == 2000
    assert "stream" not in REQUEST


def test_an_answer_that_met_the_end_of_the_context_is_told_apart():
    events = [start(), *text(0, "a"), *tool(1, "{}"), *end("model_context_window_exceeded")]
    with Lab(chunked(frames(*events))) as lab:
        message = lab.send()
        assert len(lab.server.requests) == 1
    assert message.was_cut_short
    assert message.tool_uses == []
