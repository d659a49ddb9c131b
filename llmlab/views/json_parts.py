"""JSON with the place of every value in its text, so that bytes can be counted as they were sent."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from typing import Any

_DECODER = json.JSONDecoder()
_SPACE = re.compile(r"[ \t\n\r]*")
MAX_DEPTH = 6  # deeper values are taken whole


@dataclass(slots=True)
class Node:
    """A value at ``text[start:end]``; ``begin`` is where its key begins (``start`` for an item of an array).

    ``value`` is the parsed value of a node without children; ``key`` is the field's name or the item's place.
    ``is_cut``: the text ends within it, so ``end`` is the end of the text.
    """

    key: str | int
    begin: int
    start: int
    end: int
    value: Any = None
    children: list[Node] = field(default_factory=list)
    kind: str = "value"
    is_cut: bool = False

    def child(self, key: str | int) -> Node | None:
        """The field or item of that name."""
        return next((each for each in self.children if each.key == key), None)

    def text(self, source: str) -> str:
        """The value as it stands in the source."""
        return source[self.start : self.end]


def parse(text: str) -> Node:
    """The tree of a JSON text; of one that is cut or broken, as far as it can be read."""
    return _value(text, _skip(text, 0), "", 0, 0)


def _skip(text: str, at: int) -> int:
    return _SPACE.match(text, at).end()


def _value(text: str, at: int, key: str | int, begin: int, depth: int) -> Node:
    if at < len(text) and text[at] in "{[" and depth < MAX_DEPTH:
        return _container(text, at, key, begin, depth)
    try:
        value, end = _DECODER.raw_decode(text, at)
    except (ValueError, RecursionError):
        return Node(key, begin, at, len(text), is_cut=True)
    is_number_at_end = end == len(text) and depth > 0 and not isinstance(value, str | dict | list | bool | type(None))
    return Node(key, begin, at, end, value, is_cut=is_number_at_end)


def _container(text: str, at: int, key: str | int, begin: int, depth: int) -> Node:
    """An object or array and its children; cut where the text is."""
    node = Node(key, begin, at, len(text), kind="object" if text[at] == "{" else "array", is_cut=True)
    close = "}" if node.kind == "object" else "]"
    at = _skip(text, at + 1)
    while at < len(text) and text[at] != close:
        child = (
            _field(text, at, depth) if node.kind == "object" else _value(text, at, len(node.children), at, depth + 1)
        )
        if child is None:
            return node
        node.children.append(child)
        if child.is_cut:
            return node
        at = _skip(text, child.end)
        if text[at : at + 1] == ",":
            at = _skip(text, at + 1)
        elif text[at : at + 1] != close:
            return node
    if at < len(text):
        node.end, node.is_cut = at + 1, False
    return node


def _field(text: str, at: int, depth: int) -> Node | None:
    """``"name": value``; ``None`` where the text ends before its value."""
    try:
        name, end = _DECODER.raw_decode(text, at)
    except (ValueError, RecursionError):
        return None
    colon = _skip(text, end)
    if not isinstance(name, str) or text[colon : colon + 1] != ":":
        return None
    start = _skip(text, colon + 1)
    return _value(text, start, name, at, depth + 1) if start < len(text) else None
