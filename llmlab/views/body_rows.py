"""The body of a request as rows of a tree: bytes of each part as sent, what it is for, tokens where they are counted.

Rows without children, and the rows of keys and punctuation, add up to the body.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

from llmlab.client.field_data import FIELDS
from llmlab.views.assembly import cut_at
from llmlab.views.json_parts import Node, parse

CONTENT, POLICY, TRANSPORT, CACHING, GLUE, NOT_KNOWN = (
    "content",
    "policy",
    "transport",
    "caching",
    "syntax",
    "not known",
)
ROLES = (CONTENT, POLICY, TRANSPORT, CACHING, GLUE, NOT_KNOWN)
KINDS = {row["name"]: row["kind"] for row in FIELDS if row.get("where", "body") == "body"}
DOES = {row["name"]: row["does"] for row in FIELDS if row.get("where", "body") == "body"}
# how the request travels and is accounted for, not what is answered; both protocols' names
TRANSPORTED = frozenset(
    ("stream", "stream_options", "metadata", "service_tier", "speed", "inference_geo", "diagnostics", "betas", "user")
)
CACHED = frozenset(("cache_control", "prompt_cache_key", "prompt_cache_retention"))
LISTS = ("tools", "system", "messages")

MARKER = "cache_control"
GLUE_LABEL = "braces, commas, spaces"

Count = Callable[[str], int]


@dataclass(slots=True)
class BodyRow:
    """One part. ``bytes`` include its key; ``is_leaf``: nothing below it, so it is part of the sum.

    ``breakpoint`` is the time to live of a cache marker, empty where there is none.
    """

    path: str
    label: str
    depth: int
    bytes: int
    role: str
    value: str = ""
    why: str = ""
    tokens: int | None = None
    is_leaf: bool = True
    breakpoint: str = ""


@dataclass(slots=True)
class Body:
    """All rows in the order sent. ``size``: bytes of the body that the rows add up to, those that were cut included.

    ``is_cut``: the record has only its beginning. ``sent``: bytes that were sent, another number when the record was
    changed, as a replaced key does.
    """

    size: int
    sent: int
    rows: list[BodyRow] = field(default_factory=list)
    is_cut: bool = False
    is_object: bool = True

    @property
    def breakpoints(self) -> list[BodyRow]:
        """The cache markers in the order in which the prefix is built: tools, system, messages; one for all last."""
        marked = [row for row in self.rows if row.breakpoint]
        return sorted(marked, key=lambda row: LISTS.index(part) if (part := row.path.split(".")[0]) in LISTS else 3)

    @property
    def leaves(self) -> Iterator[BodyRow]:
        """What the sum is made of."""
        return (row for row in self.rows if row.is_leaf)

    def by_role(self) -> dict[str, int]:
        """Bytes of each role, in a fixed order, those without any left out."""
        sums = dict.fromkeys(ROLES, 0)
        for row in self.leaves:
            sums[row.role] += row.bytes
        return {role: size for role, size in sums.items() if size}


def utf8(text: str) -> int:
    """Bytes of ``text`` on the wire."""
    return len(text.encode("utf-8", "surrogatepass"))


def read_body(text: str, sent: int, count: Count | None = None) -> Body:
    """Rows of a body of ``sent`` bytes of which ``text`` is recorded."""
    cut = cut_at(text) if utf8(text) != sent or parse(text).is_cut else None  # a remark can be as long as the cut
    text = text[:cut]
    root = parse(text)
    is_cut = cut is not None or (root.is_cut and sent > utf8(text))
    body = Body(max(sent, utf8(text)) if is_cut else utf8(text), sent, is_cut=is_cut, is_object=root.kind == "object")
    if not body.is_object:
        body.rows.append(BodyRow("", "not a JSON object", 0, body.size, NOT_KNOWN, text[:200]))
        return body
    reader = _Reader(text, count)
    for child in root.children:
        body.rows += [] if child.is_cut else reader.field(child)
    end = _end_of_known(root)
    used = sum(row.bytes for row in body.rows if row.depth == 0)
    body.rows.append(BodyRow("", GLUE_LABEL, 0, utf8(text[:end]) - used, GLUE))
    if rest := body.size - utf8(text[:end]):
        body.rows += reader.rest(root, rest, body.is_cut)
    return body


def _end_of_known(root: Node) -> int:
    """Where the last whole field ends; behind the closing brace when all are whole."""
    whole = [child.end for child in root.children if not child.is_cut]
    return root.end if not root.is_cut else whole[-1] if whole else root.start


@dataclass(slots=True)
class _Reader:
    text: str
    count: Count | None

    def field(self, node: Node) -> list[BodyRow]:
        """A field of the body and what is in it."""
        name = str(node.key)
        role = CACHING if name in CACHED else TRANSPORT if name in TRANSPORTED else KINDS.get(name, POLICY)
        row = BodyRow(name, name, 0, self._size(node), role, self._shown(node), DOES.get(name, "not described"))
        row.breakpoint = _ttl(node) if name == MARKER else ""
        if name in LISTS and node.kind == "array" and node.children:
            return self._parent(row, node, [self._item(name, item) for item in node.children])
        if role == CONTENT:
            row.tokens = self._counted(node.value if isinstance(node.value, str) else node.text(self.text))
        return [row]

    def _item(self, name: str, node: Node) -> list[BodyRow]:
        """A tool, a system block, or a message with its blocks."""
        path = f"{name}.{node.key}"
        content = node.child("content") if name == "messages" else None
        role = _plain(node.child("role"))
        label = role or _plain(_name_of(node)) or _plain(node.child("type")) or f"item {node.key}"
        row = BodyRow(path, label, 1, self._size(node), CONTENT, self._words(node))
        if content is None or content.kind != "array" or not content.children:
            return self._block(row, node)
        blocks = [self._part(f"{path}.content.{block.key}", block) for block in content.children]
        return self._parent(row, node, blocks)

    def _part(self, path: str, node: Node) -> list[BodyRow]:
        label = _plain(node.child("type")) or f"block {node.key}"
        return self._block(BodyRow(path, label, 2, self._size(node), CONTENT, self._words(node)), node)

    def _block(self, row: BodyRow, node: Node) -> list[BodyRow]:
        """A block, and its cache marker in a row of its own: the block's bytes are then without it."""
        row.tokens = self._counted(self._words(node, whole=True))
        marker = node.child(MARKER)
        if marker is None:
            return [row]
        size = self._size(marker)
        row.bytes -= size
        why = DOES.get(MARKER, "")
        below = BodyRow(f"{row.path}.{MARKER}", MARKER, row.depth, size, CACHING, self._shown(marker), why)
        below.breakpoint = _ttl(marker)
        return [row, below]

    def rest(self, root: Node, size: int, is_cut: bool) -> list[BodyRow]:
        """What comes behind the last whole field: whole items of a list, and ``size`` bytes in all."""
        why = "cut in the record" if is_cut else "not JSON"
        last = root.children[-1] if root.children and root.children[-1].is_cut else None
        if last is None:
            return [BodyRow("", f"the rest: {why}", 0, size, NOT_KNOWN)]
        name = str(last.key)
        row = BodyRow(name, f"{name} and the rest", 0, size, NOT_KNOWN, "", why, is_leaf=False)
        items = last.children if name in LISTS and last.kind == "array" else []
        known = [each for item in items if not item.is_cut for each in self._item(name, item)]
        left = size - sum(each.bytes for each in known if each.depth == 1)
        return [row, *known, BodyRow(name, why, 1, left, NOT_KNOWN)]

    def _parent(self, row: BodyRow, node: Node, children: Iterable[list[BodyRow]]) -> list[BodyRow]:
        """A row over its children, with a row for its key, brackets and commas."""
        row.is_leaf, row.value = False, ""
        inner = [each for rows in children for each in rows]
        below = sum(each.bytes for each in inner if each.depth == row.depth + 1)
        glue = BodyRow(row.path, "keys, brackets, commas", row.depth + 1, row.bytes - below, GLUE)
        counted = [each.tokens for each in inner if each.tokens is not None and each.is_leaf]
        row.tokens = sum(counted) if counted else None
        return [row, *inner, glue]

    def _size(self, node: Node) -> int:
        return utf8(self.text[node.begin : node.end])

    def _shown(self, node: Node) -> str:
        return self.text[node.start : min(node.end, node.start + 400)]

    def _words(self, node: Node, whole: bool = False) -> str:
        """What the model is to read of a block: its text, or its JSON where it is no text."""
        for name in ("text", "content", "thinking"):
            found = node.child(name)
            if found is not None and isinstance(found.value, str):
                return found.value if whole else found.value[:400]
        return node.text(self.text) if whole else self._shown(node)

    def _counted(self, text: str) -> int | None:
        return None if self.count is None else int(self.count(text))


def _plain(node: Node | None) -> str:
    return node.value[:80] if node is not None and isinstance(node.value, str) else ""


def _name_of(node: Node) -> Node | None:
    """Where a tool's name stands in either protocol."""
    function = node.child("function")
    return node.child("name") or (function.child("name") if function is not None else None)


def _ttl(marker: Node) -> str:
    return _plain(marker.child("ttl")) or "5m"
