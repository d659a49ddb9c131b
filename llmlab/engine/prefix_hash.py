"""A prefix index of chained hashes: every full block is found by the hash of its parent, its tokens and a salt."""

from __future__ import annotations

from array import array
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from hashlib import blake2b

from llmlab.engine.block import Block, Hit
from llmlab.engine.prefix_index import Chain

HashFn = Callable[[bytes, Sequence[int], str], bytes]

ROOT = b""


def hash_block(parent: bytes, tokens: Sequence[int], salt: str) -> bytes:
    """Hash of a full block: its parent's hash, its tokens, and the request's cache salt (16 bytes)."""
    digest = blake2b(parent, digest_size=16, person=b"llmlab-block")
    digest.update(array("q", tokens).tobytes())
    digest.update(salt.encode("utf-8", "surrogatepass"))
    return digest.digest()


class HashIndex:
    """Finds whole blocks only.

    ``Block.parent`` is the content of the block before it, or the salt for a first block, so equal ``(parent, tokens)``
    means an equal whole prefix: a hit is decided by that comparison, and a colliding hash changes nothing.
    """

    name, keeps_parts = "hash", False

    def __init__(self, blocks: list[Block], block_size: int, hash_fn: HashFn = hash_block) -> None:
        self.blocks, self.block_size, self.hash_fn = blocks, block_size, hash_fn
        self._by_hash: dict[bytes, list[int]] = {}
        self._next_content = 1

    def match(self, tokens: Sequence[int], salt: str, limit: int) -> Hit:
        """The longest run of whole blocks that begins ``tokens``."""
        hits: list[Block] = []
        parent, digest, size = salt, ROOT, self.block_size
        for start in range(0, limit - size + 1, size):
            part = tuple(tokens[start : start + size])
            digest = self.hash_fn(digest, part, salt)
            block = self._find(digest, parent, part)
            if block is None:
                break
            hits.append(block)
            parent = block.content
        return Hit(hits)

    def anchored(self, chain: Chain) -> int:
        """Always all: a block whose parent is gone can be known without being found."""
        return len(chain)

    def insert(self, chain: Chain, tokens: tuple[int, ...], salt: str, block: Block) -> Block:
        """Make ``block`` findable under its hash, unless an equal one is."""
        parent, digest = chain[-1] if chain else (salt, ROOT)
        digest = self.hash_fn(digest, tokens, salt)
        return self._find(digest, parent, tokens) or self._remember(block, digest, parent, tokens)

    def forget(self, block: Block) -> list[tuple[Block, bytes]]:
        """Make this block unfindable."""
        twins = self._by_hash[block.digest]
        twins.remove(block.id)
        if not twins:
            del self._by_hash[block.digest]
        digest, block.digest = block.digest, b""
        block.content, block.parent, block.tokens = 0, 0, ()
        return [(block, digest)]

    def victim(self, unused: OrderedDict[int, None]) -> Block:
        """The one given up first."""
        return self.blocks[next(iter(unused))]

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

    def check(self, blocks: Iterable[Block]) -> None:
        """Assert that every block with a content is found by its hash, and no other."""
        known = [block for block in blocks if block.content]
        for block in known:
            assert self._find(block.digest, block.parent, block.tokens) is block
        assert sum(map(len, self._by_hash.values())) == len(known)

    def text(self) -> str:
        """One line per findable block: its hash and its parent's content."""
        known = [self.blocks[i] for ids in self._by_hash.values() for i in ids]
        lines = [
            f"block {b.id}: content {b.content} after {b.parent!r}, hash {b.digest[:6].hex()}"
            for b in sorted(known, key=lambda b: b.content)
        ]
        return "\n".join(lines) or "no block is known"
