"""The block pool: who holds which K/V block, which prefixes can be shared, what is evicted next.

Three kinds of block: *used* (``ref_count > 0``, in some block table), *cached* (unused, but full and hashed: a later
request with the same prefix can take it back) and *free*. ``free + cached + used = num_blocks`` always.
Everything unused sits in one list ordered by the moment it was given up; allocation takes the oldest, so the
list is free list and LRU at once, and a cached block is forgotten only when its memory is needed.
"""

from __future__ import annotations

from array import array
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from hashlib import blake2b

from llmlab.engine.journal import Journal
from llmlab.engine.request import Request

HashFn = Callable[[bytes, Sequence[int], str], bytes]

ROOT = b""


def hash_block(parent: bytes, tokens: Sequence[int], salt: str) -> bytes:
    """Hash of a full block: its parent's hash, its tokens, and the request's cache salt (16 bytes)."""
    digest = blake2b(parent, digest_size=16, person=b"llmlab-block")
    digest.update(array("q", tokens).tobytes())
    digest.update(salt.encode("utf-8", "surrogatepass"))
    return digest.digest()


@dataclass(slots=True)
class Block:
    """One block. ``content`` is a number unique to *this* prefix in *this* salt (0: not hashed).

    ``parent`` is the content of the block before it, or the salt for a first block, so equal ``(parent, tokens)``
    means an equal whole prefix: a hit is decided by that comparison, and a colliding hash changes nothing.
    """

    id: int
    ref_count: int = 0
    digest: bytes = b""
    content: int = 0
    parent: int | str = 0
    tokens: tuple[int, ...] = ()


class BlockPool:
    """Hands out blocks of ``block_size`` tokens and remembers full ones by content.

    A hit never covers the last token of a request, because its logits are needed. Blocks are hashed only after they
    are computed. Two equal blocks computed side by side both stay; only the first is findable, so that tables only
    ever grow at the end.
    """

    def __init__(
        self,
        num_blocks: int,
        block_size: int,
        *,
        prefix_cache: bool = True,
        hash_fn: HashFn = hash_block,
        journal: Journal | None = None,
    ) -> None:
        self.block_size = block_size
        self.prefix_cache = prefix_cache
        self.blocks = [Block(i) for i in range(num_blocks)]
        self.journal = Journal() if journal is None else journal
        self._hash = hash_fn
        self._unused: OrderedDict[int, None] = OrderedDict.fromkeys(range(num_blocks))
        self._by_hash: dict[bytes, list[int]] = {}
        self._num_hashed_unused = 0
        self._next_content = 1

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
        return self._num_hashed_unused

    @property
    def num_free(self) -> int:
        """Unused blocks without findable content."""
        return len(self._unused) - self._num_hashed_unused

    @property
    def num_used(self) -> int:
        """Blocks in at least one block table."""
        return len(self.blocks) - len(self._unused)

    def blocks_for(self, num_tokens: int) -> int:
        """Blocks that hold ``num_tokens`` positions."""
        return -(-num_tokens // self.block_size)

    # -- prefix cache ---------------------------------------------------------------------------------------

    def match(self, request: Request) -> list[Block]:
        """The longest run of cached blocks that begins ``request.tokens`` and leaves its last token to compute."""
        if not self.prefix_cache or request.wants_prompt_logprobs or request.bypasses_cache:
            return []
        hits: list[Block] = []
        parent, digest = request.params.cache_salt, ROOT
        for i in range((len(request.tokens) - 1) // self.block_size):
            tokens = self._tokens_of(request, i)
            digest = self._hash(digest, tokens, request.params.cache_salt)
            block = self._find(digest, parent, tokens)
            if block is None:
                break
            hits.append(block)
            parent = block.content
        return hits

    def cost_of(self, hits: Iterable[Block], num_tokens: int) -> int:
        """Unused blocks that admitting a request takes: those it allocates and those its hits take back."""
        hits = list(hits)
        reclaimed = sum(block.ref_count == 0 for block in hits)
        return self.blocks_for(num_tokens) - len(hits) + reclaimed

    def register(self, request: Request) -> None:
        """Hash the request's blocks that became full with computed tokens; call after the forward pass."""
        if not self.prefix_cache or request.is_private:
            return
        salt = request.params.cache_salt
        for i in range(len(request.chain), request.num_computed // self.block_size):
            parent, digest = request.chain[-1] if i else (salt, ROOT)
            tokens = self._tokens_of(request, i)
            digest = self._hash(digest, tokens, salt)
            found = self._find(digest, parent, tokens)
            if found is None:
                found = self._remember(self.blocks[request.block_table[i]], digest, parent, tokens)
                self.journal.block(found.id, "cache", request.id, i, found.ref_count, digest)
            request.chain.append((found.content, digest))

    def _tokens_of(self, request: Request, index: int) -> tuple[int, ...]:
        return tuple(request.tokens[index * self.block_size : (index + 1) * self.block_size])

    def _find(self, digest: bytes, parent: int | str, tokens: tuple[int, ...]) -> Block | None:
        for block_id in self._by_hash.get(digest, ()):
            block = self.blocks[block_id]
            if block.parent == parent and block.tokens == tokens:
                return block
        return None

    def _remember(self, block: Block, digest: bytes, parent: int | str, tokens: tuple[int, ...]) -> Block:
        block.digest, block.parent, block.tokens = digest, parent, tokens
        block.content = self._next_content
        self._next_content += 1
        self._by_hash.setdefault(digest, []).append(block.id)
        return block

    def _forget(self, block: Block) -> None:
        twins = self._by_hash[block.digest]
        twins.remove(block.id)
        if not twins:
            del self._by_hash[block.digest]
        digest, block.digest = block.digest, b""
        block.content, block.parent, block.tokens = 0, 0, ()
        self.journal.block(block.id, "evict", None, -1, 0, digest)

    # -- ownership ------------------------------------------------------------------------------------------

    def share(self, request: Request, hits: Sequence[Block]) -> None:
        """Begin the request's block table with the blocks of a prefix hit."""
        for i, block in enumerate(hits):
            self._hold(block)
            self.journal.block(block.id, "hit", request.id, i, block.ref_count, block.digest)
        request.block_table = [block.id for block in hits]
        request.chain = [(block.content, block.digest) for block in hits]

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
        for i in reversed(range(len(request.block_table))):
            block = self.blocks[request.block_table[i]]
            self._drop(block)
            self.journal.block(block.id, "free", request.id, i, block.ref_count, block.digest)
            if not findable and block.ref_count == 0 and block.content:
                self._num_hashed_unused -= 1
                self._forget(block)
        request.block_table, request.chain = [], []

    def _take(self) -> Block:
        block_id, _ = self._unused.popitem(last=False)
        block = self.blocks[block_id]
        if block.content:
            self._num_hashed_unused -= 1
            self._forget(block)
        block.ref_count = 1
        return block

    def _hold(self, block: Block) -> None:
        if block.ref_count == 0:
            del self._unused[block.id]
            self._num_hashed_unused -= bool(block.content)
        block.ref_count += 1

    def _drop(self, block: Block) -> None:
        assert block.ref_count > 0, f"block {block.id} freed twice"
        block.ref_count -= 1
        if block.ref_count == 0:
            self._unused[block.id] = None
            self._num_hashed_unused += bool(block.content)

    # -- checks ---------------------------------------------------------------------------------------------

    def check_integrity(self, holders: Iterable[Request] = ()) -> None:
        """Assert that counts add up, that tables and reference counts agree, and that every hash is findable."""
        held = Counter(block_id for request in holders for block_id in request.block_table)
        for block in self.blocks:
            assert block.ref_count == held[block.id], f"block {block.id}: {block.ref_count} != {held[block.id]}"
            assert (block.ref_count == 0) == (block.id in self._unused), f"block {block.id} used and unused"
            if block.content:
                assert self._find(block.digest, block.parent, block.tokens) is block
        assert self.num_free + self.num_cached + self.num_used == self.num_blocks
        assert self.num_cached == sum(self.blocks[i].content > 0 for i in self._unused)
        assert sum(map(len, self._by_hash.values())) == sum(block.content > 0 for block in self.blocks)
