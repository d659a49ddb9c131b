"""What is on the line while a reply streams, over a real socket: silence, frames, endings."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor

import httpx2
import pytest
from gated import Gated, Slow, lab_on, until
from playback import playback_lab
from wire_requests import CHAT, HELLO, MESSAGES, frames_of, post

# -- silence ------------------------------------------------------------------------------------------------

LONG = [{"role": "user", "content": "x" * 400}]  # seven steps of 64 tokens


@pytest.fixture(scope="module")
def slow_lab():
    with lab_on(Slow(0.2)) as lab:
        yield lab


def stream_slowly(server, path: str, read_s: float, **fields) -> str:
    body = {"model": "m", "max_tokens": 2, "stream": True, "messages": LONG} | fields
    timeout = httpx2.Timeout(30, read=read_s)
    with httpx2.stream("POST", f"{server.url}{path}", json=body, timeout=timeout) as response:
        return "".join(response.iter_text())


@pytest.mark.parametrize(("path", "ping", "end"), [(MESSAGES, "event: ping", "message_stop"), (CHAT, ": ", "[DONE]")])
def test_pings_carry_a_client_with_a_short_timeout_through_a_long_prefill(slow_lab, path, ping, end):
    with slow_lab.serve(ping_s=0.1) as server:
        text = stream_slowly(server, path, 0.7, messages=[{"role": "user", "content": path + "x" * 400}])
    assert text.startswith(ping)
    assert end in text


@pytest.mark.parametrize("path", [MESSAGES, CHAT])
def test_without_pings_the_same_client_gives_up(slow_lab, path):
    with slow_lab.serve(ping_s=60, drain_s=0) as server, pytest.raises(httpx2.ReadTimeout):
        stream_slowly(server, path, 0.7, messages=[{"role": "user", "content": "again" + path + "y" * 400}])


def test_thinking_that_is_not_shown_is_no_silence(slow_lab):
    thinking = {"type": "enabled", "budget_tokens": 16, "display": "omitted"}
    with slow_lab.serve(ping_s=0.1) as server:
        text = stream_slowly(server, MESSAGES, 0.7, messages=HELLO, max_tokens=18, thinking=thinking)
    assert "thinking_delta" not in text
    assert text.count("event: ping") > 5
    assert "signature_delta" in text


# -- frames -------------------------------------------------------------------------------------------------


def test_no_delta_holds_half_a_character_and_all_together_are_the_text():
    text = "Zoë 🎈 naïve – 日本語 👩‍👩‍👧 end"
    with playback_lab(text) as lab, lab.serve() as server:
        frames = frames_of(post(server, MESSAGES, max_tokens=200, stream=True).text)
        chunks = frames_of(post(server, CHAT, max_tokens=200, stream=True).text)
    pieces = [f["delta"]["text"] for f in frames if f.get("delta", {}).get("type") == "text_delta"]
    chat = [c["delta"]["content"] for chunk in chunks for c in chunk["choices"] if c["delta"].get("content")]
    for found in (pieces, chat):
        assert "".join(found) == text
        assert len(found) > 10
        assert not any("\ufffd" in piece for piece in found)


def test_a_stop_sequence_that_comes_in_pieces_never_shows():
    with playback_lab("one ST two STOP three") as lab, lab.serve() as server:
        frames = frames_of(post(server, MESSAGES, max_tokens=50, stream=True, stop_sequences=["STOP"]).text)
        chunks = frames_of(post(server, CHAT, max_tokens=50, stream=True, stop=["STOP"]).text)
    pieces = [f["delta"]["text"] for f in frames if f.get("delta", {}).get("type") == "text_delta"]
    assert "".join(pieces) == "one ST two "
    assert frames[-2]["delta"] | {"container": None, "stop_details": None} == {
        "stop_reason": "stop_sequence",
        "stop_sequence": "STOP",
        "stop_details": None,
        "container": None,
    }
    chat = [c["delta"].get("content") or "" for chunk in chunks for c in chunk["choices"]]
    assert ("".join(chat), chunks[-1]["choices"][0]["finish_reason"]) == ("one ST two ", "stop")


@pytest.mark.parametrize(("path", "named"), [(MESSAGES, True), (CHAT, False)])
def test_frames_hold_nothing_that_trips_a_client(path, named):
    """Some clients fail at ``retry:`` and ``id:``, at events without data, and at a byte order mark."""
    with playback_lab("one\u2028two\n\nthree\x85four\r\n") as lab, lab.serve(ping_s=0.001) as server:
        raw = post(server, path, max_tokens=50, stream=True).content
    *frames, rest = raw.split(b"\n\n")
    assert (rest, raw[:3] == b"\xef\xbb\xbf", b"\r" in raw) == (b"", False, False)
    for frame in frames:
        if not frame.startswith(b":"):
            fields = [line.split(b": ", 1)[0] for line in frame.split(b"\n")]
            assert fields == ([b"event", b"data"] if named else [b"data"])
    assert len(frames) > 20


def test_streams_are_never_compressed():
    accepts = {"accept-encoding": "gzip, deflate, br"}
    body = {"model": "m", "max_tokens": 50, "messages": HELLO, "stream": True}
    with playback_lab("a" * 40) as lab, lab.serve() as server:
        responses = [httpx2.post(f"{server.url}{path}", json=body, headers=accepts) for path in (MESSAGES, CHAT)]
    for response in responses:
        assert "content-encoding" not in response.headers
        assert response.headers["cache-control"] == "no-cache"
        assert response.headers["x-accel-buffering"] == "no"


def test_an_error_has_a_status_before_the_first_byte_and_a_frame_after_it():
    gated = Gated()
    with lab_on(gated) as lab, lab.serve(drain_s=0) as server:
        assert post(server, MESSAGES, stream=True, max_tokens=-1).status_code == 400
        with httpx2.stream(
            "POST", f"{server.url}{MESSAGES}", json={"model": "m", "max_tokens": 50, "messages": HELLO, "stream": True}
        ) as response:
            assert response.status_code == 200
            gated.let(5)
            until(lambda: lab.engine.journal.step == 5)
            with ThreadPoolExecutor(1) as pool:
                closing = pool.submit(lab.engine.close)
                time.sleep(0.05)
                gated.let(1000)
                frames = frames_of("".join(response.iter_text()))
                closing.result()
    assert frames[0]["type"] == "message_start"
    assert (frames[-1]["type"], frames[-1]["error"]["type"]) == ("error", "api_error")
    assert not any(frame["type"] == "message_stop" for frame in frames)
