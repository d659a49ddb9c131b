"""What the gateway needs from whatever computes the answers."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Protocol

from llmlab.api.conversation import Conversation
from llmlab.api.reply import ReplyEvent, ReplyInfo


@dataclass(frozen=True, slots=True)
class Model:
    """A model as ``/v1/models`` shows it. Token counts are ``None`` when an upstream does not tell."""

    id: str
    created: int
    max_input_tokens: int | None = None
    max_tokens: int | None = None
    owned_by: str = "llmlab"


@dataclass(frozen=True, slots=True)
class Call:
    """One admitted request on its way to a backend.

    ``wire_id`` is the ``request-id`` header of its response and its id in the trace. ``priority``: lower goes first.
    ``salt`` keeps cached prefixes of different credentials apart.
    """

    wire_id: str
    conversation: Conversation
    info: ReplyInfo
    priority: int = 0
    salt: str = ""


class Generation(Protocol):
    """A reply in the making. Leaving it early with ``aclose`` frees everything it holds."""

    def __aiter__(self) -> AsyncIterator[ReplyEvent]:
        """The events of :mod:`llmlab.api.reply`; a failure is raised as ``ApiError``."""

    async def aclose(self) -> None:
        """Stop generating before the next step; harmless after the end."""


class Backend(Protocol):
    """Two implementations: our engine (:mod:`llmlab.gateway.engine_backend`), any OpenAI-compatible server
    (:mod:`llmlab.gateway.upstream`).

    A backend that serves some fields of a conversation only elsewhere has a method ``ignores(conversation)``, which
    gives the names of those that it does nothing about; clients are told them.
    """

    name: str

    async def models(self) -> list[Model]:
        """What can be asked for here."""

    async def open(self, call: Call) -> Generation:
        """Admit a request. Whatever can be refused is refused here, as ``ApiError``, before anything is sent."""

    async def count_tokens(self, conversation: Conversation) -> tuple[int, int]:
        """``(input tokens after context edits, before them)``."""

    @property
    def load(self) -> int:
        """Requests open at this backend, waiting ones included."""

    async def aclose(self) -> None:
        """Let go of connections; open generations have been closed before."""
