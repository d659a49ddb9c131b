"""Reading a server's metrics: what is added up, what is refused, and that an answer cannot be without end."""

from __future__ import annotations

import math
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

import llmlab
from llmlab.client.metrics import parse, scrape
from llmlab.client.stream_errors import ApiFailure, ProtocolViolation, ServerUnreachable, TotalTimeout
from llmlab.errors import InvalidParameter
from llmlab.trace.readings import HITS, KV_USAGE, OUTPUT_TOKENS, QUERIES, RUNNING, WAITING

TWO_ENGINES = """# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="m"} 3
vllm:num_requests_running{engine="1",model_name="m"} 4
# TYPE vllm:kv_cache_usage_perc gauge
vllm:kv_cache_usage_perc{engine="0"} 0.25
vllm:kv_cache_usage_perc{engine="1"} 0.75
# TYPE vllm:generation_tokens counter
vllm:generation_tokens_total{engine="0"} 10
vllm:generation_tokens_total{engine="1"} 5
# TYPE vllm:time_to_first_token_seconds histogram
vllm:time_to_first_token_seconds_bucket{engine="0",le="0.1"} 1
vllm:time_to_first_token_seconds_bucket{engine="0",le="+Inf"} 2
vllm:time_to_first_token_seconds_bucket{engine="1",le="0.1"} 3
vllm:time_to_first_token_seconds_bucket{engine="1",le="+Inf"} 3
some_other_metric 7
"""


def test_engines_are_added_up_and_the_fullest_counts():
    reading = parse(TWO_ENGINES, "here")
    assert dict(reading.values) == {RUNNING: 7, KV_USAGE: 0.75, OUTPUT_TOKENS: 15}
    assert reading.ttft == ((0.1, 4), (math.inf, 5))


@pytest.mark.parametrize("text", ["{", "a b c d", 'vllm:x{le="', 'vllm:time_to_first_token_seconds_bucket{le="x"} 1'])
def test_what_is_no_exposition_format_is_named(text):
    with pytest.raises(ProtocolViolation, match="no metrics"):
        parse(text, "here")


def test_our_own_gateway_is_read():
    with llmlab.open("mock", num_blocks=64) as lab:
        client = lab.client()
        before = scrape(client.url)
        body = {"model": "mock", "max_tokens": 5, "messages": [{"role": "user", "content": "hello"}]}
        client.send(body)
        after = scrape(f"{client.url}/metrics")
        run = lab.trace.requests.iloc[-1]
    assert after.source == before.source
    assert after.values[OUTPUT_TOKENS] - before.values.get(OUTPUT_TOKENS, 0) == run.num_output_tokens
    assert after.values[QUERIES] - before.values[QUERIES] == run.num_prompt_tokens
    assert (after.values[RUNNING], after.values[WAITING], after.values[HITS]) == (0, 0, before.values[HITS])
    assert after.ttft[-1] == (math.inf, 1)


@contextmanager
def serving(status: int, body: bytes, headers: dict[str, str] | None = None, hangs: bool = False) -> Iterator[str]:
    """A server that gives one answer to everything."""
    release = threading.Event()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            if hangs:
                release.wait(10)
            self.send_response(status)
            for name, value in (headers or {}).items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *args):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        release.set()
        server.shutdown()
        server.server_close()


def test_an_answer_that_is_too_long_is_cut_off():
    with serving(200, b"x 1\n" * 1_000) as url, pytest.raises(ProtocolViolation, match="more than 3,000 bytes"):
        scrape(url, max_bytes=3_000)


def test_a_compressed_answer_is_refused():
    headers = {"content-encoding": "gzip"}
    with serving(200, b"x", headers) as url, pytest.raises(ProtocolViolation, match="compressed"):
        scrape(url)


@pytest.mark.parametrize("status", [302, 404, 500])
def test_another_status_is_named_and_redirects_are_not_followed(status):
    with serving(status, b"", {"location": "http://127.0.0.1:1/"}) as url, pytest.raises(ApiFailure) as error:
        scrape(url)
    assert error.value.status == status


def test_a_server_that_is_silent_or_not_there_is_named():
    with serving(200, b"", hangs=True) as url, pytest.raises(TotalTimeout):
        scrape(url, timeout_s=0.2)
    with pytest.raises(ServerUnreachable, match="is the server running"):
        scrape(url, timeout_s=2)


@pytest.mark.parametrize("url", ["", "ftp://x", "127.0.0.1:8000", "http://", "http://x:port", None])
def test_what_is_no_address_is_refused(url):
    with pytest.raises(InvalidParameter, match="no address"):
        scrape(url)
