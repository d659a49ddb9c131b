"""Asking a backend, and looking at what it answered."""

from __future__ import annotations

from itertools import count

from llmlab.api.conversation import Conversation, Text, Turn
from llmlab.api.reply import BlockDelta, BlockStart, BlockStop, Ended, ReplyEvent, ReplyInfo, SampleEnd, Started
from llmlab.gateway.backend import Call

NUMBERS = count()


def ask(*texts: str, protocol: str = "anthropic", max_tokens: int | None = 200, **fields) -> Conversation:
    """A conversation that alternates between user and assistant; ``sampling`` is added to ``max_tokens``."""
    roles = ("user", "assistant")
    turns = tuple(Turn(roles[i % 2], (Text(text),)) for i, text in enumerate(texts))
    sampling = {"max_tokens": max_tokens} | fields.pop("sampling", {})
    return Conversation(protocol, "model", fields.pop("turns", turns), sampling=sampling, **fields)


def call(conversation: Conversation, **fields) -> Call:
    """The conversation as an admitted request."""
    number = next(NUMBERS)
    message_id = fields.pop("message_id", f"msg_{number}")
    return Call(f"req_{number}", conversation, ReplyInfo(message_id, "model", 0), **fields)


async def read(generation) -> list[ReplyEvent]:
    """The rest of a reply."""
    return [event async for event in generation]


async def reply_to(backend, conversation: Conversation, **fields) -> list[ReplyEvent]:
    """All events of one reply, checked for the order that every reply keeps."""
    generation = await backend.open(call(conversation, **fields))
    events = await read(generation)
    check_order(events, conversation.n)
    return events


def check_order(events: list[ReplyEvent], n: int = 1) -> None:
    """Started first, Ended last, and for every sample contiguous blocks that never overlap, then its end."""
    assert isinstance(events[0], Started)
    assert isinstance(events[-1], Ended)
    begun = [event for event in events if isinstance(event, BlockStart | SampleEnd)]
    assert begun[0].sample == 0
    for sample in range(n):
        own = [event for event in events[1:-1] if event.sample == sample]
        assert isinstance(own[-1], SampleEnd)
        index, is_open = -1, False
        for event in own[:-1]:
            if isinstance(event, BlockStart):
                assert not is_open
                index, is_open = index + 1, True
            assert is_open
            assert event.index == index
            is_open = not isinstance(event, BlockStop)
        assert not is_open


def blocks(events: list[ReplyEvent], sample: int = 0) -> list[tuple[str, str]]:
    """``(kind or tool name, text)`` of a sample's blocks."""
    found: list[tuple[str, str]] = []
    for event in events:
        if getattr(event, "sample", None) != sample:
            continue
        if isinstance(event, BlockStart):
            found.append((event.name or event.kind, ""))
        elif isinstance(event, BlockDelta):
            found[-1] = (found[-1][0], found[-1][1] + event.text)
    return found


def ends(events: list[ReplyEvent]) -> list[tuple[str, str | None]]:
    """Stop and stop sequence of every sample, by sample."""
    found = {event.sample: (event.stop, event.stop_sequence) for event in events if isinstance(event, SampleEnd)}
    return [found[sample] for sample in sorted(found)]
