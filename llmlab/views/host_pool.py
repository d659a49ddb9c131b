"""The host pool as the recorded copies left it: which blocks hold K/V, for whom, and who waits with its K/V there."""

from __future__ import annotations

from dataclasses import dataclass, field

from llmlab.trace.index import Index
from llmlab.views.glyphs import visible
from llmlab.views.phrases import count

SWAPPED = "swapped out to the host pool"  # how the reason of such a preemption ends
ENDS = ("admitted", "finished", "aborted")


@dataclass(frozen=True, slots=True)
class HostPool:
    """``blocks`` maps a host block to the request it was copied for, empty for an evicted prefix; of the rest no copy
    is recorded. ``waiting`` are the requests that are swapped out."""

    size: int
    blocks: dict[int, str] = field(default_factory=dict)
    waiting: tuple[str, ...] = ()

    def held(self, block_id: int) -> bool:
        """Whether a block belongs to a request that is swapped out."""
        return self.blocks.get(block_id) in self.waiting

    @property
    def num_held(self) -> int:
        """Blocks that were copied for requests which wait for them."""
        return sum(map(self.held, self.blocks))

    def facts(self) -> list[str]:
        """The pool in words, in one or two lines."""
        kept = len(self.blocks) - self.num_held
        lines = [
            f"host pool of {count(self.size, 'block')}: {self.num_held} copied for requests that are swapped out, "
            f"{kept} hold what may be found again, {self.size - len(self.blocks)} without a recorded copy"
        ]
        if self.waiting:
            lines.append(f"swapped out: {', '.join(map(visible, self.waiting))}")
        return lines


def swapped_steps(index: Index) -> dict[str, list[tuple[int, int | None]]]:
    """For each request the steps in which its K/V waits in the host pool: first one, and the one that ends it."""
    found: dict[str, list[tuple[int, int | None]]] = {}
    since: dict[str, int] = {}
    for decision in index.decisions:
        request_id = decision.request_id
        if decision.action == "preempted" and decision.reason.endswith(SWAPPED):
            since[request_id] = decision.step
        elif decision.action in ENDS and request_id in since:
            found.setdefault(request_id, []).append((since.pop(request_id), decision.step))
    for request_id, first in since.items():
        found.setdefault(request_id, []).append((first, None))
    return found


def host_after(index: Index, step: int) -> HostPool | None:
    """The host pool as ``step`` left it; ``None`` where there is none."""
    if index.info is None or not index.info.num_host_blocks:
        return None
    blocks = {
        block: transfer.request_id
        for transfer in index.transfers
        if transfer.action == "swap_out" and transfer.step <= step
        for block in transfer.host_blocks
    }
    spans = swapped_steps(index)
    waiting = [i for i, parts in spans.items() if any(a <= step and (end is None or step < end) for a, end in parts)]
    return HostPool(index.info.num_host_blocks, blocks, tuple(waiting))
