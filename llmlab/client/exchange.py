"""A streamed request with everything it takes to get its answer: attempts, retries, repairs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from llmlab.client.accumulate import Delta
from llmlab.client.attempt import Attempt, Tap
from llmlab.client.message import Message
from llmlab.client.recovery import Recovery
from llmlab.client.stream_errors import ClientError
from llmlab.client.streamed import Streamed
from llmlab.client.wire import Wire, new_wire_id, to_body

PATH = "/v1/messages"


class Exchange:
    """Iterate over it to run the request: each :class:`Delta` is what one event did to :attr:`message`.

    A ``restart`` delta says that what was shown since the last ``message_start`` is void. Use it in a ``with``
    statement: leaving that early ends the connection, so that the server stops too. It can be iterated once. Raises
    ``ClientError`` when the answer cannot be had; ``partial`` on it is what came of the last attempt.

    ``wire_id`` is the client's id of the attempt that runs, or comes next: each has its own, and the ``retry`` stage
    of one names the next.
    """

    def __init__(
        self,
        wire: Wire,
        recovery: Recovery,
        request: dict[str, Any],
        headers: Mapping[str, str],
        wire_id: str | None = None,
        tap: Tap | None = None,
    ) -> None:
        self.headers, self.tap = headers, tap
        self.wire_id = wire_id or new_wire_id()
        self.request = request | {"stream": True}
        self._wire, self._recovery = wire, recovery
        self._attempt: Streamed | None = None
        self._number = 0
        self._deltas = self._run()

    def __enter__(self) -> Exchange:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __iter__(self) -> Iterator[Delta]:
        return self._deltas

    @property
    def message(self) -> Message:
        """The message as far as it came; ``is_complete`` tells whether that is all of it."""
        return self._attempt.message if self._attempt is not None else Message()

    def close(self) -> None:
        """End the request wherever it is; harmless after its end."""
        self._deltas.close()

    def _run(self) -> Iterator[Delta]:
        while True:
            attempt = self._attempt = self._begin()
            try:
                yield from attempt.deltas()
                return
            except ClientError as failure:
                begun = attempt.lifecycle.state != "new"
                describe(failure, attempt.attempt, attempt.message if begun else None)
                if not self._goes_on(failure):
                    return
            finally:
                self._wire.release(attempt.attempt)
            if begun:
                yield Delta("restart")

    def _begin(self) -> Streamed:
        body = to_body(self.request)
        accept = "text/event-stream"
        return Streamed(self._wire.open("POST", PATH, body, self._number, accept, self.headers, self.wire_id, self.tap))

    def _goes_on(self, failure: ClientError) -> bool:
        """Whether another attempt is due, after the wait before it; ``False``: what came is kept as the answer."""
        attempt = self._attempt
        self._wire.release(attempt.attempt)  # the server need not go on while this side waits
        log, self.wire_id = attempt.attempt.log, new_wire_id()
        step = self._recovery.after(failure, attempt.phase, log, self.wire_id, was_reached=self._wire.was_reached)
        if step.action == "keep":
            attempt.accumulator.keep_complete_blocks(str(failure))
            return False
        self.request = self.request | step.changes
        self._number += 1
        return True


def describe(failure: ClientError, attempt: Attempt, partial: Message | None) -> None:
    """Put on a failure what is known about its exchange."""
    failure.partial = partial
    failure.request_id, failure.client_request_id = attempt.request_id, attempt.log.wire_id
    failure.attempts = attempt.number + 1
