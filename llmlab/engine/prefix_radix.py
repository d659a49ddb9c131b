"""A prefix index as a radix tree: computed prefixes share their beginning as the path from the root.

An edge holds whole blocks; the last of a path may be filled in part, where a request ended. Where two prefixes part
inside a block the tree cannot split it, but the part in common is found too: its block is copied, and the copy goes on
with the new tokens (as in RadixAttention, Zheng et al. 2024, which splits token by token because its pages hold one).
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from llmlab.engine.block import Block, Hit
from llmlab.engine.prefix_index import Chain


@dataclass(slots=True, eq=False)
class Node:
    """The edge that leads here, as ``blocks``, and the edges that go on, by the tokens of their first block.

    ``order`` holds those tokens sorted, so that the child with most tokens in common is beside where a prefix would be.
    Below the root every node has blocks, and either no child or at least two.
    """

    parent: Node | None
    blocks: list[Block] = field(default_factory=list)
    children: dict[tuple[int, ...], Node] = field(default_factory=dict)
    order: list[tuple[int, ...]] = field(default_factory=list)

    def adopt(self, child: Node) -> None:
        """Put a child below this node."""
        child.parent = self
        key = child.blocks[0].tokens
        self.children[key] = child
        insort(self.order, key)

    def disown(self, key: tuple[int, ...]) -> None:
        """Take the child away whose edge begins with these tokens."""
        del self.children[key]
        del self.order[bisect_left(self.order, key)]

    def take_over(self, other: Node) -> None:
        """Have the other node's children for one's own."""
        self.children, self.order = other.children, other.order
        for child in self.children.values():
            child.parent = self

    def nearest(self, tokens: tuple[int, ...]) -> list[Block]:
        """First blocks of the children that can share most with ``tokens``."""
        at = bisect_left(self.order, tokens)
        return [self.children[key].blocks[0] for key in self.order[max(at - 1, 0) : at + 1]]


class RadixIndex:
    """Finds whole blocks and a part of the next one. Every salt has a tree of its own."""

    name, keeps_parts = "radix", True

    def __init__(self, blocks: list[Block], block_size: int) -> None:
        self.blocks, self.block_size = blocks, block_size
        self._roots: dict[str, Node] = {}
        self._by_content: dict[int, Block] = {}
        self._next_content = 1

    # -- finding ----------------------------------------------------------------------------------------------

    def match(self, tokens: Sequence[int], salt: str, limit: int) -> Hit:
        """Walk down while whole blocks agree, then look for the longest agreement within the next block."""
        hits: list[Block] = []
        node = self._roots.get(salt)
        if node is None:
            return Hit(hits)
        size, end = self.block_size, 0
        while (child := node.children.get(tuple(tokens[end : end + size]))) and end + size <= limit:
            agreed = self._agreement(child.blocks, tokens, end, limit)
            hits += child.blocks[:agreed]
            end += agreed * size
            if agreed < len(child.blocks):
                return self._with_part(hits, [child.blocks[agreed]], tokens[end : min(end + size, limit)])
            node = child
        rest = tuple(tokens[end : min(end + size, limit)])
        return self._with_part(hits, node.nearest(rest), rest)

    def _agreement(self, blocks: list[Block], tokens: Sequence[int], start: int, limit: int) -> int:
        size = self.block_size
        for i, block in enumerate(blocks):
            begin = start + i * size
            if begin + size > limit or block.tokens != tuple(tokens[begin : begin + size]):
                return i
        return len(blocks)

    def _with_part(self, hits: list[Block], candidates: list[Block], rest: Sequence[int]) -> Hit:
        num_partial, partial = 0, None
        for block in candidates:
            shared = _common(block.tokens, rest)
            if shared > num_partial:
                num_partial, partial = shared, block
        return Hit(hits, partial, num_partial)

    # -- growing ----------------------------------------------------------------------------------------------

    def anchored(self, chain: Chain) -> int:
        """All where the chain's last block is in the tree (then so are those before it), else none."""
        return len(chain) if not chain or chain[-1][0] in self._by_content else 0

    def insert(self, chain: Chain, tokens: tuple[int, ...], salt: str, block: Block) -> Block:
        """Lengthen the edge that ends at the chain's last block, or begin a new one; inside an edge, split it."""
        if chain:
            last = self._by_content[chain[-1][0]]
            node = last.node
            after = node.blocks.index(last) + 1
            if after < len(node.blocks):
                if node.blocks[after].tokens == tokens:
                    return node.blocks[after]
                self._split(node, after)
        else:
            node = self._roots.setdefault(salt, Node(None))
        if tokens in node.children:
            return node.children[tokens].blocks[0]
        self._enter(block, tokens)
        if chain and not node.children:
            node.blocks.append(block)
            block.node = node
        else:
            block.node = Node(node, [block])
            node.adopt(block.node)
        return block

    def insert_part(self, chain: Chain, tokens: tuple[int, ...], salt: str, block: Block) -> bool:
        """Make a block findable that ``tokens`` fill in part, unless a block there begins with them already."""
        if chain:
            last = self._by_content[chain[-1][0]]
            after = last.node.blocks.index(last) + 1
            candidates = last.node.blocks[after : after + 1] or last.node.nearest(tokens)
        else:
            root = self._roots.get(salt)
            candidates = root.nearest(tokens) if root else []
        if any(other.tokens[: len(tokens)] == tokens for other in candidates):
            return False
        self.insert(chain, tokens, salt, block)
        return True

    def _enter(self, block: Block, tokens: tuple[int, ...]) -> None:
        block.tokens, block.content = tokens, self._next_content
        block.digest = self._next_content.to_bytes(6, "big")
        self._by_content[block.content] = block
        self._next_content += 1

    def _split(self, node: Node, at: int) -> None:
        """Cut an edge before its block ``at``; the second half becomes the only child, until the next one comes."""
        tail = Node(node, node.blocks[at:])
        tail.take_over(node)
        for block in tail.blocks:
            block.node = tail
        node.blocks, node.children, node.order = node.blocks[:at], {}, []
        node.adopt(tail)

    # -- shrinking --------------------------------------------------------------------------------------------

    def victim(self, unused: OrderedDict[int, None]) -> Block:
        """The one given up first or, while that is inside the tree, an unused leaf below it.

        Where all leaves below are in use (by requests that computed the same prefix side by side) it is taken itself.
        """
        oldest = self.blocks[next(iter(unused))]
        if oldest.node is None:
            return oldest
        ends = (node.blocks[-1] for node in _subtree(oldest.node) if not node.children)
        return next((block for block in ends if block.ref_count == 0), oldest)

    def forget(self, block: Block) -> list[tuple[Block, bytes]]:
        """Take a block out, and with it all that follows it in the tree, which could not be reached any more."""
        node, at = block.node, block.node.blocks.index(block)
        gone = [*node.blocks[at:], *(b for child in node.children.values() for n in _subtree(child) for b in n.blocks)]
        if at:
            node.blocks, node.children, node.order = node.blocks[:at], {}, []
        else:
            self._unlink(node)
        return [(block, self._leave(block)) for block in gone]

    def _unlink(self, node: Node) -> None:
        parent = node.parent
        parent.disown(node.blocks[0].tokens)
        if parent.parent is not None and len(parent.children) == 1:
            self._join(parent, next(iter(parent.children.values())))
        elif parent.parent is None and not parent.children:
            self._roots = {salt: root for salt, root in self._roots.items() if root is not parent}

    def _join(self, node: Node, child: Node) -> None:
        """Make one edge of a node and its only child."""
        for block in child.blocks:
            block.node = node
        node.blocks += child.blocks
        node.take_over(child)

    def _leave(self, block: Block) -> bytes:
        del self._by_content[block.content]
        digest, block.digest = block.digest, b""
        block.content, block.tokens, block.node = 0, (), None
        return digest

    # -- reading ----------------------------------------------------------------------------------------------

    def check(self, blocks: Iterable[Block]) -> None:
        """Assert that the tree holds exactly the blocks with a content, once each, and is as compact as it can be."""
        found = [block for root in self._roots.values() for node in _subtree(root) for block in node.blocks]
        assert {block.id for block in blocks if block.content} == {block.id for block in found}
        assert len(found) == len(self._by_content) == len({block.id for block in found})
        for root in self._roots.values():
            assert not root.blocks
            assert root.children
            for node in _subtree(root):
                self._check_node(node)

    def _check_node(self, node: Node) -> None:
        assert node.order == sorted(node.children)
        assert node.parent is None or (node.blocks and len(node.children) != 1)
        for block in node.blocks:
            assert block.node is node
            assert self._by_content[block.content] is block
            is_end = block is node.blocks[-1] and not node.children
            assert len(block.tokens) == self.block_size or (is_end and block.tokens)
        for key, child in node.children.items():
            assert child.parent is node
            assert child.blocks[0].tokens == key

    def text(self) -> str:
        """The trees, one line an edge: its blocks, how many tokens they hold, and how many of them are in use."""
        lines = []
        for salt, root in self._roots.items():
            lines.append(f"salt {salt!r}" if salt else "no salt")
            lines += [line for child in root.children.values() for line in self._lines(child)]
        return "\n".join(lines) or "no block is known"

    def _lines(self, top: Node) -> Iterator[str]:
        stack = [(top, 1)]
        while stack:
            node, depth = stack.pop()
            in_use = sum(block.ref_count > 0 for block in node.blocks)
            ids = " ".join(str(block.id) for block in node.blocks)
            num_tokens = sum(len(block.tokens) for block in node.blocks)
            yield f"{'  ' * depth}{num_tokens} tokens in blocks {ids}, {in_use} in use"
            stack += [(child, depth + 1) for child in reversed(node.children.values())]


def _common(one: Sequence[int], other: Sequence[int]) -> int:
    """Length of the common beginning."""
    for i, (a, b) in enumerate(zip(one, other, strict=False)):
        if a != b:
            return i
    return min(len(one), len(other))


def _subtree(top: Node) -> Iterator[Node]:
    """The node and all below it, each before its children."""
    stack = [top]
    while stack:
        node = stack.pop()
        yield node
        stack.extend(reversed(node.children.values()))
