"""A real HTTP server on a socket that sends exactly the bytes a test wants, when it wants them."""

from __future__ import annotations

import contextlib
import json
import socket
import threading
import time
from dataclasses import dataclass
from typing import Any

from llmlab.api.sse import named_frame

DROP = "drop"
"""A step: reset the connection."""


@dataclass(frozen=True)
class Request:
    """A request as it arrived; header names are lower-case. ``connection`` numbers connections from 0."""

    method: str
    path: str
    headers: dict[str, str]
    body: Any
    connection: int


class ScriptedServer:
    """Answers request number n with ``answers[n]``, a list of steps, and the last one again after that.

    A step is bytes to send, a number of seconds to pause, an event to wait for, or ``DROP``. After the steps a
    response that has a length or is chunked leaves the connection open for the next request, any other closes it.
    """

    def __init__(self, *answers: list) -> None:
        self.answers, self.requests = answers, []
        self.gone = threading.Event()  # a client went away while it was being answered
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._connections: list[socket.socket] = []
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def __enter__(self) -> ScriptedServer:
        return self

    def __exit__(self, *_: object) -> None:
        for each in [self._listener, *self._connections]:
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = self._listener.accept()
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                self._connections.append(connection)
                threading.Thread(target=self._serve, args=(connection, len(self._connections) - 1), daemon=True).start()

    def _serve(self, connection: socket.socket, number: int) -> None:
        with contextlib.suppress(OSError), connection, connection.makefile("rb") as reader:
            while (request := _read(reader, number)) is not None:
                self.requests.append(request)
                answer = self.answers[min(len(self.requests), len(self.answers)) - 1]
                self._play(connection, answer)
                head = b"".join(step for step in answer if isinstance(step, bytes)).lower()
                if b"content-length" not in head and b"chunked" not in head:
                    return

    def _play(self, connection: socket.socket, answer: list) -> None:
        for step in answer:
            if isinstance(step, bytes):
                connection.sendall(step)
            elif step is DROP:
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
                connection.close()
                raise OSError("dropped")
            elif isinstance(step, threading.Event):
                step.wait(5)
            else:
                self._pause(connection, step)

    def _pause(self, connection: socket.socket, seconds: float) -> None:
        connection.settimeout(seconds)
        try:
            if connection.recv(1, socket.MSG_PEEK) == b"":
                self.gone.set()
        except TimeoutError:
            pass
        finally:
            connection.settimeout(None)


def _read(reader: Any, number: int) -> Request | None:
    line = reader.readline().decode()
    if not line.strip():
        return None
    method, path, _ = line.split()
    headers = {}
    while (line := reader.readline().decode().strip()) != "":
        name, _, value = line.partition(":")
        headers[name.lower()] = value.strip()
    body = reader.read(int(headers.get("content-length", 0)))
    return Request(method, path, headers, json.loads(body) if body else None, number)


STREAM_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nrequest-id: req_1\r\n"
OPEN_HEAD = STREAM_HEAD + b"connection: close\r\n\r\n"


def chunked(body: bytes) -> list:
    """A complete streamed answer that leaves the connection usable."""
    return [STREAM_HEAD + b"transfer-encoding: chunked\r\n\r\n", b"%x\r\n%s\r\n0\r\n\r\n" % (len(body), body)]


def reply(status: int, body: Any, **headers: str) -> list:
    """A JSON (or, given a string, plain) answer in one piece; underscores in header names become hyphens."""
    data = body.encode() if isinstance(body, str) else json.dumps(body).encode()
    lines = [f"HTTP/1.1 {status} X", f"content-length: {len(data)}", "request-id: req_1"]
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    return ["\r\n".join(lines).encode() + b"\r\n\r\n" + data]


def refusal(status: int, kind: str, message: str = "no", **headers: str) -> list:
    """An error answer in the Messages API's envelope."""
    return reply(status, {"type": "error", "error": {"type": kind, "message": message}}, **headers)


def frames(*events: dict) -> bytes:
    """Events as they go over the wire."""
    return b"".join(named_frame(event["type"], event) for event in events)


def start(**usage: int) -> dict:
    usage = {"input_tokens": 7, "output_tokens": 1} | usage
    message = {"id": "msg_1", "type": "message", "role": "assistant", "model": "mock", "content": [], "usage": usage}
    return {"type": "message_start", "message": message}


def block(index: int, kind: str, *deltas: dict, **fields: Any) -> list[dict]:
    """Start, deltas and stop of one block."""
    begin = {"type": "content_block_start", "index": index, "content_block": {"type": kind} | fields}
    middle = [{"type": "content_block_delta", "index": index, "delta": delta} for delta in deltas]
    return [begin, *middle, {"type": "content_block_stop", "index": index}]


def text(index: int, *parts: str) -> list[dict]:
    return block(index, "text", *({"type": "text_delta", "text": part} for part in parts), text="")


def thinking(index: int, *parts: str) -> list[dict]:
    deltas = [{"type": "thinking_delta", "thinking": part} for part in parts]
    return block(index, "thinking", *deltas, {"type": "signature_delta", "signature": "s"}, thinking="", signature="")


def tool(index: int, *parts: str, name: str = "add") -> list[dict]:
    deltas = [{"type": "input_json_delta", "partial_json": part} for part in parts]
    return block(index, "tool_use", *deltas, id=f"toolu_{index}", name=name, input={})


def end(stop_reason: str = "end_turn", **usage: int) -> list[dict]:
    usage = {"output_tokens": 9} | usage
    delta = {"stop_reason": stop_reason, "stop_sequence": None}
    return [{"type": "message_delta", "delta": delta, "usage": usage}, {"type": "message_stop"}]


HELLO = [start(), {"type": "ping"}, *text(0, "Hel", "lo"), *end()]
"""A whole stream."""


def pause(seconds: float) -> float:
    """A step that only waits, noticing a client that leaves meanwhile."""
    return seconds


def wait_until(condition: Any, seconds: float = 5.0) -> bool:
    """Whether ``condition()`` became true in time."""
    limit = time.monotonic() + seconds
    while not condition() and time.monotonic() < limit:
        time.sleep(0.005)
    return bool(condition())
