"""The proxy injects what it was told, keeps the bytes in order, and says what it did."""

from __future__ import annotations

import socket
import subprocess
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import httpx2
import pytest

from llmlab.client.certificate import LocalCertificate
from llmlab.client.proxy import Proxy
from llmlab.client.proxy_link import ResponseHold
from llmlab.errors import InvalidParameter, MissingExtra
from llmlab.trace.recorder import Recorder

BODY = bytes(range(256)) * 40


class Handler(BaseHTTPRequestHandler):
    """``/body`` answers at once; ``/stream`` sends three chunks 50 ms apart; a POST is echoed."""

    protocol_version = "HTTP/1.1"

    def do_GET(self):
        if self.path == "/stream":
            return self._stream()
        self._whole(BODY)

    def do_HEAD(self):
        self._whole(BODY)

    def do_POST(self):
        self._whole(self.rfile.read(int(self.headers["content-length"])))

    def _whole(self, data):
        self.send_response(200)
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)

    def _stream(self):
        self.send_response(200)
        self.send_header("transfer-encoding", "chunked")
        self.end_headers()
        for _ in range(3):
            self.wfile.write(b"4\r\ntick\r\n")
            self.wfile.flush()
            time.sleep(0.05)
        self.wfile.write(b"0\r\n\r\n")

    def log_message(self, *_):
        pass


@pytest.fixture(scope="module")
def target():
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


@pytest.fixture(scope="module")
def certificate(tmp_path_factory):
    folder = tmp_path_factory.mktemp("certificate")
    names = ["-subj", "/CN=test", "-addext", "subjectAltName=IP:127.0.0.1", "-days", "1", "-nodes"]
    key = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-keyout", "key", "-out", "cert"]
    subprocess.run(["openssl", "req", "-x509", *key, *names], cwd=folder, check=True, capture_output=True)
    return LocalCertificate((folder / "cert").read_bytes(), (folder / "key").read_bytes())


def faults(recorder: Recorder) -> list:
    return [event for event in recorder.snapshot() if getattr(event, "kind", "") == "fault"]


def test_bytes_pass_unchanged_and_nothing_is_called_injected(target):
    recorder = Recorder()
    with Proxy(target, recorder=recorder) as proxy:
        assert httpx2.get(f"{proxy.url}/body").content == BODY
        assert httpx2.post(f"{proxy.url}/echo", content=BODY).content == BODY
    assert faults(recorder) == []


def test_connections_and_their_reuse_are_counted(target):
    with Proxy(target) as proxy:
        with httpx2.Client() as client:
            for _ in range(3):
                client.get(f"{proxy.url}/body")
        httpx2.get(f"{proxy.url}/body")
        assert (proxy.connections, proxy.requests, proxy.reused) == (2, 4, 2)


def test_a_first_request_pays_two_round_trips_and_a_later_one_pays_one(target):
    recorder = Recorder()
    with Proxy(target, rtt_s=0.1, recorder=recorder) as proxy, httpx2.Client() as client:
        took = []
        for _ in range(2):
            start = time.monotonic()
            assert client.get(f"{proxy.url}/body").content == BODY
            took.append(time.monotonic() - start)
    assert took[0] >= 0.199
    assert took[1] >= 0.099
    assert [event.name for event in faults(recorder)].count("connect +100 ms") == 1
    names = {(event.name, event.direction) for event in faults(recorder)}
    assert names == {("connect +100 ms", "sent"), ("delay 50 ms", "sent"), ("delay 50 ms", "received")}
    assert {(event.side, event.text, event.wire_id) for event in faults(recorder)} == {("proxy", "injected", "proxy-1")}


def test_delay_does_not_reorder_a_stream_in_either_direction(target):
    sent = bytes(n % 251 for n in range(300_000))
    with Proxy(target, rtt_s=0.01, split=1_000) as proxy:
        assert httpx2.post(f"{proxy.url}/echo", content=sent).content == sent
        assert proxy.requests == 1


def test_a_narrow_line_takes_its_time(target):
    with Proxy(target, bandwidth=100_000) as proxy:
        start = time.monotonic()
        assert httpx2.get(f"{proxy.url}/body").content == BODY
        assert time.monotonic() - start >= len(BODY) / 100_000


def test_a_buffering_proxy_turns_a_stream_into_one_piece(target):
    def arrivals(**effects):
        with Proxy(target, **effects) as proxy, httpx2.stream("GET", f"{proxy.url}/stream") as response:
            times = [time.monotonic() for _ in response.iter_raw()]
        return times[-1] - times[0]

    assert arrivals() >= 0.09
    assert arrivals(buffer_response=True) < 0.04


def test_a_buffering_proxy_knows_where_answers_end(target):
    recorder = Recorder()
    with Proxy(target, buffer_response=True, recorder=recorder) as proxy, httpx2.Client(timeout=5) as client:
        assert client.head(f"{proxy.url}/body").headers["content-length"] == str(len(BODY))
        assert client.get(f"{proxy.url}/body").content == BODY
        assert client.get(f"{proxy.url}/stream").text == "tick" * 3
        assert proxy.connections == 1
    assert {"held back", "released"} <= {event.name for event in faults(recorder)}


def test_what_is_not_http_is_not_held():
    assert ResponseHold().feed(b"\x00\x01 not http\r\n") == b"\x00\x01 not http\r\n"


def test_a_connection_is_dropped_after_so_many_bytes_and_then_no_more(target):
    recorder = Recorder()
    with Proxy(target, drop_after=500, drops=1, recorder=recorder) as proxy:
        got = b""
        with pytest.raises(httpx2.RemoteProtocolError), httpx2.stream("GET", f"{proxy.url}/body") as response:  # noqa: PT012
            for piece in response.iter_raw():
                got += piece
        assert 0 < len(got) < 500
        assert BODY.startswith(got)
        assert httpx2.get(f"{proxy.url}/body").content == BODY
    assert [event.name for event in faults(recorder)] == ["drop after 500 bytes"]


def test_the_bytes_before_a_drop_are_delivered(target):
    with Proxy(target, drop_after=500, split=7) as proxy:
        port = int(proxy.url.rsplit(":", 1)[1])
        with socket.create_connection(("127.0.0.1", port)) as client:
            client.sendall(b"GET /body HTTP/1.1\r\nhost: x\r\n\r\n")
            assert len(b"".join(iter(lambda: client.recv(4096), b""))) == 500


def test_dropped_from_the_first_byte(target):
    with Proxy(target, drop_after=0) as proxy, pytest.raises(httpx2.RemoteProtocolError):
        httpx2.get(f"{proxy.url}/body")


def test_a_client_that_leaves_is_noticed_by_the_target():
    gone = threading.Event()

    class Endless(Handler):
        def do_GET(self):
            self.send_response(200)
            self.end_headers()
            try:
                while not gone.wait(0.01):
                    self.wfile.write(b"tick")
            except OSError:
                gone.set()
            self.close_connection = True

    server = ThreadingHTTPServer(("127.0.0.1", 0), Endless)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    with Proxy(f"http://127.0.0.1:{server.server_port}", rtt_s=0.02) as proxy:
        with httpx2.stream("GET", f"{proxy.url}/") as response:
            next(response.iter_raw())
        assert gone.wait(5)
    server.shutdown()
    server.server_close()


def test_a_target_that_is_not_there_closes_the_connection_and_says_why():
    recorder = Recorder()
    with socket.create_server(("127.0.0.1", 0)) as server:
        unused = server.getsockname()[1]
    with Proxy(f"http://127.0.0.1:{unused}", recorder=recorder) as proxy, pytest.raises(httpx2.TransportError):
        httpx2.get(proxy.url)
    assert [event.kind for event in recorder.snapshot()] == ["error"]


def test_one_handshake_per_connection_and_each_pays_the_round_trip(target, certificate):
    recorder = Recorder()
    with Proxy(target, tls=certificate, rtt_s=0.06, buffer_response=True, recorder=recorder) as proxy:
        with httpx2.Client(verify=proxy.certificate.client_context()) as client:
            took = []
            for _ in range(3):
                start = time.monotonic()
                assert client.get(f"{proxy.url}/body").content == BODY
                took.append(time.monotonic() - start)
        assert proxy.url.startswith("https://")
        assert (proxy.connections, proxy.requests, proxy.reused, len(proxy.handshakes)) == (1, 3, 2, 1)
    assert took[0] >= 0.179, "TCP, TLS and HTTP take a round trip each"
    assert proxy.handshakes[0] >= 0.089
    (stage,) = [event for event in recorder.snapshot() if getattr(event, "name", "") == "tls handshake"]
    assert (stage.wire_id, stage.details["version"]) == ("proxy-1", "TLSv1.3")


def test_nobody_else_trusts_the_certificate(target, certificate):
    with Proxy(target, tls=certificate) as proxy:
        with pytest.raises(httpx2.ConnectError):
            httpx2.get(f"{proxy.url}/body")
        assert proxy.handshakes == []


def test_a_made_certificate_works(target):
    pytest.importorskip("cryptography", reason="the extra tls is not installed; a test above brings a certificate")
    with Proxy(target, tls=True) as proxy:
        context = proxy.certificate.client_context()
        assert httpx2.get(f"{proxy.url}/body", verify=context).content == BODY


def test_without_the_package_the_error_names_it(target, monkeypatch):
    monkeypatch.setitem(sys.modules, "cryptography", None)
    with pytest.raises(MissingExtra, match=r"pip install 'llmlab\[tls\]'"):
        Proxy(target, tls=True)


def test_closing_with_a_connection_open_is_quiet(target, caplog):
    with httpx2.Client() as client:
        with Proxy(target) as proxy:
            client.get(f"{proxy.url}/body")
        with pytest.raises(httpx2.TransportError):
            client.get(f"{proxy.url}/body")
    assert caplog.records == []


def test_closing_twice_is_fine_and_ends_the_thread(target):
    before = threading.active_count()
    proxy = Proxy(target)
    proxy.close()
    proxy.close()
    assert threading.active_count() == before
    with pytest.raises(httpx2.ConnectError):
        httpx2.get(proxy.url)


@pytest.mark.parametrize(
    "url", ["http://example.com", "https://127.0.0.1", "127.0.0.1:80", "http://10.0.0.1:80", "http://localhost.evil:1"]
)
def test_only_this_machine_can_be_a_target(url):
    with pytest.raises(InvalidParameter, match="on this machine"):
        Proxy(url)


@pytest.mark.parametrize(
    "bad", [{"rtt_s": -1}, {"rtt_s": float("nan")}, {"bandwidth": 0}, {"split": 0}, {"drop_after": -1}]
)
def test_effects_out_of_range_are_refused(target, bad):
    with pytest.raises(InvalidParameter):
        Proxy(target, **bad)
