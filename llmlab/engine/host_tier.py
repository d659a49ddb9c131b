"""The second tier of K/V memory: blocks in host memory that preempted and evicted blocks are copied to.

Like the pool it knows integers only: it says which copies a step has to make (:class:`~llmlab.engine.plan.Swap`), and
the runner makes them. In every step all copies out come before anything is overwritten in the pool, and all copies in
after that; a host block that is read in a step stays held until the next one begins.
"""

from __future__ import annotations

from array import array
from collections import Counter, OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from llmlab.engine.block import Block, Hit, HostKey
from llmlab.engine.plan import Reason, Swap
from llmlab.engine.request import Request
from llmlab.engine.swap_policy import SwapPolicy

ITEM = array("q").itemsize
SHARED = ""  # the request id of a swap that is nobody's: an evicted cached block
KEPT = "evicted from the pool, kept to be found again"


@dataclass(slots=True, eq=False)
class HostBlock:
    """A block in host memory: how many hold it, and what it holds if others may find it."""

    id: int
    ref_count: int = 0
    key: HostKey | None = None


class HostTier:
    """Used blocks belong to preempted requests, cached ones can be found by their key, the rest is free.

    A key is the salt with *all* tokens up to the block's end, so equal keys mean equal K/V without any hash, and
    whichever prefix index the pool has.
    """

    def __init__(self, num_blocks: int, block_size: int, block_bytes: int, policy: SwapPolicy | None = None) -> None:
        self.block_size, self.block_bytes = block_size, block_bytes
        self.policy = policy or SwapPolicy()
        self.blocks = [HostBlock(i) for i in range(num_blocks)]
        self._unused: OrderedDict[int, None] = OrderedDict.fromkeys(range(num_blocks))
        self._by_key: dict[HostKey, int] = {}
        self._pinned: list[int] = []
        self._outs: list[Swap] = []
        self._ins: list[Swap] = []

    # -- counts -----------------------------------------------------------------------------------------------

    @property
    def num_blocks(self) -> int:
        """Blocks in the host pool."""
        return len(self.blocks)

    @property
    def num_used(self) -> int:
        """Blocks held by preempted requests, or read in the step under way."""
        return len(self.blocks) - len(self._unused)

    @property
    def num_cached(self) -> int:
        """Unused blocks that can be found."""
        return sum(self.blocks[i].key is not None for i in self._unused)

    # -- one step ---------------------------------------------------------------------------------------------

    def begin_step(self) -> None:
        """What the last step read may be overwritten from now on."""
        for block_id in self._pinned:
            self._drop(block_id)
        self._pinned = []

    def take_swaps(self) -> list[Swap]:
        """The copies of this step, those out of the pool first."""
        swaps, self._outs, self._ins = [*self._outs, *self._ins], [], []
        return swaps

    def pin(self, ids: Sequence[int]) -> None:
        """Hold host blocks until the next step begins."""
        for block_id in ids:
            self._hold(block_id)
        self._pinned += ids

    # -- out of the pool --------------------------------------------------------------------------------------

    def swap_out(self, request: Request, table: Sequence[int], findable: bool) -> Reason:
        """Copy a preempted request's blocks (``table``, ids in the pool) if that is cheaper than computing them again.

        Returns what is done. Blocks that are here already are not copied again.
        """
        weighed = self.policy.weigh(request.num_computed, 2 * len(table) * self.block_bytes)
        if not weighed.copies:
            return Reason.SWAP_NEVER if self.policy.mode == "never" else Reason.RECOMPUTE_CHEAPER
        keys = self._keys(request, len(table)) if findable and _shares(request) else [None] * len(table)
        known = [self._by_key.get(key) for key in keys]
        for block_id in known:
            if block_id is not None:
                self._hold(block_id)
        if known.count(None) > len(self._unused):
            for block_id in known:
                if block_id is not None:
                    self._drop(block_id)
            return Reason.HOST_FULL
        places = [self._take(key) if block_id is None else block_id for key, block_id in zip(keys, known, strict=True)]
        request.host_table, request.num_swapped = places, request.num_computed
        new = [i for i, block_id in enumerate(known) if block_id is None]
        if new:
            pairs = [(table[i], places[i]) for i in new]
            self._outs.append(Swap(request.id, True, pairs, self._positions(request, new), weighed.words))
        return Reason.SWAPPED

    def demote(self, block: Block) -> None:
        """Keep a cached block that is about to be evicted from the pool."""
        if block.key is None:
            return
        if block.key in self._by_key:
            place = self._by_key[block.key]
            if place in self._unused:
                self._unused.move_to_end(place)
            return
        weighed = self.policy.weigh(self.block_size, 2 * self.block_bytes)
        if weighed.copies and self._unused:
            place = self._take(block.key)
            self._drop(place)
            if not (self._outs and self._outs[-1].request_id == SHARED):
                self._outs.append(Swap(SHARED, True, [], 0, f"{KEPT}: {weighed.words}"))
            self._outs[-1].pairs.append((block.id, place))
            self._outs[-1].num_tokens += self.block_size

    # -- back into the pool -----------------------------------------------------------------------------------

    def look_up(self, request: Request, hit: Hit, findable: bool) -> None:
        """Add to what the pool has of a request's beginning what is here: its own blocks, else those of its prefix."""
        first = len(hit.blocks)
        if request.host_table:
            if first * self.block_size < request.num_swapped:
                hit.partial, hit.host, hit.host_end = None, request.host_table[first:], request.num_swapped
            return
        if not (findable and self._by_key and _shares(request)):
            return
        found = self._find_prefix(request, first)
        num_tokens = len(found) * self.block_size - hit.num_partial
        if num_tokens > 0 and self.policy.weigh(num_tokens, len(found) * self.block_bytes).copies:
            hit.partial, hit.host = None, found
            hit.host_end = (first + len(found)) * self.block_size

    def _find_prefix(self, request: Request, first: int) -> list[int]:
        """Ids of the blocks from block ``first`` on, the request's last token left to compute."""
        found, data, salt = [], _data(request), request.params.cache_salt
        step = self.block_size * ITEM
        for end in range((first + 1) * step, (len(request.tokens) - 1) * ITEM + 1, step):
            block_id = self._by_key.get((salt, data[:end]))
            if block_id is None:
                break
            found.append(block_id)
        return found

    def swap_in(self, request: Request, hit: Hit, targets: Sequence[int]) -> None:
        """Copy what was found to ``targets``, blocks of the pool. The host blocks are to be pinned already."""
        own = bool(request.host_table)
        pairs = list(zip(targets, hit.host, strict=True))
        num_tokens = hit.host_end - len(hit.blocks) * self.block_size
        weighed = self.policy.weigh(num_tokens, len(pairs) * self.block_bytes)
        why = "its own blocks" if own else "a prefix found in the host pool"
        self._ins.append(Swap(request.id, False, pairs, num_tokens, f"{why}: {weighed.words}"))

    def release(self, request: Request) -> None:
        """The request's blocks here are not needed any more: it goes on in the pool, or ended."""
        for block_id in reversed(request.host_table):
            self._drop(block_id)
        request.host_table, request.num_swapped = [], 0

    def fail(self, swaps: Iterable[Swap], waiting: Iterable[Request]) -> None:
        """A step failed before these copies out were made: what they should have held is not there."""
        lost = {place for swap in swaps if swap.is_out and not swap.end_ns for _, place in swap.pairs}
        for block_id in lost:
            self._forget(block_id)
        for request in waiting:
            if lost.intersection(request.host_table):
                self.release(request)

    # -- keys and references ----------------------------------------------------------------------------------

    def key_of(self, request: Request, end: int) -> HostKey:
        """Under which key the block is found that ends at position ``end``."""
        return request.params.cache_salt, array("q", request.tokens[:end]).tobytes()

    def _keys(self, request: Request, num_blocks: int) -> list[HostKey | None]:
        data, salt, step = _data(request), request.params.cache_salt, self.block_size * ITEM
        full = request.num_computed // self.block_size
        return [(salt, data[: (i + 1) * step]) if i < full else None for i in range(num_blocks)]

    def _positions(self, request: Request, blocks: Iterable[int]) -> int:
        """Computed positions in some blocks of a request."""
        size = self.block_size
        return sum(min(size, request.num_computed - i * size) for i in blocks)

    def _take(self, key: HostKey | None) -> int:
        block_id, _ = self._unused.popitem(last=False)
        self._forget(block_id)
        block = self.blocks[block_id]
        block.ref_count, block.key = 1, key
        if key is not None:
            self._by_key[key] = block_id
        return block_id

    def _forget(self, block_id: int) -> None:
        block = self.blocks[block_id]
        if block.key is not None:
            del self._by_key[block.key]
            block.key = None

    def _hold(self, block_id: int) -> None:
        block = self.blocks[block_id]
        if block.ref_count == 0:
            del self._unused[block_id]
        block.ref_count += 1

    def _drop(self, block_id: int) -> None:
        block = self.blocks[block_id]
        assert block.ref_count > 0, f"host block {block_id} freed twice"
        block.ref_count -= 1
        if block.ref_count == 0:
            self._unused[block_id] = None

    def check_integrity(self, waiting: Iterable[Request] = ()) -> None:
        """Assert that reference counts are those of the waiting requests and the last step, and keys are findable."""
        held = Counter(place for request in waiting for place in request.host_table)
        held.update(self._pinned)
        for block in self.blocks:
            assert block.ref_count == held[block.id], f"host block {block.id}: {block.ref_count} != {held[block.id]}"
            assert (block.ref_count == 0) == (block.id in self._unused), f"host block {block.id} used and unused"
            assert block.key is None or self._by_key[block.key] == block.id
        assert len(self._by_key) == sum(block.key is not None for block in self.blocks)
        assert not self._outs
        assert not self._ins


def _shares(request: Request) -> bool:
    """Whether the request's K/V is the same as that of others with its tokens, and may come from them."""
    return not (request.is_private or request.bypasses_cache or request.wants_prompt_logprobs)


def _data(request: Request) -> bytes:
    return array("q", request.tokens).tobytes()
