"""One request on its way over the wire, watched."""

from __future__ import annotations

import sys
import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from llmlab.commands.connection import Connection
from llmlab.commands.terminal import print_error
from llmlab.commands.wire_summary import Outcome
from llmlab.commands.wire_view import Observed, Transcript, View
from llmlab.errors import LabError
from llmlab.trace.recorder import Recorder
from llmlab.trace.trace import Trace

if TYPE_CHECKING:
    from llmlab.client.assemble import Options
    from llmlab.client.exchange import Exchange
    from llmlab.trace.events import WireEvent

PATIENCE_S = 5.0


@dataclass(frozen=True, slots=True)
class Request:
    """What is asked, before a model is known."""

    prompt: str
    system: str | None
    tools: bool
    options: Options

    def body(self, model: str, recorder: Recorder | None = None, wire_id: str = "") -> dict[str, Any]:
        """The body of the request; with a ``recorder``, assembling it is a stage of exchange ``wire_id``."""
        from llmlab.client.assemble import SystemText, assemble
        from llmlab.client.entry import user
        from llmlab.client.tools import local_tools

        return assemble(
            model,
            [user(self.prompt)],
            options=self.options,
            system=[SystemText(self.system)] if self.system else [],
            tools=[tool.definition for tool in local_tools(".")] if self.tools else [],
            recorder=recorder,
            wire_id=wire_id,
        ).request


@dataclass(slots=True)
class Sending:
    """One request on its way. ``events`` are the client's wire events as JSON types, kept for ``--json``."""

    connection: Connection
    request: Request
    raw: bool
    as_json: bool
    events: list[dict[str, Any]] = field(default_factory=list)
    exchange: Exchange | None = None
    failure: LabError | None = None

    def run(self) -> None:
        """Send, and follow the answer to its end; a failure is kept."""
        from llmlab.client.wire import new_wire_id

        wire_id, recorder = new_wire_id(), self.connection.recorder
        client = self.connection.client(recorder=Observed(recorder, waiting := Waiting(self._view())))
        body = self.request.body(self.connection.model, recorder, wire_id)
        tap = _write_bytes if self.raw else None
        with client, client.stream(body, wire_id=wire_id, tap=tap) as self.exchange:
            try:
                for _ in self.exchange:
                    pass
            except LabError as failure:
                self.failure = failure
            finally:
                waiting.end()

    def outcome(self, trace: Trace) -> Outcome:
        """What it came to."""
        failure = "" if self.failure is None else f"{type(self.failure).__name__}: {self.failure}"
        return Outcome(self.exchange.request, self.exchange.message, trace, failure)

    def _view(self) -> View:
        if self.as_json:
            return Kept(self.events)
        return Transcript(None if self.raw else sys.stdout, sys.stderr, lambda: self.exchange.request)


@dataclass(slots=True)
class Waiting:
    """A view that says on standard error, :data:`PATIENCE_S` after a request left, that nothing has come of it yet.

    Silences later on are the client's to report.
    """

    view: View
    timer: threading.Timer | None = None

    def show(self, event: WireEvent) -> None:
        """Pass one event on; a request starts the wait, whatever comes of it ends the wait."""
        self.view.show(event)
        if event.kind == "request":
            self.end()
            message = f"nothing has come for {PATIENCE_S:g} s; still waiting, Ctrl-C ends it"
            self.timer = threading.Timer(PATIENCE_S, print_error, [message])
            self.timer.daemon = True
            self.timer.start()
        elif event.kind in ("frame", "error", "retry", "disconnect"):
            self.end()

    def end(self) -> None:
        """Wait no longer."""
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None


@dataclass(slots=True)
class Kept:
    """A view that keeps what it sees, as JSON types."""

    events: list[dict[str, Any]]
    sent_ns: int = 0

    def show(self, event: WireEvent) -> None:
        """Keep one event; ``t_ms`` counts from the sending of its attempt."""
        if event.kind == "request":
            self.sent_ns = event.t_ns
        names = ("kind", "direction", "size", "name", "text")
        found = {"t_ms": (event.t_ns - self.sent_ns) / 1e6, "client_request_id": event.wire_id}
        self.events.append(found | {name: getattr(event, name) for name in names})


def _write_bytes(data: bytes) -> None:
    sys.stdout.buffer.write(data)
    sys.stdout.buffer.flush()
