"""Messages between two processes of one machine: a JSON header and, where there is one, raw bytes.

A frame is two big-endian lengths (4 and 8 bytes), the header and the payload. Nothing that arrives is executed or
unpickled; a header that is not a JSON object ends the connection.
"""

from __future__ import annotations

import json
import mmap
import socket
import struct
import threading
from contextlib import suppress
from typing import Any

LENGTHS = struct.Struct(">IQ")
MAX_HEADER, MAX_PAYLOAD = 2**26, 2**40

Buffer = bytes | bytearray | memoryview | mmap.mmap


class Channel:
    """One end of a connected stream socket. Any thread may send; one thread receives."""

    def __init__(self, connection: socket.socket) -> None:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._socket = connection
        self._sending = threading.Lock()

    def send(self, header: dict[str, Any], payload: Buffer = b"") -> None:
        """Send one frame. Raises ``OSError`` when the other side is gone."""
        head = json.dumps(header, allow_nan=False).encode()
        body = memoryview(payload).cast("B")
        with self._sending:
            self._socket.sendall(LENGTHS.pack(len(head), len(body)) + head)
            if len(body):
                self._socket.sendall(body)

    def receive(
        self, max_header: int = MAX_HEADER, max_payload: int = MAX_PAYLOAD
    ) -> tuple[dict[str, Any], bytearray] | None:
        """The next frame; ``None`` when the other side has closed, died, or sent what is no frame or a longer one."""
        try:
            head_size, body_size = LENGTHS.unpack(self._read(LENGTHS.size))
            if head_size > max_header or body_size > max_payload:
                return None
            header = json.loads(bytes(self._read(head_size)))
            return (header, self._read(body_size)) if isinstance(header, dict) else None
        except (OSError, EOFError, ValueError, RecursionError, MemoryError):
            return None

    def _read(self, size: int) -> bytearray:
        data = bytearray(size)
        view, done = memoryview(data), 0
        while done < size:
            count = self._socket.recv_into(view[done:])
            if not count:
                raise EOFError
            done += count
        return data

    def close(self) -> None:
        """End the connection; a thread that receives on it gets ``None``."""
        with suppress(OSError):  # the other side may have been faster
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
