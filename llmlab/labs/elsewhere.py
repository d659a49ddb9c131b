"""A server in a process of its own, as one that belongs to somebody else: its address is all that is known of it."""

from __future__ import annotations

from llmlab.parallel.replicas import ReplicaProcess

START_S = 240.0


class Elsewhere:
    """``llmlab serve`` with these arguments, started by the constructor. Use it as a context manager, or close it.

    It ends with :meth:`close`, with this object, and with this process, however that ends. An interrupt of the notebook
    does not reach it. Raises ``ReplicaFailed`` when it does not start.
    """

    def __init__(self, *arguments: str, start_s: float = START_S) -> None:
        self._server = ReplicaProcess("the server", [*arguments, "--port", "0"])
        try:
            self._server.await_ready(start_s)
        except BaseException:
            self.close()
            raise

    @property
    def url(self) -> str:
        """Its address."""
        return self._server.url

    @property
    def pid(self) -> int:
        """The process."""
        return self._server.pid

    @property
    def is_running(self) -> bool:
        """Whether it has not ended."""
        return self._server.is_running

    def kill(self) -> None:
        """End it at once, in the middle of whatever it does."""
        self._server.kill()

    def close(self) -> None:
        """End it and wait for that; more than once does no harm."""
        self._server.close()

    def __enter__(self) -> Elsewhere:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<Server elsewhere: {self.url if self.is_running else 'ended'}>"


def server_arguments(model: str, upstream: str = "") -> tuple[str, ...]:
    """Arguments for a server of ``model``, or where ``upstream`` is an address for a gateway before that one.

    Faults on purpose are allowed, and cached tokens are counted without being marked.
    """
    rest = ("--allow-faults", "--drain", "0")
    if upstream:
        return ("--no-engine", "--upstream", upstream, *rest)
    return ("--model", model, "--dtype", "float32", "--cache-accounting", "engine", *rest)
