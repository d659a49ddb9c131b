"""The block pool: who holds which K/V block, which prefixes can be shared, what is evicted next.

Three kinds of block: *used* (``ref_count > 0``, in some block table), *cached* (unused, but full and findable: a later
request with the same prefix can take it back) and *free*. ``free + cached + used = num_blocks`` always.
Everything unused sits in one list ordered by the moment it was given up; allocation takes the oldest, so the
list is free list and LRU at once, and a cached block is forgotten only when its memory is needed. What is findable,
and by which part of a prompt, is the business of a :class:`~llmlab.engine.prefix_index.PrefixIndex`.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Literal

from llmlab.engine.block import Block, Hit
from llmlab.engine.journal import Journal
from llmlab.engine.prefix_hash import ROOT, HashFn, HashIndex, hash_block
from llmlab.engine.prefix_index import PrefixIndex
from llmlab.engine.prefix_radix import RadixIndex
from llmlab.engine.request import Request
from llmlab.errors import InvalidParameter

if TYPE_CHECKING:
    from llmlab.engine.host_tier import HostTier

__all__ = ["ROOT", "Block", "BlockPool", "HashFn", "PrefixCache", "hash_block"]

PrefixCache = Literal["hash", "radix", "off"]


def make_index(prefix_cache: PrefixCache | bool, blocks: list[Block], size: int, hash_fn: HashFn) -> PrefixIndex | None:
    """The index of that name; ``True`` is the hash one. Raises ``InvalidParameter`` for another name."""
    match prefix_cache:
        case True | "hash":
            return HashIndex(blocks, size, hash_fn)
        case "radix":
            return RadixIndex(blocks, size)
        case False | "off":
            return None
    raise InvalidParameter(f"prefix_cache={prefix_cache!r} must be 'hash', 'radix' or 'off'")


class BlockPool:
    """Hands out blocks of ``block_size`` tokens and remembers full ones by content.

    A hit never covers the last token of a request, because its logits are needed. Blocks become findable only after
    they are computed. Two equal blocks computed side by side both stay; only the first is findable, so that tables only
    ever grow at the end. ``host`` is a second pool that evicted and preempted blocks can be copied to.
    """

    def __init__(
        self,
        num_blocks: int,
        block_size: int,
        *,
        prefix_cache: PrefixCache | bool = True,
        hash_fn: HashFn = hash_block,
        journal: Journal | None = None,
        host: HostTier | None = None,
    ) -> None:
        self.block_size = block_size
        self.blocks = [Block(i) for i in range(num_blocks)]
        self.index = make_index(prefix_cache, self.blocks, block_size, hash_fn)
        self._keeps_parts = self.index is not None and self.index.keeps_parts
        self.host = host
        self.journal = Journal() if journal is None else journal
        self._unused: OrderedDict[int, None] = OrderedDict.fromkeys(range(num_blocks))
        self._num_findable_unused = 0

    @property
    def prefix_cache(self) -> bool:
        """Whether computed prefixes can be found again."""
        return self.index is not None

    # -- counts ---------------------------------------------------------------------------------------------

    @property
    def num_blocks(self) -> int:
        """Blocks in the pool."""
        return len(self.blocks)

    @property
    def num_available(self) -> int:
        """Blocks that can be allocated now: free ones and cached ones."""
        return len(self._unused)

    @property
    def num_cached(self) -> int:
        """Unused blocks whose content can still be hit."""
        return self._num_findable_unused

    @property
    def num_free(self) -> int:
        """Unused blocks without findable content."""
        return len(self._unused) - self._num_findable_unused

    @property
    def num_used(self) -> int:
        """Blocks in at least one block table."""
        return len(self.blocks) - len(self._unused)

    def blocks_for(self, num_tokens: int) -> int:
        """Blocks that hold ``num_tokens`` positions."""
        return -(-num_tokens // self.block_size)

    # -- prefix cache ---------------------------------------------------------------------------------------

    def match(self, request: Request) -> list[Block]:
        """The longest run of whole cached blocks that begins the request and leaves its last token to compute."""
        return self.look_up(request).blocks

    def look_up(self, request: Request) -> Hit:
        """All that is known of the request's beginning, its last token left to compute."""
        hit = Hit()
        if self.index is not None and not (request.wants_prompt_logprobs or request.bypasses_cache):
            hit = self.index.match(request.tokens, request.params.cache_salt, len(request.tokens) - 1)
        if self.host is not None:
            self.host.look_up(request, hit, findable=self.index is not None)
        return hit

    def cost_of(self, hits: Iterable[Block], num_tokens: int) -> int:
        """Unused blocks that admitting a request takes: those it allocates and those its hits take back."""
        hits = list(hits)
        reclaimed = sum(block.ref_count == 0 for block in hits)
        return self.blocks_for(num_tokens) - len(hits) + reclaimed

    def register(self, request: Request) -> None:
        """Make the request's blocks findable that became full with computed tokens; call after the forward pass."""
        if self.index is None or request.is_private:
            return
        full = request.num_computed // self.block_size
        if len(request.chain) >= full:
            return
        first = self.index.anchored(request.chain)
        del request.chain[first:]
        for i in range(first, full):
            self._register_block(request, i)

    def _register_block(self, request: Request, i: int) -> None:
        block, end = self.blocks[request.block_table[i]], (i + 1) * self.block_size
        tokens, salt = tuple(request.tokens[end - self.block_size : end]), request.params.cache_salt
        was_known = bool(block.content)  # an earlier block's twin was evicted, and the chain is followed anew
        found = self.index.insert(request.chain, tokens, salt, block)
        if found is block and not was_known:
            if self.host is not None:
                block.key = self.host.key_of(request, end)
            self.journal.block(found.id, "cache", request.id, i, found.ref_count, found.digest)
        request.chain.append((found.content, found.digest))

    def _register_end(self, request: Request) -> None:
        """Make findable what the last, partly filled block holds."""
        full, part = divmod(request.num_computed, self.block_size)
        if not part or len(request.chain) != full or self.index.anchored(request.chain) != full:
            return
        block, end = self.blocks[request.block_table[full]], request.num_computed
        if block.ref_count > 1 or block.content:
            return
        tokens = tuple(request.tokens[end - part : end])
        if self.index.insert_part(request.chain, tokens, request.params.cache_salt, block):
            self.journal.block(block.id, "cache", request.id, full, block.ref_count, block.digest)

    def forget(self, block_ids: Iterable[int]) -> None:
        """Make blocks unfindable whose content cannot be trusted."""
        for block_id in block_ids:
            if self.blocks[block_id].content:
                self._forget(self.blocks[block_id])

    def _forget(self, block: Block) -> None:
        for gone, digest in self.index.forget(block):
            gone.key = None
            self._num_findable_unused -= gone.ref_count == 0
            self.journal.block(gone.id, "evict", None, -1, gone.ref_count, digest)

    # -- ownership ------------------------------------------------------------------------------------------

    def share(self, request: Request, hits: Sequence[Block]) -> None:
        """Begin the request's block table with the blocks of a prefix hit."""
        for i, block in enumerate(hits):
            self._hold(block)
            self.journal.block(block.id, "hit", request.id, i, block.ref_count, block.digest)
        request.block_table = [block.id for block in hits]
        request.chain = [(block.content, block.digest) for block in hits]

    def take_hit(self, request: Request, hit: Hit) -> tuple[int, int] | None:
        """Begin the request's block table with what was found, and set ``num_computed`` to the positions it covers.

        Returns the ``(source, target)`` of a block of which a part is copied. What comes from the host pool is listed
        there as a swap. There must be unused blocks for all of it, see :meth:`cost_of`.
        """
        self.share(request, hit.blocks)
        request.num_computed = len(hit.blocks) * self.block_size
        if hit.host:
            self.host.pin(hit.host)  # before room is made, which may evict from there
            extended = self.extend(request, hit.host_end)
            assert extended, "the admission check counted too few blocks"
            self.host.swap_in(request, hit, request.block_table[len(hit.blocks) :])
            request.num_computed = hit.host_end
        elif hit.partial is not None:
            return self._copy_part(request, hit.partial, hit.num_partial)
        return None

    def _copy_part(self, request: Request, source: Block, num_tokens: int) -> tuple[int, int] | None:
        """Begin the next block with a copy of another one; not when that is the last block there is."""
        if source.ref_count == 0:
            self._unused.move_to_end(source.id)
        if not self._unused or self._next() is source:
            return None
        target = self._take()
        request.block_table.append(target.id)
        request.num_computed += num_tokens
        index = len(request.block_table) - 1
        self.journal.block(target.id, "copy", request.id, index, 1, source_id=source.id)
        return source.id, target.id

    def extend(self, request: Request, num_tokens: int) -> bool:
        """Grow the block table until it holds ``num_tokens`` positions; ``False`` changes nothing."""
        missing = self.blocks_for(num_tokens) - len(request.block_table)
        if missing > len(self._unused):
            return False
        for _ in range(missing):
            block = self._take()
            request.block_table.append(block.id)
            self.journal.block(block.id, "allocate", request.id, len(request.block_table) - 1, 1)
        return True

    def num_wanted(self, request: Request) -> int:
        """Blocks the request needs to hold all its tokens and write the next one, beyond those it can write to."""
        missing = self.blocks_for(len(request.tokens)) - len(request.block_table)
        return max(missing, 0) + self.needs_copy(request)  # a rejected draft leaves more blocks than are needed now

    def needs_copy(self, request: Request) -> bool:
        """Whether the next position falls into a block that another request holds too."""
        index = request.num_computed // self.block_size
        return index < len(request.block_table) and self.blocks[request.block_table[index]].ref_count > 1

    def copy_on_write(self, request: Request) -> tuple[int, int] | None:
        """Replace the shared block under the next position by a private one; ``None`` when no block is unused.

        Returns ``(source, target)`` block ids; the caller copies the contents before anything is written.
        """
        if not self._unused:
            return None
        index = request.num_computed // self.block_size
        source, target = self.blocks[request.block_table[index]], self._take()
        request.block_table[index] = target.id
        self._drop(source)
        self.journal.block(target.id, "copy", request.id, index, 1, source_id=source.id)
        return source.id, target.id

    def fork(self, parent: Request, child: Request) -> None:
        """Let ``child`` share all of the parent's blocks, the last partly filled one included."""
        child.block_table, child.chain = list(parent.block_table), list(parent.chain)
        for i, block_id in enumerate(child.block_table):
            block = self.blocks[block_id]
            self._hold(block)
            self.journal.block(block_id, "share", child.id, i, block.ref_count, block.digest)

    def release(self, request: Request, *, findable: bool = True) -> None:
        """Give up the whole table, last block first, so that the ends of prefixes are evicted before their starts.

        With ``findable=False`` (the request failed, its K/V cannot be trusted) blocks nobody else holds are forgotten.
        """
        if self._keeps_parts and findable and request.block_table and not request.is_private:
            self._register_end(request)
        for i in reversed(range(len(request.block_table))):
            block = self.blocks[request.block_table[i]]
            self._drop(block)
            self.journal.block(block.id, "free", request.id, i, block.ref_count, block.digest)
            if not findable and block.ref_count == 0 and block.content:
                self._forget(block)
        request.block_table, request.chain = [], []

    def _next(self) -> Block:
        """The unused block that is taken next."""
        return self.blocks[next(iter(self._unused))] if self.index is None else self.index.victim(self._unused)

    def _take(self) -> Block:
        block = self._next()
        if block.content:
            if self.host is not None:
                self.host.demote(block)
            self._forget(block)
        del self._unused[block.id]
        block.ref_count = 1
        return block

    def _hold(self, block: Block) -> None:
        if block.ref_count == 0:
            del self._unused[block.id]
            self._num_findable_unused -= bool(block.content)
        block.ref_count += 1

    def _drop(self, block: Block) -> None:
        assert block.ref_count > 0, f"block {block.id} freed twice"
        block.ref_count -= 1
        if block.ref_count == 0:
            self._unused[block.id] = None
            self._num_findable_unused += bool(block.content)

    # -- checks ---------------------------------------------------------------------------------------------

    def check_integrity(self, holders: Iterable[Request] = ()) -> None:
        """Assert that counts add up, that tables and reference counts agree, and that what is findable is found."""
        held = Counter(block_id for request in holders for block_id in request.block_table)
        for block in self.blocks:
            assert block.ref_count == held[block.id], f"block {block.id}: {block.ref_count} != {held[block.id]}"
            assert (block.ref_count == 0) == (block.id in self._unused), f"block {block.id} used and unused"
        assert self.num_free + self.num_cached + self.num_used == self.num_blocks
        assert self.num_cached == sum(self.blocks[i].content > 0 for i in self._unused)
        if self.index is not None:
            self.index.check(self.blocks)
