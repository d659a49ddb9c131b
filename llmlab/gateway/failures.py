"""What the engine refuses, in the words of the wire."""

from __future__ import annotations

import logging

from llmlab.api.errors import ApiError
from llmlab.errors import ContextOverflow, EmptyPrompt, EngineStopped, InvalidParameter, LabError, PoolTooSmall

_THEIRS = (InvalidParameter, EmptyPrompt, ContextOverflow, PoolTooSmall)


def to_api_error(error: LabError) -> ApiError:
    """The wire's form of an error: 400 for what the request caused, 503 for an engine that stopped, else 500."""
    if isinstance(error, ApiError):
        return error
    if isinstance(error, _THEIRS):
        return ApiError("invalid_request_error", str(error))
    if isinstance(error, EngineStopped):
        return ApiError("api_error", str(error), status=503, should_retry=True)
    if error.__cause__ is not None:  # a mistake of ours, whose words may name files and settings of this machine
        logging.getLogger(__name__).error("the engine failed", exc_info=error)
        return ApiError("api_error", "the engine failed while it computed this reply: the server's log says why")
    return ApiError("api_error", str(error))


def room_for(prompt: int, max_tokens: int | None, context: int, overflow: str) -> tuple[int, bool]:
    """Output tokens a request may have, and whether that is less than it asked for.

    ``overflow`` says what happens when prompt plus ``max_tokens`` exceed ``context``: ``refuse`` raises ``ApiError``
    (400) with the three numbers, ``stop`` gives what is left. A prompt that leaves no room is refused either way.
    """
    if prompt >= context:
        raise prompt_too_long(prompt, context)
    room = context - prompt
    if max_tokens is None:
        return room, True
    if max_tokens <= room:
        return max_tokens, False
    if overflow == "stop":
        return room, True
    raise _too_long(
        f"input length and `max_tokens` exceed context limit: {prompt} + {max_tokens} > {context}, "
        "decrease input length or `max_tokens` and try again"
    )


def prompt_too_long(prompt: int, context: int, at_least: bool = False) -> ApiError:
    """A prompt of ``prompt`` tokens, or more when ``at_least``, that leaves no room for an answer."""
    note = " (at least so many: the text is too long to be tokenized)" if at_least else ""
    return _too_long(f"prompt is too long: {prompt} tokens > {context - 1} maximum{note}")


def _too_long(message: str) -> ApiError:
    return ApiError("invalid_request_error", message, code="context_length_exceeded")
