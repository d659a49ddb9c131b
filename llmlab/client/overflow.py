"""When input and ``max_tokens`` together exceed the context, the refusal has the numbers to repair the request.

Article A, section 3.8: read them, lower ``max_tokens`` to what is left less a margin, try again; give up below a
floor. Newer models accept such requests and stop with ``model_context_window_exceeded``: there is nothing to repair
then, and :attr:`~llmlab.client.message.Message.was_cut_short` tells.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from llmlab.client.stream_errors import ApiFailure, InvalidRequest
from llmlab.errors import InvalidParameter

MARGIN_TOKENS = 1_000
FLOOR_TOKENS = 3_000
MAX_HEALS = 2
"""How often one request is repaired: an honest server needs one, a second allows for a count that moved."""

_WORDING = re.compile(r"input length and `max_tokens` exceed context limit: (\d{1,12}) \+ (\d{1,12}) > (\d{1,12})")


class NoRoomLeft(InvalidRequest):
    """The input leaves fewer tokens than the floor: shorten it, or lower the floor.

    ``input_tokens``, ``max_tokens``, ``context`` are the server's numbers, ``room`` what is left less the margin.
    """

    def __init__(self, overflow: Overflow, room: int, floor: int, failure: ApiFailure) -> None:
        super().__init__(
            f"an input of {overflow.input_tokens:,} tokens in a context of {overflow.context:,} leaves {room:,} for "
            f"the answer, below the floor of {floor:,}: shorten the input or give Healing(floor=...)",
            kind=failure.kind,
            status=failure.status,
            headers=failure.headers,
        )
        self.input_tokens, self.max_tokens, self.context = overflow.input_tokens, overflow.max_tokens, overflow.context
        self.room = room
        self.request_id, self.client_request_id = failure.request_id, failure.client_request_id
        self.attempts = failure.attempts


@dataclass(frozen=True, slots=True)
class Overflow:
    """The three numbers of the refusal, in tokens."""

    input_tokens: int
    max_tokens: int
    context: int


def read_overflow(message: str) -> Overflow | None:
    """The numbers in an error message, or ``None`` if it is about something else or they do not exceed the limit."""
    match = _WORDING.search(message)
    found = Overflow(*map(int, match.groups())) if match else None
    return found if found and found.input_tokens + found.max_tokens > found.context else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Healing:
    """``margin``: tokens kept free beside the answer. ``floor``: shortest answer worth asking for (tokens).

    A model with a short context needs both smaller. Raises ``InvalidParameter``.
    """

    margin: int = MARGIN_TOKENS
    floor: int = FLOOR_TOKENS

    def __post_init__(self) -> None:
        if self.margin < 0 or self.floor < 1:
            raise InvalidParameter(f"margin={self.margin} must be at least 0 and floor={self.floor} at least 1")

    def max_tokens_for(self, failure: ApiFailure) -> int | None:
        """The ``max_tokens`` to try next, or ``None`` if the failure is not an overflow.

        Raises ``NoRoomLeft``. The result is always smaller than the one that was refused.
        """
        overflow = read_overflow(failure.message) if failure.status == 400 else None
        if overflow is None:
            return None
        room = overflow.context - overflow.input_tokens - self.margin
        if room < self.floor:
            raise NoRoomLeft(overflow, room, self.floor, failure) from failure
        return room
