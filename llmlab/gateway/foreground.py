"""Running a server until somebody stops it with a signal."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from queue import Empty, SimpleQueue

from llmlab.gateway.server import Server

POLL_S = 0.2


def run_forever(server: Server, say: Callable[[str], None] = print) -> bool:
    """Start ``server`` and serve until SIGINT or SIGTERM; must be called from the main thread.

    The first signal lets open requests finish for ``settings.drain_s`` seconds, the second ends them at once. Returns
    whether one signal was enough. Raises what :meth:`Server.start` raises.
    """
    signals: SimpleQueue[int] = SimpleQueue()
    with server_signals(signals):
        server.start()
        say(guide(server.url, has_keys=bool(len(server.gateway.keys))))
        while not _received(signals) and server.is_running:
            pass
        say(f"stopping: open requests have {server.settings.drain_s:g} s; Ctrl-C again ends them now")
        server.begin_close()
        return _drained(server, signals)


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


def guide(url: str, has_keys: bool) -> str:
    """How to point the usual clients at a server."""
    key = "YOUR_KEY" if has_keys else "none"
    return f"""llmlab serves at {url} (Ctrl-C stops it)

  Anthropic SDKs   export ANTHROPIC_BASE_URL={url} ANTHROPIC_API_KEY={key}
  OpenAI SDKs      export OPENAI_BASE_URL={url}/v1 OPENAI_API_KEY={key}
  curl             curl {url}/v1/messages -H 'content-type: application/json'{" -H 'x-api-key: YOUR_KEY'" * has_keys} \\
                     -d '{{"model": "any", "max_tokens": 64, "messages": [{{"role": "user", "content": "Hello"}}]}}'
  metrics          {url}/metrics"""
