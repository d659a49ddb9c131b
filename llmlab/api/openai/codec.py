"""Chat completions as a codec."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from llmlab.api.conversation import Conversation
from llmlab.api.errors import ApiError
from llmlab.api.openai.collect import OpenAICollector
from llmlab.api.openai.decode import decode
from llmlab.api.openai.encode import OpenAIStream
from llmlab.api.openai.schema import ChatRequest
from llmlab.api.reply import ReplyInfo
from llmlab.api.rules import Rules


class OpenAICodec:
    """Implements :class:`llmlab.api.codec.Codec` for ``POST /v1/chat/completions``."""

    name = "openai"

    def decode(self, body: Any, headers: Mapping[str, str], rules: Rules) -> Conversation:
        """The request in a parsed JSON body; no header changes its meaning. Raises ``ApiError``."""
        return decode(body, rules)

    def stream(self, info: ReplyInfo, conversation: Conversation) -> OpenAIStream:
        """An encoder for a streamed reply."""
        return OpenAIStream(info, conversation)

    def collect(self, info: ReplyInfo, conversation: Conversation) -> OpenAICollector:
        """A collector for a reply in one piece."""
        return OpenAICollector(info, conversation)

    def error_body(self, error: ApiError, request_id: str) -> dict[str, Any]:
        """The envelope; OpenAI's has no place for the request id, which is in the header."""
        return error.openai()

    def request_id_header(self) -> str:
        """Name of the response header that carries the request id."""
        return "x-request-id"

    def request_schema(self) -> dict[str, Any]:
        """JSON Schema of the request body, for an OpenAPI document."""
        return ChatRequest.model_json_schema()
