"""A server to send a request to: one of our own in this process, or any other."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from llmlab.errors import InvalidParameter
from llmlab.trace.recorder import Recorder
from llmlab.trace.trace import Trace

if TYPE_CHECKING:
    from llmlab.client.client import Client


@dataclass(frozen=True, slots=True)
class Connection:
    """A server to send to: ``model`` is the name to ask it for, ``client`` makes a client that records as it is told.

    ``recorded`` gives the trace, complete once the connection was left.
    """

    model: str
    recorder: Recorder
    client: Callable[..., Client]
    recorded: Callable[[], Trace]


IDLE_S, WARN_S = 10.0, 3.0
"""Silence (s) after which a client gives up, or says that it waits, where the server fails on purpose."""


@contextmanager
def here(model: str, fault: str | None, **options: Any) -> Iterator[Connection]:
    """A lab and its server in this process; both are closed at the end, so that their records are complete."""
    import llmlab
    from llmlab.client.timeouts import Timeouts

    with llmlab.open(model, **options) as lab:
        server = lab.serve()
        if fault is not None:
            server.faults.inject(fault)
        timeouts = None if fault is None else Timeouts(idle_s=IDLE_S, warn_s=WARN_S)

        def connect(**more: Any) -> Client:
            return lab.client(server, timeouts=timeouts, **more)

        yield Connection(lab.model, lab.engine.recorder, connect, lambda: lab.trace)


@contextmanager
def there(url: str, key: str | None, model: str | None) -> Iterator[Connection]:
    """Any server that speaks the Messages API."""
    import llmlab

    def connect(**more: Any) -> Client:
        return llmlab.connect(url, api_key=key, **more)

    recorder = Recorder()
    name = model or _first_model(connect)
    yield Connection(name, recorder, connect, lambda: Trace(recorder.snapshot()))


def _first_model(connect: Callable[..., Client]) -> str:
    with connect() as client:
        names = [model["id"] for model in client.models() if isinstance(model.get("id"), str)]
    if not names:
        raise InvalidParameter("the server lists no models: name one with --model")
    return names[0]
