"""A backend that says what it is told to, and counts what happens to it."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field

import httpx2

from llmlab.api.conversation import Conversation
from llmlab.api.errors import ApiError
from llmlab.api.reply import BlockDelta, BlockStart, BlockStop, Ended, ReplyEvent, SampleEnd, Started
from llmlab.api.usage import Usage
from llmlab.gateway.app import Gateway
from llmlab.gateway.backend import Call, Model
from llmlab.gateway.settings import Settings
from llmlab.trace.events import Event
from llmlab.trace.recorder import Recorder

PROMPT_TOKENS, CACHED_TOKENS = 12, 4


def reply_events(words: Sequence[str]) -> list[ReplyEvent | float]:
    """A reply of one text block, one token a word."""
    usage = Usage(PROMPT_TOKENS - CACHED_TOKENS, CACHED_TOKENS)
    done = Usage(PROMPT_TOKENS - CACHED_TOKENS, CACHED_TOKENS, output=len(words))
    deltas = [BlockDelta(0, 0, word, (index,)) for index, word in enumerate(words)]
    return [Started(usage), BlockStart(0, 0, "text"), *deltas, BlockStop(0, 0), SampleEnd(0, "end_turn"), Ended(done)]


@dataclass
class ScriptedBackend:
    """``script`` holds events, errors to raise, and pauses (numbers of seconds); ``open_script`` runs inside open."""

    name: str = "scripted"
    script: Sequence[ReplyEvent | Exception | float] = field(default_factory=lambda: reply_events(["one ", "two"]))
    open_script: Sequence[Exception | float] = ()
    model_names: Sequence[str] = ("tiny",)
    pretended_load: int | None = None
    calls: list[Call] = field(default_factory=list)
    opened: int = 0
    closed: int = 0
    cancelled_opens: int = 0

    async def models(self) -> list[Model]:
        """The models it was told to have."""
        return [Model(name, 1_700_000_000, 4096, 1024) for name in self.model_names]

    async def open(self, call: Call) -> ScriptedGeneration:
        """Act out ``open_script``, then admit the call."""
        self.calls.append(call)
        try:
            for item in self.open_script:
                await act(item)
        except asyncio.CancelledError:
            self.cancelled_opens += 1
            raise
        self.opened += 1
        return ScriptedGeneration(self)

    async def count_tokens(self, conversation: Conversation) -> tuple[int, int]:
        """Always the same."""
        return PROMPT_TOKENS, PROMPT_TOKENS + 3

    @property
    def load(self) -> int:
        """What it pretends to have open, else what it has."""
        return self.opened - self.closed if self.pretended_load is None else self.pretended_load

    async def aclose(self) -> None:
        """Nothing to let go of."""


async def act(item: ReplyEvent | Exception | float) -> ReplyEvent | None:
    """Raise an error, sleep, or give an event."""
    if isinstance(item, Exception):
        raise item
    if isinstance(item, int | float):
        await asyncio.sleep(item)
        return None
    return item


class ScriptedGeneration:
    """Plays its backend's script and notes that it was closed."""

    def __init__(self, backend: ScriptedBackend) -> None:
        self.backend, self.is_closed = backend, False

    async def __aiter__(self):
        """The script."""
        for item in self.backend.script:
            if (event := await act(item)) is not None:
                yield event

    async def aclose(self) -> None:
        """Counted once."""
        if not self.is_closed:
            self.is_closed = True
            self.backend.closed += 1


def overloaded() -> ApiError:
    """A refusal a backend may answer with."""
    return ApiError("overloaded_error", "too many requests at the engine", retry_after=2)


def gateway_of(*backends: ScriptedBackend, recorder: Recorder | None = None, **settings) -> Gateway:
    """A gateway on scripted backends, on one of them when none is given."""
    return Gateway(backends or (ScriptedBackend(),), Settings(**settings), recorder or Recorder())


def client_of(gateway: Gateway, **options) -> httpx2.AsyncClient:
    """A client that calls the application without a socket."""
    return httpx2.AsyncClient(
        transport=httpx2.ASGITransport(app=gateway.app), base_url="http://127.0.0.1", timeout=30, **options
    )


def message_body(**changes) -> dict:
    """A small body of ``/v1/messages``."""
    return {"model": "tiny", "max_tokens": 16, "messages": [{"role": "user", "content": "hello"}]} | changes


def chat_body(**changes) -> dict:
    """A small body of ``/v1/chat/completions``."""
    return {"model": "tiny", "messages": [{"role": "user", "content": "hello"}]} | changes


def recorded(gateway: Gateway, kind: type[Event]) -> list:
    """The events of one type, in the order in which they were recorded."""
    return [event for event in gateway.recorder.snapshot() if type(event) is kind]
