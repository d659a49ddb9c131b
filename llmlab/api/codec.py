"""What the gateway needs from a wire format."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from llmlab.api.conversation import Conversation
from llmlab.api.errors import ApiError
from llmlab.api.reply import ReplyEvent, ReplyInfo
from llmlab.api.rules import Rules


class StreamEncoder(Protocol):
    """Turns the events of one reply into server-sent events, ready to be sent."""

    def encode(self, event: ReplyEvent) -> bytes:
        """Zero or more whole frames."""

    def ping(self) -> bytes:
        """A frame that only shows that the connection lives; allowed at any time before the end."""

    def error(self, error: ApiError) -> bytes:
        """The frames that end a stream after a failure; nothing follows them."""


class Collector(Protocol):
    """Puts the events of one reply together to one response body."""

    def add(self, event: ReplyEvent) -> None:
        """Take the next event."""

    def body(self) -> dict[str, Any]:
        """The response, once ``Ended`` has been added."""


class Codec(Protocol):
    """Two implementations: :mod:`llmlab.api.anthropic` and :mod:`llmlab.api.openai`."""

    name: str

    def decode(self, body: Any, headers: Mapping[str, str], rules: Rules) -> Conversation:
        """The request in a parsed JSON body; ``headers`` have lower-case names. Raises ``ApiError``."""

    def stream(self, info: ReplyInfo, conversation: Conversation) -> StreamEncoder:
        """An encoder for a streamed reply."""

    def collect(self, info: ReplyInfo, conversation: Conversation) -> Collector:
        """A collector for a reply in one piece."""

    def error_body(self, error: ApiError, request_id: str) -> dict[str, Any]:
        """The body of an error response."""

    def request_id_header(self) -> str:
        """Name of the response header that carries the request id."""
