"""Several servers of one model behind one gateway: ``n`` processes of ``llmlab serve``, and who of them is asked."""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
import threading
import weakref
from contextlib import ExitStack
from pathlib import Path
from time import monotonic
from typing import IO, Any

from llmlab.errors import InvalidParameter, ReplicaFailed
from llmlab.gateway.balancing import ROUTINGS
from llmlab.models.catalogue import DEFAULT_MODEL
from llmlab.parallel.process import end, importable, last_words
from llmlab.trace.trace import Trace

START_S = 300.0
ADDRESS = re.compile(r"serves at (http://\S+)")
OURS = frozenset({"model", "port", "host", "keys", "engine", "routing", "upstream"})
"""Options of ``llmlab serve`` that are settled here: the gateway before the servers has no key for them, for one."""


class Replicas:
    """``n`` servers, each with its own process, pool and prefix cache, and a gateway in this process before them.

    ``options`` are those of ``llmlab serve`` as keywords (``num_blocks=512``, ``prefix_cache=False``), the same for
    all; ``routing`` is how the gateway chooses. Use it as a context manager: :attr:`url` is the gateway's address, and
    :meth:`gateway` opens another one with another routing before the same servers. When one of them is killed the
    gateway goes on with the others. All end with :meth:`close`, with this object, and with this process.

    Raises ``InvalidParameter``, and ``ReplicaFailed`` when a server does not come up.
    """

    def __init__(
        self, n: int, model: str | Path = DEFAULT_MODEL, *, routing: str = "least_loaded", **options: Any
    ) -> None:
        if type(n) is not int or n < 1:
            raise InvalidParameter(f"n={n!r} must be an integer of at least 1")
        if routing not in ROUTINGS:
            raise InvalidParameter(f"routing={routing!r} must be one of {', '.join(ROUTINGS)}")
        arguments = ["--port", "0", "--model", str(model), *_arguments(options)]
        self.routing = routing
        self._stack = ExitStack()
        self._servers: list[ReplicaProcess] = []
        try:
            self._servers = [ReplicaProcess(f"replica {i}", arguments) for i in range(n)]
            for server in self._servers:
                server.await_ready()
            self._front = self._stack.enter_context(self.gateway(routing))
        except BaseException:
            self.close()
            raise

    @property
    def url(self) -> str:
        """Address of the gateway."""
        return self._front.url

    @property
    def urls(self) -> list[str]:
        """Addresses of the servers themselves."""
        return [server.url for server in self._servers]

    @property
    def pids(self) -> list[int]:
        """Process ids of the servers."""
        return [server.pid for server in self._servers]

    @property
    def trace(self) -> Trace:
        """What the gateway recorded: every exchange, where it was sent, and why."""
        return Trace(self._front.gateway.recorder.snapshot())

    def gateway(self, routing: str) -> Any:
        """A further gateway before the same servers, to be used as a context manager; ``.url`` is its address."""
        from llmlab.gateway.app import Gateway
        from llmlab.gateway.server import Server
        from llmlab.gateway.settings import Settings
        from llmlab.gateway.upstream import upstream_backends
        from llmlab.trace.recorder import Recorder

        recorder = Recorder()
        settings = Settings(port=0, drain_s=0, routing=routing)
        return Server(Gateway(upstream_backends(self.urls, recorder), settings, recorder))

    def close(self) -> None:
        """End the gateway, then the servers. Harmless when done before."""
        self._stack.close()
        for server in self._servers:
            server.close()

    def __enter__(self) -> Replicas:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<Replicas {len(self._servers)} behind {self.url}, {self.routing}>"


class ReplicaProcess:
    """A server in a process of its own, held by its standard input."""

    def __init__(self, name: str, arguments: list[str]) -> None:
        self.name, self.url = name, ""
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 (closed with the process)
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", "llmlab.parallel.replica_worker", *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            env=importable(),
            start_new_session=True,
        )
        self._started = threading.Event()
        reader = threading.Thread(target=_read, args=(self._process.stdout, weakref.ref(self)), daemon=True)
        reader.start()
        self._end = weakref.finalize(self, _end, self._process, self._errors)

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    @property
    def is_running(self) -> bool:
        """Whether it has not ended."""
        return self._process.poll() is None

    def await_ready(self, start_s: float = START_S) -> None:
        """Return once it listens. Raises ``ReplicaFailed``."""
        deadline = monotonic() + start_s
        while not self._started.wait(0.2):
            if not self.is_running or monotonic() > deadline:
                break
        if not self.url:
            raise ReplicaFailed(f"{self.name} did not come up: {last_words(self._errors) or 'it said nothing'}")

    def heard(self, line: str) -> None:
        """A line of its output; the first address in it is where it serves."""
        if not self.url and (found := ADDRESS.search(line)):
            self.url = found[1]
            self._started.set()

    def heard_all(self) -> None:
        """Its output has ended."""
        self._started.set()

    def kill(self) -> None:
        """End it at once, in the middle of whatever it does."""
        self._process.kill()
        self._process.wait()

    def close(self) -> None:
        """End it and wait for that; more than once does no harm."""
        self._end()


def _read(stdout: IO[bytes], reference: weakref.ref[ReplicaProcess]) -> None:
    """Take its output until it ends, so that it never waits to be read."""
    with stdout:
        for line in stdout:
            if (server := reference()) is not None:
                server.heard(line.decode(errors="replace"))
            del server
    if (server := reference()) is not None:
        server.heard_all()


def _end(process: subprocess.Popen, errors: IO[bytes]) -> None:
    end(process)
    errors.close()


def _arguments(options: dict[str, Any]) -> list[str]:
    """Keywords as the command line wants them. Raises ``InvalidParameter`` for one that ``llmlab serve`` lacks."""
    from typer.main import get_command

    from llmlab.cli import app
    from llmlab.option_names import check_option_names

    known = {option.name: option for option in get_command(app).commands["serve"].params}
    check_option_names(options, set(known) - OURS, "a replica")
    return [word for name, value in options.items() if value is not None for word in _words(known[name], value)]


def _words(option: Any, value: Any) -> list[str]:
    """One option; a switch that can only be turned on is left out where it is off."""
    if isinstance(value, bool):
        return (option.opts if value else option.secondary_opts)[:1]
    return [option.opts[0], str(value)]
