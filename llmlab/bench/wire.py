"""What HTTP, validation and server-sent events add to a request and to a token, beside the engine alone.

Both sides run on the model without weights in one serving process, in turns: once through the gateway from another
process, once by submitting to the engine directly. The figures are differences of medians.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from statistics import median
from typing import TYPE_CHECKING, Any

from llmlab.bench.process import SHUTDOWN_S, environment
from llmlab.bench.wire_client import ANTHROPIC, OPENAI, Target, stream
from llmlab.errors import BenchError

if TYPE_CHECKING:
    from rich.table import Table

STREAMS, TOKENS, SINGLES = 8, 128, 40
REQUEST_TARGET_MS, TOKEN_TARGET_MS = 2.0, 0.2
ENDPOINTS = {"anthropic": ANTHROPIC, "openai": OPENAI}


@dataclass(slots=True)
class WireFigures:
    """Seconds per request of one endpoint and of the engine alone: one-token requests, and long ones at 8 streams."""

    single: list[float] = field(default_factory=list)
    single_direct: list[float] = field(default_factory=list)
    long: list[float] = field(default_factory=list)
    long_direct: list[float] = field(default_factory=list)

    @property
    def request_ms(self) -> float:
        """Milliseconds the wire adds to a request of one token."""
        return 1e3 * (median(self.single) - median(self.single_direct))

    @property
    def step_ms(self) -> float:
        """Milliseconds the wire adds between two tokens of one stream while 8 streams run."""
        return 1e3 * (median(self.long) - median(self.long_direct)) / TOKENS

    @property
    def token_ms(self) -> float:
        """:attr:`step_ms` shared by the 8 tokens that a step gives."""
        return self.step_ms / STREAMS


def measure_wire(rounds: int) -> dict[str, WireFigures]:
    """Figures by endpoint. The first round warms up and is not counted."""
    figures = {name: WireFigures() for name in ENDPOINTS}
    with _server() as server:
        for i in range(rounds + 1):
            for name, target in ENDPOINTS.items():
                _round(server, target, WireFigures() if i == 0 else figures[name])
    return figures


def _round(server: _Server, target: Target, figures: WireFigures) -> None:
    single = {"streams": 1, "tokens": 1, "requests": SINGLES}
    long = {"streams": STREAMS, "tokens": TOKENS, "requests": 2}
    figures.single_direct += server.direct(single)
    figures.single += asyncio.run(stream(server.url, target, **single))
    figures.long_direct += server.direct(long)
    figures.long += asyncio.run(stream(server.url, target, **long))


class _Server:
    """The parent's end of the serving process."""

    def __init__(self, process: subprocess.Popen) -> None:
        self._process = process
        self.url: str = self._read()["url"]

    def direct(self, work: dict[str, int]) -> list[float]:
        """Have the work done without HTTP."""
        self._process.stdin.write(json.dumps(work) + "\n")
        self._process.stdin.flush()
        return self._read()["seconds"]

    def _read(self) -> dict[str, Any]:
        line = self._process.stdout.readline()
        if not line:
            raise BenchError("the serving process of the wire benchmark died: see its output above")
        return json.loads(line)


@contextmanager
def _server() -> Iterator[_Server]:
    command = [sys.executable, "-m", "llmlab.bench.wire_server"]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment(1), encoding="utf-8"
    ) as process:
        try:
            yield _Server(process)
            process.stdin.close()
            process.wait(SHUTDOWN_S)
        finally:
            process.kill()


def wire_table(figures: dict[str, WireFigures]) -> Table:
    """Absolute figures, what the wire adds, and whether the targets are met; a column for each endpoint."""
    from rich.table import Table

    table = Table(title="the wire: model without weights, one serving process, medians", title_justify="left")
    table.add_column("")
    for name in figures:
        table.add_column(name, justify="right")
    for label, cell in _ROWS.items():
        table.add_row(label, *(cell(f) for f in figures.values()))
    return table


def _verdict(value: float, target: float) -> str:
    return f"< {target:g} ms: {'met' if value < target else 'missed'}"


_ROWS = {
    "1 token, engine alone": lambda f: f"{1e3 * median(f.single_direct):.2f} ms",
    "1 token, over HTTP": lambda f: f"{1e3 * median(f.single):.2f} ms",
    "added per request": lambda f: f"{f.request_ms:.2f} ms ({_verdict(f.request_ms, REQUEST_TARGET_MS)})",
    f"{STREAMS} streams x {TOKENS} tokens, engine alone": lambda f: f"{1e3 * median(f.long_direct):.0f} ms",
    f"{STREAMS} streams x {TOKENS} tokens, over HTTP": lambda f: f"{1e3 * median(f.long):.0f} ms",
    "added per token": lambda f: f"{f.token_ms:.3f} ms ({_verdict(f.token_ms, TOKEN_TARGET_MS)})",
    f"added per step of {STREAMS} tokens": lambda f: f"{f.step_ms:.2f} ms",
}


def wire_object(figures: dict[str, WireFigures]) -> dict[str, Any]:
    """All measurements as JSON types."""
    return {
        name: {
            "added_per_request_ms": f.request_ms,
            "added_per_step_ms": f.step_ms,
            "added_per_token_ms": f.token_ms,
            "single_s": f.single,
            "single_direct_s": f.single_direct,
            "long_s": f.long,
            "long_direct_s": f.long_direct,
        }
        for name, f in figures.items()
    }
