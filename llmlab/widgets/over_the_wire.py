"""Requests of the form as an ordinary client of the Messages API sends them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

from llmlab.client.client import Client
from llmlab.client.wire import new_wire_id
from llmlab.errors import LabError
from llmlab.widgets.stream import Stream

# the form's names -> the protocol's; what is not here the protocol does not have
NAMES = {"max_tokens": "max_tokens", "temperature": "temperature", "top_p": "top_p", "top_k": "top_k"}


class Sender:
    """Sends bodies through ``client``, each on a thread of its own, until ``stops`` is set."""

    def __init__(
        self, client: Client, model: str, stream: Stream, stops: threading.Event, report: Callable[[str], None]
    ) -> None:
        self.client, self.model, self.stream = client, model, stream
        self.stops, self.report = stops, report

    def send(
        self, prompts: Sequence[str], system: str | None, params: dict[str, Any], *, shows_deltas: bool = False
    ) -> list[str]:
        """Begin a request for each prompt; the names of the parameters that the protocol does not have.

        ``shows_deltas``: no engine of ours emits the text, so it is taken from what the client records."""
        for prompt in prompts:
            wire_id = new_wire_id()
            self.stream.expect(wire_id, f"{wire_id[:8]}: {prompt}", shows_deltas=shows_deltas)
            body = self._body(prompt, system, params)
            threading.Thread(target=self._run, args=(body, wire_id), name="llmlab-request", daemon=True).start()
        return [name for name in params if name not in NAMES and name != "stop"]

    def _body(self, prompt: str, system: str | None, params: dict[str, Any]) -> dict[str, Any]:
        body: dict[str, Any] = {"model": self.model, "messages": [{"role": "user", "content": prompt}]}
        body |= {NAMES[name]: value for name, value in params.items() if name in NAMES}
        if system is not None:
            body["system"] = system
        if "stop" in params:
            body["stop_sequences"] = params["stop"]
        return body

    def _run(self, body: dict[str, Any], wire_id: str) -> None:
        try:
            with self.client.stream(body, wire_id=wire_id) as exchange:
                for _ in exchange:
                    if self.stops.is_set():
                        return  # leaving ends the connection, and the server stops too
        except LabError as error:
            self.report(str(error))
