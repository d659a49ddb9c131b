"""Messages between a process and the one that started it: JSON lines over the child's standard input and output.

Pipes belong to the two processes alone, so nobody else can read them or write to them, and the child's end of input is
the parent's end, however that came about.
"""

from __future__ import annotations

import json
import os
import queue
import signal
import threading
from typing import Any, BinaryIO


class Channel:
    """The child's side. From its making on the process ends as soon as its parent does, or closes the channel.

    What the process prints goes to standard error. An interrupt from the keyboard is the parent's to handle.
    """

    def __init__(self) -> None:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        incoming, self._outgoing = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
        os.dup2(2, 1)
        self._messages: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
        threading.Thread(target=_listen, args=(incoming, self._messages), daemon=True).start()

    def receive(self) -> dict[str, Any]:
        """The parent's next message; waits for it."""
        return self._messages.get()

    def send(self, message: dict[str, Any]) -> None:
        """Tell the parent."""
        write(self._outgoing, message)


def write(stream: BinaryIO, message: dict[str, Any]) -> None:
    """One message as one line."""
    stream.write(json.dumps(message, separators=(",", ":")).encode() + b"\n")
    stream.flush()


def _listen(incoming: BinaryIO, messages: queue.SimpleQueue) -> None:
    try:
        for line in incoming:
            messages.put(json.loads(line))
    finally:  # also after half a line, of a parent that was killed while it wrote
        # the main thread may be anywhere, waiting for another process for one: nothing but this ends it for certain
        os._exit(0)
