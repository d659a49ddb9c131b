"""Cache breakpoints: how many, in what order, and where automatic caching puts its own (article A, section 2.2)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from typing import TypeVar

from llmlab.api.anthropic.validate import invalid
from llmlab.api.conversation import Block, CacheMarker, Conversation, Text, Thinking, Tool, Turn
from llmlab.api.errors import ApiError

MAX_MARKERS = 4

Item = TypeVar("Item", Text, Tool, Block, Turn)


def markers(conversation: Conversation) -> list[CacheMarker]:
    """Every breakpoint in the order of the prompt: tools, system, messages."""
    turns = [block for turn in conversation.turns for block in turn.blocks if not isinstance(block, Thinking)]
    carriers = [*conversation.tools, *conversation.system, *turns]
    return [carrier.marker for carrier in carriers if carrier.marker]


def check_markers(conversation: Conversation) -> None:
    """Raise ``ApiError`` for more than four breakpoints, or a longer one after a shorter one.

    The automatic one counts, unless its block has a breakpoint already; then both must ask for the same.
    """
    _check_same_ttl(conversation)
    found = markers(place_automatic(conversation))
    if len(found) > MAX_MARKERS:
        text = f"A maximum of {MAX_MARKERS} blocks with cache_control may be provided. Found {len(found)}."
        raise ApiError("invalid_request_error", text, param="cache_control")
    for earlier, later in pairwise(found):
        if (earlier.ttl, later.ttl) == ("5m", "1h"):
            start = "a ttl='1h' cache_control block must not come after a ttl='5m' cache_control block"
            raise invalid("cache_control.ttl", f"{start}; the order is tools, system, messages")


def place_automatic(conversation: Conversation) -> Conversation:
    """The conversation with the breakpoint of automatic caching in its place, and ``auto_cache`` used up.

    That is the last block that can carry one, in the last turn that has such a block, else in the system prompt, else
    the last tool. A block that has a breakpoint keeps it. With no block at all nothing is placed.
    """
    wanted = conversation.auto_cache
    if wanted is None:
        return conversation
    return _at_last(replace(conversation, auto_cache=None), lambda marker: marker or wanted)


def _check_same_ttl(conversation: Conversation) -> None:
    wanted = conversation.auto_cache
    if wanted is None:
        return

    def compare(marker: CacheMarker | None) -> CacheMarker | None:
        if marker and marker != wanted:
            text = f"ttl={wanted.ttl!r} differs from ttl={marker.ttl!r} of the last block; use one of them"
            raise invalid("cache_control.ttl", text)
        return marker

    _at_last(conversation, compare)


Change = Callable[[CacheMarker | None], CacheMarker | None]


def _at_last(conversation: Conversation, change: Change) -> Conversation:
    for index in reversed(range(len(conversation.turns))):
        turn = conversation.turns[index]
        blocks = _change_last(turn.blocks, change)
        if blocks is not None:
            turns = (*conversation.turns[:index], replace(turn, blocks=blocks), *conversation.turns[index + 1 :])
            return replace(conversation, turns=turns)
    system = _change_last(conversation.system, change)
    if system is not None:
        return replace(conversation, system=system)
    tools = _change_last(conversation.tools, change)
    return conversation if tools is None else replace(conversation, tools=tools)


def _change_last(items: tuple[Item, ...], change: Change) -> tuple[Item, ...] | None:
    """The items with the marker of the last eligible one changed; ``None`` if there is none."""
    for index in reversed(range(len(items))):
        item = items[index]
        if _can_carry(item):
            return (*items[:index], replace(item, marker=change(item.marker)), *items[index + 1 :])
    return None


def _can_carry(item: object) -> bool:
    return not isinstance(item, Thinking) and item != Text("")
