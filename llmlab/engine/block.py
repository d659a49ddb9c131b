"""One K/V block, and what a prefix index found of a request."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from llmlab.engine.prefix_radix import Node

HostKey = tuple[str, bytes]
"""A cache salt and all tokens up to the end of a block: equal keys mean equal K/V, whatever the index."""


@dataclass(slots=True, eq=False)
class Block:
    """One block. ``content`` is a number unique to *this* prefix in *this* salt (0: not findable).

    ``digest`` is the short name the trace shows while the block is findable. ``parent`` belongs to the hash index,
    ``node`` to the radix index, ``key`` to the host tier.
    """

    id: int
    ref_count: int = 0
    digest: bytes = b""
    content: int = 0
    parent: int | str = 0
    tokens: tuple[int, ...] = ()
    node: Node | None = None
    key: HostKey | None = None


@dataclass(slots=True)
class Hit:
    """What is known of a request's beginning: whole ``blocks`` of the pool, in order, and then one of two things.

    Either the first ``num_partial`` tokens of block ``partial``, which diverges from the request after them and is
    copied; or blocks of the host pool (``host``, ids) up to position ``host_end``, which are swapped in.
    """

    blocks: list[Block] = field(default_factory=list)
    partial: Block | None = None
    num_partial: int = 0
    host: list[int] = field(default_factory=list)
    host_end: int = 0
