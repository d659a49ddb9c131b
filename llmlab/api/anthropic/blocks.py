"""Schemas of the content blocks a Messages request may hold (article A, section 2.3)."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

NAME = r"^[a-zA-Z0-9_-]{1,64}$"
"""What names of tools are made of."""
IDENTIFIER = r"^[a-zA-Z0-9_-]+$"
"""What ids of ``tool_use`` blocks are made of."""


class Part(BaseModel):
    """Base of the schemas: a type is never converted into another one, and an unknown key is an error."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True, allow_inf_nan=False)


class CacheControl(Part):
    """A cache breakpoint."""

    type: Literal["ephemeral"]
    ttl: Literal["5m", "1h"] = "5m"


class CitationsConfig(Part):
    """Whether a document may be cited; without effect here."""

    enabled: bool = False


class TextBlock(Part):
    """Text. ``citations`` are those a provider had put on an earlier answer."""

    type: Literal["text"]
    text: str
    cache_control: CacheControl | None = None
    citations: list[dict[str, Any]] | None = None


class ThinkingBlock(Part):
    """Thinking that comes back with its signature. It cannot carry a cache breakpoint."""

    type: Literal["thinking"]
    thinking: str
    signature: str


class RedactedThinkingBlock(Part):
    """Thinking that comes back unreadable."""

    type: Literal["redacted_thinking"]
    data: str


class ToolUseBlock(Part):
    """A tool call of an earlier answer."""

    type: Literal["tool_use"]
    id: str = Field(pattern=IDENTIFIER)
    name: str = Field(pattern=NAME)
    input: dict[str, Any]
    cache_control: CacheControl | None = None
    caller: dict[str, Any] | None = None
    toolset_name: str | None = None


class UnsupportedBlock(BaseModel):
    """A block that the protocol knows and a model that reads text only cannot take."""

    model_config = ConfigDict(strict=True, extra="allow", frozen=True)

    type: Literal[
        "image",
        "server_tool_use",
        "web_search_tool_result",
        "web_fetch_tool_result",
        "code_execution_tool_result",
        "bash_code_execution_tool_result",
        "text_editor_code_execution_tool_result",
        "tool_search_tool_result",
        "tool_reference",
        "tool_addition",
        "tool_removal",
        "advisor_tool_result",
        "mcp_tool_use",
        "mcp_tool_result",
        "mcp_tool_listing",
        "browser_state",
        "compaction",
        "container_upload",
        "fallback",
    ]


def _as_blocks(value: Any) -> Any:
    """A string stands for one text block, an empty one for none."""
    if isinstance(value, str):
        return [{"type": "text", "text": value}] if value else []
    return value


AsBlocks = BeforeValidator(_as_blocks)


class PlainTextSource(Part):
    """A document's text in one piece."""

    type: Literal["text"]
    media_type: Literal["text/plain"]
    data: str


class ContentSource(Part):
    """A document's text in blocks."""

    type: Literal["content"]
    content: Annotated[
        list[Annotated[TextBlock | UnsupportedBlock, Field(discriminator="type")]], Field(fail_fast=True), AsBlocks
    ]


class UnsupportedSource(BaseModel):
    """A document that is not text."""

    model_config = ConfigDict(strict=True, extra="allow", frozen=True)

    type: Literal["base64", "url", "file"]


class DocumentBlock(Part):
    """A document, with what to call it and what to know about it."""

    type: Literal["document"]
    source: Annotated[PlainTextSource | ContentSource | UnsupportedSource, Field(discriminator="type")]
    title: str | None = None
    context: str | None = None
    citations: CitationsConfig | None = None
    cache_control: CacheControl | None = None


class SearchResultBlock(Part):
    """A passage that a search found."""

    type: Literal["search_result"]
    title: str
    source: str
    content: Annotated[list[TextBlock], Field(fail_fast=True)]
    citations: CitationsConfig | None = None
    cache_control: CacheControl | None = None


ResultBlock = Annotated[
    TextBlock | DocumentBlock | SearchResultBlock | UnsupportedBlock,
    Field(discriminator="type"),
]


class ToolResultBlock(Part):
    """What a tool answered."""

    type: Literal["tool_result"]
    tool_use_id: str = Field(pattern=IDENTIFIER)
    content: Annotated[list[ResultBlock], Field(fail_fast=True), AsBlocks] = Field(default_factory=list)
    is_error: bool | None = None
    cache_control: CacheControl | None = None
    toolset_name: str | None = None


ContentBlock = Annotated[
    TextBlock
    | ThinkingBlock
    | RedactedThinkingBlock
    | ToolUseBlock
    | ToolResultBlock
    | DocumentBlock
    | SearchResultBlock
    | UnsupportedBlock,
    Field(discriminator="type"),
]


class Message(Part):
    """One message as it was sent, before neighbours of one role are merged."""

    role: Literal["user", "assistant", "system"]
    content: Annotated[list[ContentBlock], Field(fail_fast=True), AsBlocks]


System = Annotated[list[TextBlock], Field(fail_fast=True), AsBlocks]
