"""The prefill process: ``python -m llmlab.parallel.prefill_worker``, started by the process that decodes.

Its first line of input says where to connect and what to open. It ends when that connection ends, whatever it does.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

from llmlab.engine.run import POLL_S, Run
from llmlab.errors import LabError
from llmlab.parallel.kv_link import Buffer, Channel
from llmlab.parallel.kv_link_memory import SharedMemory


def main() -> None:
    """Connect, open the model, serve prompts until the connection ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a Ctrl-C in the terminal is for the process that started this one
    settings = json.loads(sys.stdin.readline())
    channel = Channel(socket.create_connection(("127.0.0.1", settings["port"])))
    channel.send({"type": "hello", "secret": settings["secret"], "pid": os.getpid()})
    worker = Worker(channel, settings)
    threading.Thread(target=worker.listen, name="llmlab-prefill-listen", daemon=True).start()
    try:
        worker.open()
    except Exception as error:
        channel.send({"type": "unusable", "reason": f"{type(error).__name__}: {error}"})
        os._exit(1)
    worker.work()


class Worker:
    """Reads messages on one thread and steps the engine on the main one."""

    def __init__(self, channel: Channel, settings: dict[str, Any]) -> None:
        self._channel, self._settings = channel, settings
        fd = settings["memory"]
        self._memory = None if fd is None else SharedMemory(fd)
        self._runs: dict[str, Run] = {}

    def open(self) -> None:
        """Load the model, as the other process did, and tell the shape of its K/V."""
        import llmlab
        from llmlab.parallel.kv_link_blocks import block_port
        from llmlab.parallel.prefill_engine import PrefillEngine

        options = self._settings["options"]
        lab = llmlab.open(self._settings["model"], **options, background=False, record=False)
        runner, port = lab.engine.runner, block_port(lab.engine.runner)
        self._engine = PrefillEngine(
            runner,
            lab.tokenizer,
            config=lab.engine.scheduler.config,
            prefix_cache=options["prefix_cache"],
            port=port,
            say=self._say,
        )
        self._channel.send({"type": "ready", "dtype": runner.dtype, "block_bytes": port.nbytes(1)})

    def work(self) -> None:
        """Step on the engine's own thread. The listening thread ends the process, or a mistake in a step does."""
        self._engine.start()
        while not self._engine.has_failed:
            time.sleep(POLL_S)
        os._exit(1)

    def _say(self, header: dict[str, Any], payload: Buffer) -> None:
        if header["type"] in ("done", "dropped"):
            self._runs.pop(header["id"], None)
        try:
            self._channel.send(header, payload)
        except OSError:
            os._exit(0)

    def listen(self) -> None:
        """Take messages until the connection ends."""
        while (frame := self._channel.receive()) is not None:
            header, _ = frame
            if header["type"] == "prefill":
                self._prefill(header)
            elif header["type"] == "abort" and (run := self._runs.get(header["id"])):
                run.abort()
        os._exit(0)

    def _prefill(self, header: dict[str, Any]) -> None:
        name = header["id"]
        try:
            arguments = name, header["tokens"], header["salt"], header["priority"], self._place(header["place"])
            self._runs[name] = run = self._engine.prefill(*arguments)
            if run.finished:  # it was answered before it was noted here
                self._runs.pop(name, None)
        except LabError as error:
            self._say({"type": "dropped", "id": name, "reason": str(error)}, b"")

    def _place(self, place: list[int] | None) -> Callable[[], Buffer] | None:
        return None if place is None else lambda: self._memory.map((place[0], place[1]))


if __name__ == "__main__":
    main()
