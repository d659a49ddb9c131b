"""What crosses the wire, line by line as it happens."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any, Protocol, TextIO

from llmlab.commands.frame_line import one_line, summary
from llmlab.commands.terminal import escape_controls
from llmlab.trace.events import Event, WireEvent
from llmlab.trace.recorder import Recorder

MAX_BODY_LINES, MAX_LINE = 60, 160
CLIENT = "client"


class View(Protocol):
    """Who looks on while a client works."""

    def show(self, event: WireEvent) -> None:
        """Something happened on the client's side of the wire."""


class Observed(Recorder):
    """Passes every event on to ``recorder``, and the client's own wire events to a view as well."""

    def __init__(self, recorder: Recorder, view: View) -> None:
        super().__init__(capacity=1)
        self.recorder, self.view = recorder, view

    def emit(self, event: Event) -> None:
        """Keep and show one event."""
        self.recorder.emit(event)
        if isinstance(event, WireEvent) and event.side == CLIENT:
            self.view.show(event)


class Transcript:
    """Requests, responses and frames go to ``out``, what the client does about them to ``notices``.

    ``body`` gives the body of the request that is being sent. Times are milliseconds since its sending. Without an
    ``out`` only the notices are shown.
    """

    def __init__(self, out: TextIO | None, notices: TextIO, body: Callable[[], Any]) -> None:
        self.out, self.notices, self._body = out, notices, body
        self._sent_ns = self._attempts = 0
        self._is_streaming = False
        self._shown: Any = None
        for stream in (out, notices):
            if hasattr(stream, "reconfigure"):
                stream.reconfigure(errors="backslashreplace")

    def show(self, event: WireEvent) -> None:
        """Write the line or lines of one event."""
        kinds = {"request": self._request, "response": self._response, "frame": self._frame}
        if event.kind in kinds:
            kinds[event.kind](event)
        else:
            self._notice(event)

    def _request(self, event: WireEvent) -> None:
        self._sent_ns, self._attempts = event.t_ns, self._attempts + 1
        self._write(event.name if self._attempts == 1 else f"\n{event.name} (attempt {self._attempts})")
        self._head((event.text or "").partition("\n\n")[0])
        body = self._body()
        self._write(f"\n{'(the same body)' if body == self._shown else pretty(body)}\n")
        self._shown = body

    def _response(self, event: WireEvent) -> None:
        self._write(f"{event.name} after {self._ms(event)}")
        self._head(event.text or "")
        self._is_streaming = False

    def _head(self, text: str) -> None:
        for line in text.split("\n"):
            self._write(f"  {one_line(line)}")

    def _frame(self, event: WireEvent) -> None:
        if not self._is_streaming:
            self._write("\n      since   data bytes")
            self._is_streaming = True
        self._write(f"{self._ms(event):>11} {event.size:>12,}  {one_line(event.name):<20} {summary(event.text or '')}")

    def _notice(self, event: WireEvent) -> None:
        if event.kind in ("error", "retry", "warning", "disconnect"):
            about = f": {event.text}" if event.text else ""
            text = f"llmlab: {self._ms(event)}: {event.kind}: {event.name}{about}"
            print(escape_controls(text.replace("\n", " ")), file=self.notices, flush=True)

    def _ms(self, event: WireEvent) -> str:
        return f"{(event.t_ns - self._sent_ns) / 1e6:,.1f} ms"

    def _write(self, text: str) -> None:
        if self.out is not None:
            print(text, file=self.out, flush=True)


def pretty(body: Mapping[str, Any]) -> str:
    """A JSON object, a field a line, a list an item a line: at most 60 lines of some 160 characters.

    What is cut is counted. Control characters are spelled out.
    """
    fields = [_field(name, value) for name, value in body.items()]
    inner = ",\n".join(fields).split("\n")
    left = len(inner) - MAX_BODY_LINES
    shown = [_bounded(line) for line in inner[:MAX_BODY_LINES]]
    return "\n".join(["{", *shown, *([f"  … {left} more lines"] if left > 0 else []), "}"])


def _field(name: str, value: Any) -> str:
    if not isinstance(value, list) or not value:
        return f"  {_json(name)}: {_json(value)}"
    items = ",\n".join(f"    {_json(item)}" for item in value)
    return f"  {_json(name)}: [\n{items}\n  ]"


def _json(value: Any) -> str:
    return escape_controls(json.dumps(value, ensure_ascii=False))


def _bounded(line: str) -> str:
    left = len(line) - MAX_LINE
    return f"{line[:MAX_LINE]}… {left:,} more characters" if left > 0 else line
