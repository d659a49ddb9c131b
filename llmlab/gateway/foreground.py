"""Running a server until somebody stops it with a signal."""

from __future__ import annotations

import json
import shlex
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from queue import Empty, SimpleQueue

from llmlab.gateway.server import Server

POLL_S = 0.2


def run_forever(
    server: Server,
    say: Callable[[str], None] = print,
    about: Sequence[tuple[str, str]] = (),
    model: str = "any",
) -> bool:
    """Start ``server`` and serve until SIGINT or SIGTERM; must be called from the main thread.

    The first signal lets open requests finish for ``settings.drain_s`` seconds, the second ends them at once. Returns
    whether one signal was enough. ``about`` and ``model`` are for :func:`guide`. Raises what :meth:`Server.start`
    raises.
    """
    signals: SimpleQueue[int] = SimpleQueue()
    with server_signals(signals):
        server.start()
        say(guide(server.url, about, has_keys=bool(len(server.gateway.keys)), model=model))
        while not _received(signals) and server.is_running:
            pass
        say(_farewell(server))
        server.begin_close()
        return _drained(server, signals)


def _farewell(server: Server) -> str:
    count = server.gateway.admission.open
    if not count:
        return "stopping: no request is open"
    requests = "1 open request has" if count == 1 else f"{count} open requests have"
    return f"stopping: {requests} {server.settings.drain_s:g} s to finish; Ctrl-C again ends what is left at once"


def _received(signals: SimpleQueue[int]) -> bool:
    """Whether a signal came within the next moment; a wait without end could not be interrupted everywhere."""
    try:
        signals.get(timeout=POLL_S)
    except Empty:
        return False
    return True


def _drained(server: Server, signals: SimpleQueue[int]) -> bool:
    is_clean = True
    while not server.wait(POLL_S):
        if not signals.empty():
            signals.get()
            is_clean = False
            server.begin_close(0)
    return is_clean


@contextmanager
def server_signals(signals: SimpleQueue[int]) -> Iterator[None]:
    """Put SIGINT and SIGTERM into a queue while the body runs; the earlier handlers come back afterwards."""

    def note(number: int, _frame: object) -> None:
        signals.put(number)

    earlier = {number: signal.signal(number, note) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in earlier.items():
            signal.signal(number, handler)


def guide(url: str, about: Sequence[tuple[str, str]], has_keys: bool, model: str) -> str:
    """What a server is and how to point the usual clients at it. ``about`` holds (name, text) of further lines."""
    key = "YOUR_KEY" if has_keys else "none"
    head = " -H 'authorization: Bearer YOUR_KEY'" if has_keys else ""
    body = {"model": model, "max_tokens": 64, "messages": [{"role": "user", "content": "Hello"}]}
    post = f"-H 'content-type: application/json'{head} \\\n{' ' * 19}-d {shlex.quote(json.dumps(body))}"
    lines = [
        *about,
        ("Anthropic SDKs", f"export ANTHROPIC_BASE_URL={url} ANTHROPIC_API_KEY={key}"),
        ("OpenAI SDKs", f"export OPENAI_BASE_URL={url}/v1 OPENAI_API_KEY={key}"),
        ("curl", f"curl {url}/v1/messages {post}"),
        ("", f"curl {url}/v1/chat/completions {post}"),
        ("health", f"{url}/health"),
        ("metrics", f"{url}/metrics{', with a key' if has_keys else ''}"),
    ]
    return "\n".join([f"llmlab serves at {url} (Ctrl-C stops it)\n", *(f"  {name:<16} {text}" for name, text in lines)])
