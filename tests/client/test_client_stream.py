"""The client against a real socket: reading, leaving, and everything that can cut a stream."""

from __future__ import annotations

import contextlib
import json
import ssl
import threading

import httpx2
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
    wait_until,
)

from llmlab.client.client import Client
from llmlab.client.retry import RetryPolicy, is_retryable
from llmlab.client.stream_errors import (
    CertificateRejected,
    ConnectionLost,
    IdleTimeout,
    InvalidRequest,
    NotFound,
    Overloaded,
    ProtocolViolation,
    RateLimited,
    RequestTooLarge,
    ServerError,
    ServerUnreachable,
    StreamIncomplete,
    TotalTimeout,
)
from llmlab.client.timeouts import Timeouts
from llmlab.client.transfer import lost

REQUEST = {"model": "mock", "max_tokens": 9, "messages": [{"role": "user", "content": "hi 😀"}]}
ONCE = RetryPolicy(max_retries=0)


def client(server: ScriptedServer, **options) -> Client:
    return Client(server.url, sleep=lambda seconds: None, **options)


def send(*answer, **options):
    with ScriptedServer(list(answer)) as server, client(server, **({"retries": ONCE} | options)) as c:
        return c.send(REQUEST)


def failure(kind, *answer, **options):
    with pytest.raises(kind) as caught:
        send(*answer, **options)
    return caught.value


def test_message_arrives_with_its_circumstances():
    message = send(*chunked(frames(*HELLO)))
    assert (message.text, message.usage["output_tokens"], message.is_complete) == ("Hello", 9, True)
    assert (message.request_id, message.attempts) == ("req_1", 1)
    times = message.timings
    assert 0 < times.head <= times.first_byte <= times.first_delta <= times.end < 5


@pytest.mark.parametrize("size", [1, 2, 3, 7, 64])
def test_pieces_of_any_size_give_the_same_message(size):
    arguments = json.dumps({"text": "é😀"}, ensure_ascii=False)
    events = [start(), *thinking(0, "hm 😀"), *text(1, "é", "😀"), *tool(2, "", arguments[:11], arguments[11:])]
    body = frames(*events, *end("tool_use"))
    message = send(OPEN_HEAD, *(body[i : i + size] for i in range(0, len(body), size)))
    assert (message.thinking, message.text) == ("hm 😀", "é😀")
    assert message.tool_uses[0]["input"] == {"text": "é😀"}


def test_deltas_are_given_as_they_come_and_the_message_grows():
    gate = threading.Event()
    body = [OPEN_HEAD, frames(*HELLO[:4]), gate, frames(*HELLO[4:])]
    with ScriptedServer(body) as server, client(server).stream(REQUEST) as exchange:
        seen = []
        for delta in exchange:
            seen.append((delta.kind, delta.text, exchange.message.text))
            if delta.kind == "text":
                gate.set()  # without a first delta the rest is never sent
    assert [each for each in seen if each[0] == "text"] == [("text", "Hel", "Hel"), ("text", "lo", "Hello")]
    assert [kind for kind, *_ in seen][:3] == ["message_start", "ping", "block_start"]


def test_leaving_early_ends_the_connection():
    with ScriptedServer([OPEN_HEAD, frames(*HELLO[:4]), pause(5)]) as server:
        with client(server).stream(REQUEST) as exchange:
            next(delta for delta in exchange if delta.kind == "text")
        assert server.gone.wait(2)
    assert (exchange.message.text, exchange.message.is_complete) == ("Hel", False)


def test_a_connection_that_was_cut_is_closed_and_not_kept():
    with ScriptedServer([OPEN_HEAD, frames(*HELLO[:4]), pause(5)]) as server, client(server) as c:
        attempt = c.wire.open("POST", "/v1/messages", b"{}", 0, "x")
        attempt.head()
        c.wire.release(attempt)
        assert wait_until(lambda: attempt.transfer.lane.http.is_closed)
        assert c.wire._idle == []


def test_giving_up_before_the_response_ends_the_connection():
    with ScriptedServer([pause(5)]) as server, client(server, timeouts=Timeouts(total_s=0.2)) as c:
        with pytest.raises(TotalTimeout, match=r"0\.2 s"):
            c.send(REQUEST)
        assert server.gone.wait(2)


def test_the_socket_giving_up_first_is_the_same_total_timeout():
    with ScriptedServer([pause(5)]) as server, client(server, timeouts=Timeouts(total_s=0.2)) as c:
        attempt = c.wire.open("POST", "/v1/messages", b"{}", 0, "x")
        attempt.watchdog.started += 60  # a watchdog that is far from due: only the socket's clock can run out
        with pytest.raises(TotalTimeout, match=r"0\.2 s"):
            attempt.head()
        assert server.gone.wait(2)


def test_giving_up_on_a_kept_connection_ends_it():
    with ScriptedServer(chunked(frames(*HELLO)), [pause(5)]) as server:
        with client(server, timeouts=Timeouts(total_s=0.3)) as c:
            c.send(REQUEST)
            with pytest.raises(TotalTimeout):
                c.send(REQUEST)
        assert server.gone.wait(2)
        assert [r.connection for r in server.requests] == [0, 0]


def _until_broken(exchange):
    with contextlib.suppress(StreamIncomplete):
        yield from exchange


def test_connections_are_kept_and_not_shared():
    gate = threading.Event()
    with ScriptedServer([OPEN_HEAD, gate], chunked(frames(*HELLO))) as server, client(server, retries=ONCE) as c:
        waiting = threading.Thread(target=lambda: list(_until_broken(c.stream(REQUEST))))
        waiting.start()
        assert wait_until(lambda: len(server.requests) == 1)
        assert [c.send(REQUEST).text for _ in range(3)] == ["Hello"] * 3
        gate.set()
        waiting.join(5)
        assert [r.connection for r in server.requests] == [0, 1, 1, 1]


BODY = frames(*HELLO)


@pytest.mark.parametrize("cut", ["nothing", "an event", "half an event", "all but the last line end", "between"])
def test_clean_end_without_the_end_marker_is_incomplete(cut):
    lengths = {"nothing": 0, "an event": len(frames(*HELLO[:4])), "half an event": len(frames(*HELLO[:4])) + 30}
    length = lengths.get(cut, len(BODY) - 1 if cut.startswith("all") else len(frames(*HELLO[:-1])))
    error = failure(StreamIncomplete, OPEN_HEAD, BODY[:length])
    assert ("inside an event" in str(error)) is (cut in ("half an event", "all but the last line end"))
    if cut == "nothing":
        assert error.partial is None
    else:
        assert error.partial.text == ("Hello" if length > len(BODY) - 60 else "Hel")
        assert (error.partial.is_complete, error.request_id) == (False, "req_1")


def test_end_of_a_chunked_body_without_its_last_chunk_is_a_lost_connection():
    head, body = chunked(frames(*HELLO[:4]))
    assert failure(ConnectionLost, head, body[:-5], DROP).partial.text in ("Hel", "")


def test_reset_is_a_lost_connection():
    assert failure(ConnectionLost, OPEN_HEAD, frames(*HELLO[:4]), 0.1, DROP).partial.text == "Hel"


def test_nobody_listening_is_a_lost_connection():
    with ScriptedServer([]) as server:
        url = server.url
    with (
        Client(url, retries=ONCE) as c,
        pytest.raises(ServerUnreachable, match=f"no server answers at {url} .*running"),
    ):
        c.send(REQUEST)


@pytest.mark.parametrize(
    ("cause", "expected"),
    [(ssl.SSLCertVerificationError(1, "self-signed"), CertificateRejected), (OSError("reset"), ServerUnreachable)],
)
def test_an_untrusted_certificate_is_not_a_lost_connection(cause, expected):
    inner, outer = ValueError("wrapped"), httpx2.ConnectError("failed")
    inner.__context__, outer.__cause__ = cause, inner
    error = lost(outer, httpx2.URL("https://127.0.0.1:1"))
    assert type(error) is expected
    assert is_retryable(error)[0] is issubclass(expected, ConnectionLost)


@pytest.mark.parametrize("reset_by", ["bytes", "events"])
def test_silence_in_a_stream_ends_it(reset_by):
    limits = Timeouts(idle_s=0.2, total_s=3, reset_by=reset_by)
    with ScriptedServer([OPEN_HEAD, frames(*HELLO[:4]), pause(5)]) as server:
        with client(server, retries=ONCE, timeouts=limits) as c, pytest.raises(IdleTimeout) as caught:
            c.send(REQUEST)
        assert server.gone.wait(2)
    assert caught.value.partial.text == "Hel"


def test_pings_end_a_silence():
    steps = [step for _ in range(4) for step in (0.15, frames({"type": "ping"}))]
    message = send(OPEN_HEAD, frames(*HELLO[:2]), *steps, frames(*HELLO[2:]), timeouts=Timeouts(idle_s=0.4))
    assert message.text == "Hello"


@pytest.mark.parametrize(("reset_by", "survives"), [("bytes", True), ("events", False)])
def test_comments_end_a_silence_only_by_bytes(reset_by, survives):
    steps = [step for _ in range(5) for step in (0.15, b": still here\n\n")]
    answer = [OPEN_HEAD, frames(*HELLO[:2]), *steps, frames(*HELLO[2:])]
    limits = Timeouts(idle_s=0.4, reset_by=reset_by)
    if survives:
        assert send(*answer, timeouts=limits).text == "Hello"
    else:
        failure(IdleTimeout, *answer, timeouts=limits)


def test_first_token_has_no_limit_of_its_own():
    message = send(0.3, OPEN_HEAD, 0.3, frames(*HELLO), timeouts=Timeouts(idle_s=0.1))
    assert message.timings.first_delta > 0.5


def test_a_slow_reader_is_not_mistaken_for_a_silent_server():
    limits = Timeouts(idle_s=0.1)
    with ScriptedServer(chunked(frames(*HELLO))) as server, client(server, timeouts=limits).stream(REQUEST) as exchange:
        for _ in exchange:
            threading.Event().wait(0.15)
    assert exchange.message.is_complete


def test_more_than_the_queue_holds_arrives_whole():
    parts = [OPEN_HEAD, frames(start(), text(0)[0])]
    parts += [frames(each) for each in text(0, *(["ab"] * 500))[1:-1]]
    assert send(*parts, frames(text(0)[-1], *end())).text == "ab" * 500


def test_end_of_the_response_is_not_waited_for_long():
    with ScriptedServer([OPEN_HEAD, frames(*HELLO), pause(30)]) as server, client(server) as c:
        assert c.send(REQUEST).text == "Hello"
        assert server.gone.wait(2)


@pytest.mark.parametrize(
    ("status", "body_kind", "expected"),
    [
        (400, "invalid_request_error", InvalidRequest),
        (404, "not_found_error", NotFound),
        (413, "request_too_large", RequestTooLarge),
        (429, "rate_limit_error", RateLimited),
        (500, "api_error", ServerError),
        (529, "overloaded_error", Overloaded),
        (400, "overloaded_error", Overloaded),  # the type goes before the status
    ],
)
def test_refusals_are_named(status, body_kind, expected):
    error = failure(expected, *refusal(status, body_kind, "because"))
    assert (error.status, error.kind, error.request_id, error.partial) == (status, body_kind, "req_1", None)
    assert "because" in str(error)


@pytest.mark.parametrize(("status", "expected"), [(502, ServerError), (413, RequestTooLarge), (404, NotFound)])
def test_refusals_without_an_envelope_go_by_their_status(status, expected):
    assert "<html>" in str(failure(expected, *reply(status, "<html>nope</html>")))


def test_refusal_in_the_other_protocols_envelope():
    body = {"error": {"message": "m", "type": "invalid_request_error", "param": None, "code": None}}
    assert failure(InvalidRequest, *reply(400, body)).kind == "invalid_request_error"


def test_error_event_is_named_by_its_type_though_the_status_was_200():
    error_event = {"type": "error", "error": {"type": "overloaded_error", "message": "busy"}}
    error = failure(Overloaded, *chunked(frames(*HELLO[:4], error_event)))
    assert (error.status, error.partial.text) == (200, "Hel")


@pytest.mark.parametrize(
    ("body", "problem"),
    [
        (b"data: {nope\n\n", "not JSON"),
        (b"data: 3\n\n", "not a JSON object"),
        (b'event: ping\ndata: {"type":"message_stop"}\n\n', "data of another type"),
        (frames(start(), start()), "second message_start"),
        (frames(*HELLO, *HELLO), "after the end"),
        (b"data: " + b"[" * 100_000 + b"\n\n", "not JSON"),
    ],
)
def test_nonsense_is_a_violation_and_not_retried(body, problem):
    with ScriptedServer(chunked(body)) as server, client(server) as c:
        with pytest.raises(ProtocolViolation, match=problem):
            c.send(REQUEST)
        assert len(server.requests) == 1


def test_an_answer_that_is_no_stream_is_a_violation():
    error = failure(ProtocolViolation, *reply(200, "<html>log in</html>", content_type="text/html"))
    assert "text/html" in str(error)


def test_events_without_a_name_are_read_by_their_type():
    body = b"".join(line + b"\n" for line in frames(*HELLO).split(b"\n") if not line.startswith(b"event:"))
    assert send(*chunked(body)).text == "Hello"
