"""Noticing that a client has left, or that the server is stopping, while an answer is being worked on."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Coroutine, MutableMapping
from typing import Any, TypeVar

from llmlab.api.errors import ApiError

Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
T = TypeVar("T")


class ClientLeft(Exception):
    """The connection is gone; nobody can be told anything."""


def stopping_error() -> ApiError:
    """What is left to say to a request that a stopping server can no longer serve."""
    return ApiError("overloaded_error", "the server is shutting down", retry_after=5, should_retry=True)


async def until_disconnect(receive: Receive, is_answered: Callable[[], bool]) -> None:
    """Return when the client has left. The whole body must have been read before: it would be lost here.

    A complete response is announced like a lost connection; then nobody has left, and this never returns.
    """
    while (await receive())["type"] != "http.disconnect":
        pass
    if is_answered():
        await asyncio.Event().wait()


async def guarded(
    work: Coroutine[Any, Any, T], receive: Receive, stop: asyncio.Event, is_answered: Callable[[], bool]
) -> T:
    """The result of ``work``, which is cancelled at once, and waited for, when nobody wants it any more.

    A server interface announces a lost connection only to a pending ``receive`` call (``send`` may go on silently),
    so one is kept pending next to the work: that covers streams, answers in one piece, and waits before the first
    byte alike. Raises :class:`ClientLeft` when the client is gone, :func:`stopping_error` when ``stop`` is set, and
    what ``work`` raises. Being cancelled from outside ends the work too.
    """
    tasks = [asyncio.ensure_future(each) for each in (work, until_disconnect(receive, is_answered), stop.wait())]
    working, leaving, stopping = tasks
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        if working.done():
            return working.result()
        if leaving.done():
            raise ClientLeft from leaving.exception()
        stopping.result()  # raises when the event belongs to another event loop
        raise stopping_error()
    finally:
        await end_tasks(*tasks)


async def end_tasks(*tasks: asyncio.Future) -> None:
    """Cancel tasks and wait until their clean-up is over; what they raise meanwhile is of no use to anybody."""
    for task in tasks:
        task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await asyncio.gather(*tasks, return_exceptions=True)
