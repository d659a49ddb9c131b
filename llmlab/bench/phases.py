"""What a long prompt does to requests that decode: in one process whole, in one in chunks, and in two processes.

A few streams decode; then a long prompt arrives. Every gap between two tokens of a stream is a time somebody waited.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median
from typing import TYPE_CHECKING, Any

import llmlab
from llmlab.engine.run import Run
from llmlab.errors import BenchError
from llmlab.lab import Lab
from llmlab.models.catalogue import DEFAULT_MODEL
from llmlab.trace.trace import Trace

if TYPE_CHECKING:
    from rich.table import Table

MODES = ("whole", "chunked", "split")
BEFORE, AFTER = 8, 8
"""Tokens of every stream before the long prompt arrives, and after its first token."""
WAIT_S = 300.0


@dataclass(frozen=True, slots=True)
class PhaseFigures:
    """One mode: the trace, the ids of the streams, and the id of the long prompt."""

    mode: str
    trace: Trace
    streams: tuple[str, ...]
    long: str

    @property
    def quiet_itl_ms(self) -> float:
        """Median milliseconds between two tokens of a stream before the long prompt was submitted."""
        begin, _ = self._window
        return median((b - a) / 1e6 for a, b in self._gaps() if b <= begin)

    @property
    def gaps_ms(self) -> list[float]:
        """Milliseconds between neighbouring tokens of the streams, of all gaps that touch the time from the long
        prompt's submission to its first token; ascending."""
        begin, end = self._window
        return sorted((b - a) / 1e6 for a, b in self._gaps() if a < end and b > begin)

    @property
    def tokens_meanwhile(self) -> int:
        """Tokens the streams got in that time."""
        begin, end = self._window
        return sum(begin < t <= end for times in self._times().values() for t in times)

    @property
    def ttft_ms(self) -> float:
        """Milliseconds from the long prompt's submission to its first token."""
        begin, end = self._window
        return (end - begin) / 1e6

    @property
    def _window(self) -> tuple[int, int]:
        first = next(token.t_ns for token in self.trace.index.tokens if token.request_id == self.long)
        return self.trace.index.submitted[self.long].t_ns, first

    def _times(self) -> dict[str, list[int]]:
        times: dict[str, list[int]] = {name: [] for name in self.streams}
        for token in self.trace.index.tokens:
            if token.request_id in times:
                times[token.request_id].append(token.t_ns)
        return times

    def _gaps(self) -> list[tuple[int, int]]:
        return [gap for times in self._times().values() for gap in pairwise(times)]


def measure_phases(
    model: str = DEFAULT_MODEL,
    modes: Sequence[str] = MODES,
    *,
    prompt_tokens: int = 1500,
    num_streams: int = 4,
    chunk: int = 128,
    progress: Callable[[str], None] = lambda _: None,
    **options: Any,
) -> list[PhaseFigures]:
    """Run the same arrivals in every mode, one lab after the other. ``options`` are those of :func:`llmlab.open`.

    ``split`` needs a second core for the other process to be of use: on one core the two take turns. Raises
    ``BenchError`` when a request ends before it was measured.
    """
    figures = []
    settings = {"threads": 1, "dtype": "float32", "num_blocks": 2 + 2 * prompt_tokens // 16} | options
    settings = settings if model != "mock" else {k: v for k, v in settings.items() if k != "dtype"}
    budget = {"whole": prompt_tokens + num_streams, "chunked": chunk, "split": chunk}
    for mode in modes:
        progress(mode)
        asked = settings | {"max_num_batched_tokens": budget[mode]}
        with llmlab.open(model, **asked, disaggregated=mode == "split") as lab:
            figures.append(_measure(lab, mode, prompt_tokens, num_streams))
    return figures


def _measure(lab: Lab, mode: str, prompt_tokens: int, num_streams: int) -> PhaseFigures:
    room = min(lab.engine.capacity.max_model_len, lab.engine.pool.num_blocks * 16 // num_streams)
    endless = {"max_tokens": room // 2, "ignore_eos": True}
    vocabulary = min(lab.engine.capacity.vocab_size, 250)
    lab.submit(_ids(64, 3, vocabulary), max_tokens=2).wait()  # what is made on the first request is not counted
    streams = [lab.submit(_ids(16, i, vocabulary), **endless) for i in range(num_streams)]
    _await(streams, BEFORE)
    long = lab.submit(_ids(prompt_tokens, 17, vocabulary), max_tokens=AFTER, ignore_eos=True)
    _await([long], 1)
    _await(streams, max(len(run.token_ids) for run in streams) + AFTER)
    for run in (*streams, long):
        run.abort()
    for run in (*streams, long):
        run.wait(WAIT_S)
    return PhaseFigures(mode, lab.trace, tuple(run.id for run in streams), long.id)


def _ids(length: int, start: int, vocabulary: int) -> list[int]:
    """Token ids that begin like no other prompt's."""
    return [(start * 31 + 7 * i + i * i) % (vocabulary - 1) + 1 for i in range(length)]


def _await(runs: Sequence[Run], num_tokens: int) -> None:
    deadline = time.monotonic() + WAIT_S
    while any(len(run.token_ids) < num_tokens for run in runs):
        if any(run.finished for run in runs) or time.monotonic() > deadline:
            raise BenchError(f"{runs[0]!r} or a neighbour ended before {num_tokens} tokens: use fewer prompt tokens")
        time.sleep(0.002)


def phase_table(figures: Sequence[PhaseFigures]) -> Table:
    """The figures for a terminal."""
    from rich.table import Table

    table = Table(title="A long prompt arrives while others decode")
    for name in ("prompt computed", "ITL before", "longest gap", "p90 gap", "tokens meanwhile", "its TTFT"):
        table.add_column(name, justify="left" if name == "prompt computed" else "right")
    names = {"whole": "here, whole", "chunked": "here, in chunks", "split": "by another process"}
    for each in figures:
        gaps = each.gaps_ms
        times = (each.quiet_itl_ms, gaps[-1], gaps[int(0.9 * (len(gaps) - 1))])
        shown = [f"{value:,.1f} ms" for value in times]
        table.add_row(names[each.mode], *shown, f"{each.tokens_meanwhile:,}", f"{each.ttft_ms:,.0f} ms")
    return table


def phase_object(figures: Sequence[PhaseFigures]) -> dict[str, Any]:
    """All measurements as JSON types."""
    return {
        each.mode: {
            "quiet_itl_ms": each.quiet_itl_ms,
            "gaps_ms": each.gaps_ms,
            "tokens_meanwhile": each.tokens_meanwhile,
            "ttft_ms": each.ttft_ms,
        }
        for each in figures
    }
