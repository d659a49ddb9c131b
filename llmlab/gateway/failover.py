"""Another backend when the chosen one cannot take a request."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar

from llmlab.api.conversation import Conversation
from llmlab.api.errors import ApiError
from llmlab.gateway.backend import Backend, Call, Generation
from llmlab.gateway.recording import ExchangeLog
from llmlab.gateway.routing import Choice, Router

T = TypeVar("T")
ELSEWHERE = frozenset({429, 500, 502, 503, 529})
"""Refusals that another backend may not repeat. A wrong request stays wrong; after 504 a client has waited enough."""


class Failover:
    """Opens one request at ``choice``, or at the other backends of its model in turn until one admits it.

    Nothing has been sent to the client then, so nobody sees it but the trace: a stage ``failover`` for each move.
    ``moved`` is called with every choice that replaces the first. To a reply it looks like one backend.
    """

    def __init__(
        self,
        router: Router,
        choice: Choice,
        salt: str,
        log: ExchangeLog,
        moved: Callable[[Choice], None] = lambda _: None,
    ) -> None:
        self._router, self._salt, self._log, self._moved = router, salt, log, moved
        self.choice = choice

    @property
    def name(self) -> str:
        """Of the backend that has the request now."""
        return self.choice.backend.name

    @property
    def load(self) -> int:
        """Of the backend that has the request now."""
        return self.choice.backend.load

    def ignores(self, conversation: Conversation) -> tuple[str, ...]:
        """Fields that the backend which has the request now does nothing about."""
        ignores = getattr(self.choice.backend, "ignores", None)
        return () if ignores is None else ignores(conversation)

    async def open(self, call: Call) -> Generation:
        """Admit the request somewhere. Raises the ``ApiError`` of the last backend that was tried."""
        return await self._first(call.conversation, lambda backend: backend.open(call))

    async def count_tokens(self, conversation: Conversation) -> tuple[int, int]:
        """Count its tokens somewhere; raises likewise."""
        return await self._first(conversation, lambda backend: backend.count_tokens(conversation))

    async def _first(self, conversation: Conversation, ask: Callable[[Backend], Awaitable[T]]) -> T:
        tried: set[int] = set()
        while True:
            try:
                return await ask(self.choice.backend)
            except ApiError as error:
                tried.add(self.choice.index)
                if error.status not in ELSEWHERE or not await self._move(conversation, tried, error):
                    raise

    async def _move(self, conversation: Conversation, tried: set[int], error: ApiError) -> bool:
        """Choose a backend that was not tried; whether there was one."""
        other = await self._router.another(self.choice.model, conversation, self._salt, tried)
        if other is None:
            return False
        with self._log.stage("failover") as stage:
            stage.note(f"{self.name} refused ({error.status}): {other.reason}", **other.details, failed=self.name)
        self.choice = other
        self._moved(other)
        return True
