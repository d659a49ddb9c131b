"""The process that computes prompts, seen from the one that decodes: started, spoken to, ended on every path."""

from __future__ import annotations

import hmac
import json
import secrets
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from time import monotonic
from typing import Any, Literal

from llmlab.errors import InvalidParameter, PrefillLost
from llmlab.parallel.kv_link import Buffer, Channel
from llmlab.parallel.kv_link_memory import SharedMemory
from llmlab.parallel.process import importable

Medium = Literal["shared memory", "socket"]
MEDIA = ("shared memory", "socket")
OPEN_S, END_S, POLL_S = 300.0, 3.0, 0.2
MAX_HELLO = 4096
"""Bytes of a frame from somebody who has not yet shown the secret."""

Hear = Callable[["PrefillProcess", dict[str, Any], Buffer], None]


@dataclass(frozen=True, slots=True)
class PrefillSettings:
    """What the prefill process opens, as arguments of :func:`llmlab.open`, and what carries K/V from it."""

    model: str
    options: dict[str, Any]
    medium: Medium = "shared memory"

    def __post_init__(self) -> None:
        if self.medium not in MEDIA:
            raise InvalidParameter(f"disaggregated={self.medium!r} must be True, False, 'shared memory' or 'socket'")
        if self.medium == "shared memory" and sys.platform == "win32":
            raise InvalidParameter("disaggregated='shared memory' needs inherited file descriptors: use 'socket' here")


class PrefillProcess:
    """A child process on one connection.

    ``hear(process, header, payload)`` gets its messages, ``{"type": "lost"}`` as the last, on a thread of their own; it
    should not keep this object's owner alive. The connection is made over loopback: the child proves itself with a
    secret, and the port closes before anything else is said.
    Raises ``PrefillLost`` when the child cannot open the model or does not come up.
    """

    def __init__(self, settings: PrefillSettings, hear: Hear) -> None:
        self.medium, self.is_lost = settings.medium, False
        self.memory = SharedMemory.create() if settings.medium == "shared memory" else None
        self._child: subprocess.Popen | None = None
        self._channel: Channel | None = None
        try:
            self._channel = self._connect(settings)
            self.block_bytes = self._await_ready()
        except BaseException:
            self.close()
            raise
        self._reader = threading.Thread(target=self._listen, args=(hear,), name="llmlab-prefill", daemon=True)
        self._reader.start()

    @property
    def pid(self) -> int:
        """Process id of the child."""
        return self._child.pid

    # -- start ----------------------------------------------------------------------------------------------

    def _connect(self, settings: PrefillSettings) -> Channel:
        secret = secrets.token_hex(16)
        with socket.create_server(("127.0.0.1", 0)) as door:
            door.settimeout(POLL_S)
            self._spawn(settings, secret, door.getsockname()[1])
            deadline = monotonic() + OPEN_S
            while True:
                self._check_alive(deadline)
                try:
                    connection, _ = door.accept()
                except TimeoutError:
                    continue
                if channel := _admitted(connection, secret):
                    return channel

    def _spawn(self, settings: PrefillSettings, secret: str, port: int) -> None:
        fds = () if self.memory is None else (self.memory.fd,)
        # -P: a file of the user's folder must not stand in for a module of the library
        command = [sys.executable, "-P", "-m", "llmlab.parallel.prefill_worker"]
        self._child = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, pass_fds=fds, env=importable()
        )
        said = {"port": port, "secret": secret, "model": settings.model, "options": settings.options}
        said["memory"] = None if self.memory is None else self.memory.fd
        try:
            with self._child.stdin as line:
                line.write(json.dumps(said).encode() + b"\n")
        except OSError as error:
            raise PrefillLost("the prefill process ended before it was told what to open") from error

    def _check_alive(self, deadline: float) -> None:
        if (status := self._child.poll()) is not None:
            raise PrefillLost(f"the prefill process ended with status {status} before it was ready: see its errors")
        if monotonic() > deadline:
            raise PrefillLost(f"the prefill process did not come up within {OPEN_S:.0f} seconds")

    def _await_ready(self) -> int:
        """Bytes of one block there, once the model is open."""
        frame = self._channel.receive()
        if frame is None:
            raise PrefillLost("the prefill process ended while it opened the model: see its errors")
        header, _ = frame
        if header["type"] != "ready":
            raise PrefillLost(f"the prefill process could not open the model: {header['reason']}")
        return header["block_bytes"]

    # -- talk -----------------------------------------------------------------------------------------------

    def send(self, header: dict[str, Any]) -> None:
        """Tell the child; what cannot be told to one that is gone is heard as ``lost``."""
        with suppress(OSError):  # the reading thread hears of it
            self._channel.send(header)

    def _listen(self, hear: Hear) -> None:
        while (frame := self._channel.receive()) is not None:
            hear(self, *frame)
        self.is_lost = True
        hear(self, {"type": "lost"}, b"")

    # -- end ------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """End the child, by force if need be. Harmless when done before."""
        self.is_lost = True
        if self._channel is not None:
            self._channel.close()
        if self._child is not None:
            _end(self._child)


def _admitted(connection: socket.socket, secret: str) -> Channel | None:
    """The connection as a channel, if whoever made it knows the secret."""
    connection.settimeout(END_S)
    channel = Channel(connection)
    frame = channel.receive(max_header=MAX_HELLO, max_payload=0)
    told = frame[0].get("secret") if frame else None
    if isinstance(told, str) and hmac.compare_digest(told.encode(), secret.encode()):
        connection.settimeout(None)
        return channel
    channel.close()
    return None


def _end(child: subprocess.Popen) -> None:
    for ask in (lambda: None, child.terminate, child.kill):
        ask()
        try:
            child.wait(END_S)
            return
        except subprocess.TimeoutExpired:
            continue
