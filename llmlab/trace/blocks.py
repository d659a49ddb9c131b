"""The state of the block pool at any step, rebuilt by replaying block events."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

import pandas as pd

from llmlab.errors import InvalidParameter
from llmlab.trace.columns import integers, objects, table
from llmlab.trace.events import BlockEvent, Gap
from llmlab.trace.index import Index

MAX_BLOCKS = 1_000_000


@dataclass(slots=True)
class BlockState:
    """One block: how many tables hold it, whose they are, and its hash while it has one."""

    ref_count: int = 0
    owners: list[str] = field(default_factory=list)
    hash: str = ""

    @property
    def name(self) -> str:
        """``free``, ``cached``, ``in use`` or ``shared``."""
        if self.ref_count:
            return "shared" if self.ref_count > 1 else "in use"
        return "cached" if self.hash else "free"


@dataclass(slots=True)
class PoolReplay:
    """Blocks by id, as the events applied so far left them; blocks without an event are not in ``blocks``.

    ``tally`` counts these blocks by state, ``held`` the blocks of each request.
    """

    blocks: dict[int, BlockState] = field(default_factory=dict)
    tally: Counter[str] = field(default_factory=Counter)
    held: Counter[str] = field(default_factory=Counter)

    def apply(self, event: BlockEvent) -> BlockState:
        """Take one change over and return the block's new state.

        A copy also takes the request's reference away from the block it was copied from.
        """
        block = self.blocks.get(event.block_id)
        if block is None:
            block = self.blocks[event.block_id] = BlockState()
            self.tally[block.name] += 1
        self.tally[block.name] -= 1
        block.ref_count = event.ref_count
        block.hash = "" if event.action == "evict" else event.hash
        if event.action in ("allocate", "hit", "share", "copy") and event.request_id is not None:
            block.owners.append(event.request_id)
            self.held[event.request_id] += 1
        elif event.action == "free":
            self._disown(block, event.request_id)
        self.tally[block.name] += 1
        if event.action == "copy":
            self._leave_source(event)
        return block

    def _disown(self, block: BlockState, request_id: str | None) -> bool:
        if request_id not in block.owners:
            return False
        block.owners.remove(request_id)
        self.held[request_id] -= 1
        return True

    def _leave_source(self, event: BlockEvent) -> None:
        source = self.blocks.get(event.source_id)
        if source and self._disown(source, event.request_id):
            self.tally[source.name] -= 1
            source.ref_count -= 1
            self.tally[source.name] += 1

    def counts(self, num_blocks: int) -> tuple[int, int, int]:
        """``(free, cached, used)`` of a pool that began empty."""
        used, cached = self.tally["in use"] + self.tally["shared"], self.tally["cached"]
        return num_blocks - used - cached, cached, used


def replay(events: Iterable[object], last_step: int) -> tuple[PoolReplay, bool]:
    """The pool after the events of ``last_step``, and whether the replay is complete (no ``Gap`` in it).

    After a gap only blocks with newer events are known.
    """
    pool, complete = PoolReplay(), True
    for event in events:
        if isinstance(event, Gap):
            pool, complete = PoolReplay(), False
        elif isinstance(event, BlockEvent) and event.step <= last_step:
            pool.apply(event)
    return pool, complete


def all_blocks(index: Index, pool: PoolReplay) -> list[int]:
    """Ids of every block, ascending. Raises ``InvalidParameter`` for a pool that is too large to list: what a file
    claims."""
    size = index.info.num_blocks if index.info else 0
    if size > MAX_BLOCKS:
        raise InvalidParameter(f"the pool has {size:,} blocks: more than {MAX_BLOCKS:,} are not listed one by one")
    return sorted({*range(size), *pool.blocks})


def block_map(index: Index, step: int) -> pd.DataFrame:
    """One row per block of the pool, as ``step`` left it; columns in :mod:`llmlab.trace.columns`."""
    pool, complete = replay(index.events, step)
    untouched = "free" if complete and not index.only else "unknown"
    ids = all_blocks(index, pool)
    states = [pool.blocks.get(i) for i in ids]
    return table(
        "block_map",
        {
            "block_id": ids,
            "state": objects([s.name if s else untouched for s in states]),
            "ref_count": integers([s.ref_count if s else (0 if untouched == "free" else None) for s in states]),
            "owners": objects([tuple(s.owners) if s else () for s in states]),
            "hash": objects([s.hash if s else "" for s in states]),
        },
    )
