"""HTTP exchanges without a network: events of a client and a gateway around the engine's."""

from __future__ import annotations

import json
import random
from time import perf_counter_ns

from hypothesis import strategies as st
from synthetic import MS, SyntheticEngine, clockwork

from llmlab.trace.events import Event, Stage, WireEvent, WireLink

BODY = '{"model":"m"}'


def text_frame(text: str) -> str:
    """Data of an Anthropic frame that adds text."""
    return json.dumps({"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": text}})


def wire(at: float, wire_id: str, side: str, kind: str, size: int = 0, name: str = "", text=None) -> WireEvent:
    """A wire event at a time in ms."""
    sent = {"request": side == "client", "delta": None}.get(kind, side == "gateway")
    direction = "" if sent is None or kind in ("end", "error", "disconnect") else ("sent" if sent else "received")
    return WireEvent(int(at * MS), wire_id, side, kind, direction, size, name, text)


def stage(start: float, end: float, wire_id: str, side: str, name: str, outcome: str = "ok") -> Stage:
    """A stage between two times in ms."""
    return Stage(int(start * MS), int(end * MS), wire_id, side, name, outcome, "because", {"n": 1})


def carried() -> list[Event]:
    """The clockwork's r0 as a streamed exchange, ``cl-1`` at the client and ``req_1`` at the gateway, on the same
    clock; a second one, ``req_2``, is refused; the client ``cl-3`` never reached a gateway.
    """
    first, second = text_frame("a"), text_frame("b")
    before = [
        stage(0.1, 0.4, "cl-1", "client", "assemble"),
        wire(0.5, "cl-1", "client", "request", 13, "POST /v1/messages", BODY),
        stage(0.4, 0.6, "cl-1", "client", "send"),
        WireLink(MS, "req_1", "client", "cl-1"),
        stage(1.0, 1.2, "req_1", "gateway", "authenticate"),
        stage(1.2, 1.6, "req_1", "gateway", "decode"),
        wire(0.9, "req_1", "gateway", "request", 13, "POST /v1/messages", BODY),
        WireLink(2 * MS, "req_1", "engine", "r0"),
        stage(1.8, 2.5, "req_1", "gateway", "admit"),
    ]
    after = [
        wire(13.5, "req_1", "gateway", "response", 0, "200", "content-type: text/event-stream"),
        wire(13.8, "cl-1", "client", "response", 0, "200"),
        wire(15.5, "req_1", "gateway", "frame", 100, "content_block_delta", first),
        wire(15.8, "cl-1", "client", "bytes", 100),
        wire(15.9, "cl-1", "client", "frame", 90, "content_block_delta", first),
        wire(16.0, "cl-1", "client", "delta", 1, "text_delta", "a"),
        wire(35.4, "req_1", "gateway", "frame", 100, "content_block_delta", second),
        stage(13.4, 36.5, "req_1", "gateway", "stream"),
        wire(36.6, "req_1", "gateway", "end", 200, "ok"),
        wire(36.8, "cl-1", "client", "bytes", 100),
        wire(36.9, "cl-1", "client", "frame", 90, "content_block_delta", second),
        wire(37.0, "cl-1", "client", "delta", 1, "text_delta", "b"),
        stage(0.6, 13.8, "cl-1", "client", "wait"),
        wire(37.5, "cl-1", "client", "end", 0, "end_turn"),
        stage(38.0, 38.2, "req_2", "gateway", "authenticate", "refused"),
        wire(38.4, "req_2", "gateway", "response", 40, "401"),
        wire(38.5, "req_2", "gateway", "end", 40, "authentication_error"),
        wire(38.0, "req_2", "gateway", "request", 0, "POST /v1/messages"),
        wire(39.0, "cl-3", "client", "request", 13, "POST /v1/messages", BODY),
        wire(39.5, "cl-3", "client", "error", 0, "ConnectionLost"),
    ]
    return [clockwork()[0], *before, *clockwork()[1:], *after]


class SyntheticGateway:
    """Serves random exchanges with a :class:`SyntheticEngine`; every stage takes as long as it takes."""

    def __init__(self, engine: SyntheticEngine, seed: int) -> None:
        self.engine, self.random = engine, random.Random(seed)
        self.count = 0

    def serve(self, prompt: list[int], max_tokens: int, n: int, runs: int, outcome: str) -> None:
        """``runs`` engine requests for one exchange, one after the other or at once; then its end."""
        self.count += 1
        self.wire_id, self.client_id = f"req_{self.count}", f"cl-{self.count}"
        self.has_client = self.random.random() < 0.7
        self._stages("client", "assemble", "send")
        self._event("client", "request", 9, "POST /v1/messages")
        self._event("gateway", "request", 9, "POST /v1/messages")
        self._emit(WireLink(perf_counter_ns(), self.wire_id, "client", self.client_id))
        self._stages("gateway", "authenticate", "decode", "admit")
        if outcome == "refused":
            self._event("gateway", "response", 20, "429")
        else:
            self._run(prompt, max_tokens, n, runs)
        self._finish("end" if outcome == "refused" else outcome)

    def _run(self, prompt: list[int], max_tokens: int, n: int, runs: int) -> None:
        for _ in range(runs):
            request_id = self.engine.submit(prompt, max_tokens, n)
            self._emit(WireLink(perf_counter_ns(), self.wire_id, "engine", request_id))
            while self.engine.scheduler.has_work and self.random.random() < 0.9:
                self.engine.step()
        self._event("gateway", "response", 0, "200")
        for _ in range(2):
            for side in ("gateway", "client"):
                self._event(side, "frame", 50, "content_block_delta", text_frame("x"))
            self._event("client", "delta", 1, "text_delta", "x")

    def _finish(self, kind: str) -> None:
        self._stages("gateway", "stream")
        for side in ("gateway", "client"):
            if kind != "open":
                self._event(side, kind, 100 if side == "gateway" else 0, "ok")

    def _event(self, side: str, kind: str, size: int, name: str, text: str | None = None) -> None:
        who = self.wire_id if side == "gateway" else self.client_id
        if side == "gateway" or self.has_client:
            self._emit(WireEvent(perf_counter_ns(), who, side, kind, "sent", size, name, text))

    def _stages(self, side: str, *names: str) -> None:
        who = self.wire_id if side == "gateway" else self.client_id
        for name in names if side == "gateway" or self.has_client else ():
            start = perf_counter_ns()
            self._emit(Stage(start, perf_counter_ns(), who, side, name, "ok", "", {}))

    def _emit(self, event: Event) -> None:
        self.engine.recorder.emit(event)


@st.composite
def served(draw) -> list[Event]:
    """Random exchanges on a small pool: groups, several runs in one exchange, refusals, disconnects, open ends."""
    engine = SyntheticEngine(num_blocks=24, budget=draw(st.integers(3, 16)), slots=4, seed=draw(st.integers(0, 99)))
    gateway = SyntheticGateway(engine, draw(st.integers(0, 99)))
    for _ in range(draw(st.integers(0, 4))):
        prompt = draw(st.lists(st.integers(0, 3), min_size=1, max_size=8))
        outcome = draw(st.sampled_from(["end", "end", "disconnect", "error", "open", "refused"]))
        gateway.serve(prompt, draw(st.integers(1, 6)), draw(st.integers(1, 2)), draw(st.integers(0, 2)), outcome)
        if draw(st.booleans()):
            engine.submit(prompt, 2)
    return engine.run() if draw(st.booleans()) else engine.recorder.snapshot()
