"""The K/V pool after a step: every block with its state and owner, and the block tables of the requests."""

from __future__ import annotations

from dataclasses import dataclass

import pandas as pd

from llmlab.errors import InvalidParameter, UnknownRequest
from llmlab.trace.blocks import BlockState, all_blocks
from llmlab.trace.trace import Trace
from llmlab.views.block_cells import MAX_DRAWN, draw_pool
from llmlab.views.block_tables import MAX_TABLES, draw_tables
from llmlab.views.glyphs import visible
from llmlab.views.host_cells import MAX_CELLS, draw_host
from llmlab.views.host_pool import HostPool, host_after
from llmlab.views.missing import missing_view
from llmlab.views.names import Names
from llmlab.views.phrases import count
from llmlab.views.pool import NOTHING, Pool, known_events, pool_after
from llmlab.views.scene import Scene
from llmlab.views.view import View

COLUMNS = ("block_id", "state", "ref_count", "owners", "hash", "evicted")
STATES = ("free", "cached", "in use", "shared", "unknown")
MAX_LISTED = 24


@dataclass(frozen=True, slots=True)
class PoolPicture:
    """What is drawn: the blocks of the pool in order of id, after ``step``; ``evicted`` since ``since``."""

    step: int
    since: int
    states: dict[int, BlockState | None]  # None: never touched, or not known
    untouched: str
    evicted: frozenset[int]
    pool: Pool
    names: Names
    focus: str | None
    host: HostPool | None = None

    def state(self, block_id: int) -> str:
        """One of ``STATES``."""
        state = self.states[block_id]
        return state.name if state else self.untouched

    def counts(self) -> dict[str, int]:
        """Blocks by state; they add up to the pool."""
        counts = dict.fromkeys(STATES, 0)
        for block_id in self.states:
            counts[self.state(block_id)] += 1
        return counts

    @property
    def when(self) -> str:
        """The steps whose evictions are marked."""
        only = self.since == self.step - 1
        return f"in step {self.step}" if only else f"in steps {self.since + 1} to {self.step}"

    @property
    def num_hashed(self) -> int:
        """Blocks whose content can be hit."""
        return sum(bool(state and state.hash) for state in self.states.values())

    def tables(self) -> list[str]:
        """Requests that hold blocks, in order of arrival; only the chosen one when one was chosen."""
        order = {request_id: i for i, request_id in enumerate(self.pool.index.request_ids)}
        holders = sorted(self.pool.tables, key=lambda i: order.get(i, len(order)))
        return [i for i in holders if self.focus in (None, i)]


def block_map(
    trace: Trace,
    step: int | None = None,
    *,
    request_id: str | None = None,
    since: int | None = None,
    width: float = 960,
) -> View:
    """Every block of the pool as ``step`` (default: the last) left it, and the block table of each request.

    Blocks are free (thin outline), cached (dashed: unused, their content can be hit), in use (filled, named after the
    request) or shared (double outline, with the number of tables that hold them). A corner mark says that the content
    is hashed, a bar below that the block was evicted after step ``since`` (default: the step before). With
    ``request_id`` the blocks of others are faint and only its table is shown. Beneath is the host pool, if there is
    one: blocks of requests that are swapped out, and others that were copied there.

    Raises ``InvalidParameter`` for a step outside the trace, ``UnknownRequest`` for a request that is not in it.
    """
    index = trace.index
    if index.info is None or not index.steps:
        return missing_view("block_map", "K/V blocks", NOTHING, COLUMNS, width)
    if request_id is not None and request_id not in index.code:
        known = ", ".join(map(visible, index.request_ids[:20])) or "no request"
        raise UnknownRequest(f"request {request_id!r} is not in the trace: it has {known}")
    picture = _picture(trace, _step(trace, step), since, request_id)
    return _view(trace, picture, width)


def _step(trace: Trace, step: int | None) -> int:
    numbers = trace.index.step_numbers
    if step is None:
        return int(numbers[-1])
    if not numbers[0] <= step <= numbers[-1]:
        raise InvalidParameter(f"step={step!r} is not in the trace: its steps are {numbers[0]} to {numbers[-1]}")
    return int(step)


def _picture(trace: Trace, step: int, since: int | None, focus: str | None) -> PoolPicture:
    index = trace.index
    since = step - 1 if since is None else since
    if since >= step:
        raise InvalidParameter(f"since={since!r} must be an earlier step than {step}")
    pool = pool_after(index, step)
    evictions = (e.block_id for e in known_events(index) if e.action == "evict" and since < e.step <= step)
    ids = all_blocks(index, pool.blocks)
    untouched = "unknown" if index.gaps or index.only else "free"
    states = {i: pool.blocks.blocks.get(i) for i in ids}
    return PoolPicture(
        step, since, states, untouched, frozenset(evictions), pool, Names(index), focus, host_after(index, step)
    )


def _view(trace: Trace, picture: PoolPicture, width: float) -> View:
    marks, height = draw_pool(picture, width)
    tables, total = draw_tables(picture, height + 22, width)
    if picture.host is not None:
        host, total = draw_host(picture.host, picture.names, total + 12, width)
        tables += host
    counts = picture.counts()
    said = ", ".join(f"{n} {state}" for state, n in counts.items() if n)
    alt = f"Pool of {len(picture.states)} K/V blocks after step {picture.step}: {said}."
    return View(
        "block_map",
        f"K/V blocks after step {picture.step}",
        alt,
        "\n".join([alt, *_facts(picture)]),
        Scene(width, total, (*marks, *tables)),
        _frame(picture),
        _notes(trace, picture),
    )


def _facts(picture: PoolPicture) -> list[str]:
    evicted = _listed(sorted(picture.evicted)) or "none"
    lines = [f"hashed: {picture.num_hashed}; evicted {picture.when}: {evicted}"]
    shared = [(i, s) for i, s in picture.states.items() if s and s.ref_count > 1]
    if shared:
        lines.append(f"shared: {_listed([f'{i} by {s.ref_count}' for i, s in shared])}")
    for request_id in picture.tables():
        table = picture.pool.table(request_id)
        num_hits = sum(r == request_id for r, _ in picture.pool.hits)
        hits = f", first {num_hits} from the prefix cache" if num_hits else ""
        tokens = picture.pool.reached.get(request_id, 0)
        lines.append(
            f"{visible(request_id)}: {count(len(table), 'block')}, {count(tokens, 'token')}{hits}: {_listed(table)}"
        )
    if not picture.tables():
        who = "no request holds" if picture.focus is None else f"{visible(picture.focus)} does not hold"
        lines.append(f"{who} any block")
    return lines if picture.host is None else [*lines, *picture.host.facts()]


def _listed(items: list) -> str:
    """Items in a row; of a long list the beginning and the end."""
    if len(items) <= MAX_LISTED:
        return ", ".join(map(str, items))
    half = MAX_LISTED // 2
    left_out = len(items) - 2 * half
    return ", ".join([*map(str, items[:half]), f"… {left_out} more …", *map(str, items[-half:])])


def _frame(picture: PoolPicture) -> pd.DataFrame:
    states = picture.states
    unknown = pd.NA if picture.untouched == "unknown" else 0
    return pd.DataFrame(
        {
            "block_id": list(states),
            "state": [picture.state(i) for i in states],
            "ref_count": pd.array([s.ref_count if s else unknown for s in states.values()], dtype="Int64"),
            "owners": pd.Series([tuple(s.owners) if s else () for s in states.values()], dtype=object),
            "hash": pd.Series([s.hash if s else "" for s in states.values()], dtype=object),
            "evicted": [i in picture.evicted for i in states],
        }
    )


def _notes(trace: Trace, picture: PoolPicture) -> tuple[str, ...]:
    notes = []
    if trace.index.gaps:
        notes.append("Events were lost: blocks without a later event are unknown.")
    if trace.only:
        notes.append("This is a part of a trace: blocks that only other requests used are unknown.")
    if len(picture.states) > MAX_DRAWN:
        notes.append(f"The first {MAX_DRAWN:,} of {len(picture.states):,} blocks are drawn; the counts are of all.")
    if picture.host is not None and picture.host.size > MAX_CELLS:
        notes.append(f"The first {MAX_CELLS} of {picture.host.size:,} host blocks are drawn; the counts are of all.")
    if len(picture.tables()) > MAX_TABLES:
        notes.append(f"The block tables of the first {MAX_TABLES} of {len(picture.tables())} requests are drawn.")
    return tuple(notes)
