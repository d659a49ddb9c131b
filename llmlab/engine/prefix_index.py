"""Which computed blocks can be found again by the tokens they hold: one interface, two implementations.

:class:`~llmlab.engine.prefix_hash.HashIndex` finds whole blocks by a chained hash;
:class:`~llmlab.engine.prefix_radix.RadixIndex` keeps them in a tree and also finds a part of a block.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from typing import Protocol

from llmlab.engine.block import Block, Hit

Chain = list[tuple[int, bytes]]
"""``(content, digest)`` of a request's leading full blocks, see :class:`llmlab.engine.request.Request`."""


class PrefixIndex(Protocol):
    """Finds blocks by the prefix they end. The pool owns the blocks; an index never changes a reference count."""

    name: str
    keeps_parts: bool

    def match(self, tokens: Sequence[int], salt: str, limit: int) -> Hit:
        """The longest known beginning of ``tokens``, at most ``limit`` positions of it."""

    def anchored(self, chain: Chain) -> int:
        """How many entries of a request's chain the next block can follow: all, or 0 where its last one is gone."""

    def insert(self, chain: Chain, tokens: tuple[int, ...], salt: str, block: Block) -> Block:
        """Make ``block``, which follows ``chain`` and holds ``tokens``, findable; an equal one there is stays, and is
        returned."""

    def insert_part(self, chain: Chain, tokens: tuple[int, ...], salt: str, block: Block) -> bool:
        """The same for the last block of a request that ended, which ``tokens`` fill in part; says whether it is.

        Only of an index that ``keeps_parts``.
        """

    def forget(self, block: Block) -> list[tuple[Block, bytes]]:
        """Make a block unfindable; returns all that are so now, with the digests they had."""

    def victim(self, unused: OrderedDict[int, None]) -> Block:
        """The block to take next of those unused, which are ordered by the moment they were given up."""

    def check(self, blocks: Iterable[Block]) -> None:
        """Assert that exactly the blocks with a content are findable, each in its place."""

    def text(self) -> str:
        """What is known, for reading."""
