"""Anthropic's Messages API as a :class:`llmlab.api.codec.Codec`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from llmlab.api.anthropic.decode import decode_count, decode_message
from llmlab.api.anthropic.encode import AnthropicMessage, AnthropicStream
from llmlab.api.conversation import Conversation
from llmlab.api.errors import ApiError
from llmlab.api.reply import ReplyInfo
from llmlab.api.rules import Rules


class AnthropicCodec:
    """Codec of ``POST /v1/messages`` and of ``POST /v1/messages/count_tokens``."""

    name = "anthropic"

    def decode(self, body: Any, headers: Mapping[str, str], rules: Rules) -> Conversation:
        """The request in a parsed JSON body; ``headers`` have lower-case names. Raises ``ApiError``."""
        return decode_message(body, headers, rules)

    def decode_count(self, body: Any, headers: Mapping[str, str], rules: Rules) -> Conversation:
        """What a parsed JSON body asks to have counted. Raises ``ApiError``."""
        return decode_count(body, headers, rules)

    def stream(self, info: ReplyInfo, conversation: Conversation) -> AnthropicStream:
        """An encoder for a streamed reply."""
        return AnthropicStream(info, conversation)

    def collect(self, info: ReplyInfo, conversation: Conversation) -> AnthropicMessage:
        """A collector for a reply in one piece."""
        return AnthropicMessage(info, conversation)

    def error_body(self, error: ApiError, request_id: str) -> dict[str, Any]:
        """The body of an error response."""
        return error.anthropic(request_id)

    def request_id_header(self) -> str:
        """Name of the response header that carries the request id."""
        return "request-id"
