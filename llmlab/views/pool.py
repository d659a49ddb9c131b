"""The K/V pool at a step, folded from its block events: block tables, hits, evictions, and the tokens stored."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from llmlab.trace.blocks import PoolReplay
from llmlab.trace.events import BlockEvent, Gap, Step
from llmlab.trace.index import Index

NOTHING = "No engine step is in this trace: submit a request to a lab (llmlab.open) and look at lab.trace."
GAINS = ("allocate", "hit", "share", "copy")


@dataclass(slots=True)
class Pool:
    """Blocks and block tables as the events applied so far left them.

    ``tables`` map a request to ``{place: block id}``; ``hits`` are the ``(request, place)`` that came from the prefix
    cache. ``reached`` are the tokens whose K/V a request holds, the ones of shared blocks included, and
    ``twice`` is how many of those are counted for more than one request. A shared block never grows (who writes to it
    copies it first), so ``fill`` remembers its tokens from when it was first shared.
    """

    index: Index
    block_size: int
    blocks: PoolReplay = field(default_factory=PoolReplay)
    tables: dict[str, dict[int, int]] = field(default_factory=dict)
    hits: set[tuple[str, int]] = field(default_factory=set)
    reached: dict[str, int] = field(default_factory=dict)
    fill: dict[int, int] = field(default_factory=dict)
    twice: int = 0

    def apply(self, event: BlockEvent) -> None:
        """Take one change over."""
        self.blocks.apply(event)
        if event.request_id is None:
            return
        if event.action in GAINS:
            self._gain(event, event.request_id)
        elif event.action == "free":
            self._lose(event, event.request_id)

    def _gain(self, event: BlockEvent, request_id: str) -> None:
        before = self.tables.setdefault(request_id, {}).get(event.index)
        self.tables[request_id][event.index] = event.block_id
        if event.action == "hit":
            self.hits.add((request_id, event.index))
        elif event.action == "share":
            self.reached[request_id] = self.index.num_shared(request_id)
        elif event.action == "copy":
            if before is not None:  # else the first tokens of a cached block were copied, which it never held
                self._unshare(event.source_id)
            self.hits.discard((request_id, event.index))
        if event.ref_count > 1:
            reached = self.reached[request_id] if event.action == "share" else (event.index + 1) * self.block_size
            self.fill[event.block_id] = min(self.block_size, reached - event.index * self.block_size)
            self.twice += self.fill[event.block_id]

    def _lose(self, event: BlockEvent, request_id: str) -> None:
        table = self.tables.get(request_id, {})
        table.pop(event.index, None)
        self.hits.discard((request_id, event.index))
        if not table:
            self.tables.pop(request_id, None)
            self.reached.pop(request_id, None)
        if event.ref_count:
            self._unshare(event.block_id)

    def _unshare(self, block_id: int | None) -> None:
        self.twice -= self.fill.get(block_id, 0)

    def compute(self, step: Step) -> None:
        """Take over how far the requests of a step have come; draft tokens that were not kept do not count."""
        for row in step.rows:
            if row.request_id in self.tables:
                self.reached[row.request_id] = row.start + row.num_tokens - row.num_rejected

    @property
    def num_used(self) -> int:
        """Blocks in at least one table."""
        return self.blocks.tally["in use"] + self.blocks.tally["shared"]

    @property
    def num_tokens(self) -> int:
        """Tokens whose K/V the pool holds for running requests, those in shared blocks once."""
        return sum(self.reached.values()) - self.twice

    def table(self, request_id: str) -> list[int]:
        """Block ids of a request in the order of its positions."""
        return [block for _, block in sorted(self.tables.get(request_id, {}).items())]


def known_events(index: Index) -> Sequence[BlockEvent]:
    """The block events after the last gap: what came before cannot be followed."""
    if not index.gaps:
        return index.blocks
    last = max(i for i, event in enumerate(index.events) if isinstance(event, Gap))
    return [event for event in index.events[last:] if isinstance(event, BlockEvent)]


def block_size(index: Index) -> int:
    """Tokens of a block, 1 when the trace does not say."""
    return index.info.block_size if index.info else 1


def pool_after(index: Index, step: int) -> Pool:
    """The pool as ``step`` left it."""
    pool, steps, done = Pool(index, block_size(index)), index.steps, 0
    for event in known_events(index):
        if event.step > step:
            continue
        while done < len(steps) and steps[done].step < event.step:
            pool.compute(steps[done])
            done += 1
        pool.apply(event)
    for late in steps[done:]:
        if late.step <= step:
            pool.compute(late)
    return pool


def pool_per_step(index: Index) -> Iterator[tuple[Step, Pool]]:
    """Every step with the pool when its blocks were allocated and its positions computed: what ``Step.used`` counts.

    It is one pool that changes from step to step.
    """
    pool, events, done = Pool(index, block_size(index)), known_events(index), 0
    for step in index.steps:
        while done < len(events) and events[done].t_ns <= step.build_ns:
            pool.apply(events[done])
            done += 1
        pool.compute(step)
        yield step, pool
