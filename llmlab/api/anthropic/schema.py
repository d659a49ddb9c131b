"""Schemas of the bodies of ``POST /v1/messages`` and ``POST /v1/messages/count_tokens`` (article A, section 2)."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Discriminator, Field, Tag

from llmlab.api.anthropic.blocks import NAME, CacheControl, Message, Part, System

MAX_EDITS = 8
"""Each takes the time of rendering the prompt again."""

Count = Annotated[int, Field(ge=0, le=2**31 - 1)]
"""A number of things; the upper bound keeps it within what tensors can hold."""


class CustomTool(Part):
    """A tool that the client runs."""

    name: str = Field(pattern=NAME)
    input_schema: dict[str, Any]
    description: str = ""
    type: Literal["custom"] | None = None
    strict: bool = False
    input_examples: list[dict[str, Any]] = Field(default_factory=list)
    cache_control: CacheControl | None = None
    eager_input_streaming: bool | None = None
    defer_loading: bool = False
    allowed_callers: list[str] = Field(default_factory=list)


class BuiltInTool(BaseModel):
    """A tool that hosted models know by its type."""

    model_config = ConfigDict(strict=True, extra="allow", frozen=True)

    type: str


def _tool_kind(value: Any) -> str:
    kind = value.get("type") if isinstance(value, dict) else None
    return "custom" if kind is None or kind == "custom" else "built_in"


ToolUnion = Annotated[
    Annotated[CustomTool, Tag("custom")] | Annotated[BuiltInTool, Tag("built_in")], Discriminator(_tool_kind)
]


class ChoiceAuto(Part):
    """The model decides."""

    type: Literal["auto"]
    disable_parallel_tool_use: bool = False


class ChoiceAny(Part):
    """Some tool must be called."""

    type: Literal["any"]
    disable_parallel_tool_use: bool = False


class ChoiceTool(Part):
    """This tool must be called."""

    type: Literal["tool"]
    name: str
    disable_parallel_tool_use: bool = False


class ChoiceNone(Part):
    """No tool may be called."""

    type: Literal["none"]


ToolChoiceUnion = Annotated[ChoiceAuto | ChoiceAny | ChoiceTool | ChoiceNone, Field(discriminator="type")]


class ThinkingEnabled(Part):
    """Thinking with a budget of tokens."""

    type: Literal["enabled"]
    budget_tokens: Count
    display: Literal["summarized", "omitted", "updates"] | None = None
    block_binding: dict[str, Any] | None = None


class ThinkingAdaptive(Part):
    """Thinking whose length the server chooses."""

    type: Literal["adaptive"]
    display: Literal["summarized", "omitted", "updates"] | None = None
    block_binding: dict[str, Any] | None = None


class ThinkingDisabled(Part):
    """No thinking."""

    type: Literal["disabled"]


class ThinkingBetweenTools(Part):
    """Thinking after tool results only; without effect here."""

    type: Literal["between_tools"]


ThinkingUnion = Annotated[
    ThinkingEnabled | ThinkingAdaptive | ThinkingDisabled | ThinkingBetweenTools, Field(discriminator="type")
]


class JsonFormat(Part):
    """The answer must be JSON of a schema."""

    type: Literal["json_schema"]
    json_schema: dict[str, Any] = Field(alias="schema")


class TaskBudget(Part):
    """Tokens for a whole agentic task; without effect here."""

    type: Literal["tokens"]
    total: Count
    remaining: Count | None = None


class OutputConfig(Part):
    """How the answer should be."""

    effort: Literal["low", "medium", "high", "xhigh", "max"] | None = None
    format: JsonFormat | None = None
    task_budget: TaskBudget | None = None


class InputTokens(Part):
    """A number of input tokens."""

    type: Literal["input_tokens"]
    value: Count


class ToolUses(Part):
    """A number of tool uses."""

    type: Literal["tool_uses"]
    value: Count


class ClearToolUsesEdit(Part):
    """Drop old tool results."""

    type: Literal["clear_tool_uses_20250919"]
    trigger: Annotated[InputTokens | ToolUses, Field(discriminator="type")] | None = None
    keep: ToolUses | None = None
    clear_at_least: InputTokens | None = None
    exclude_tools: list[str] | None = None
    clear_tool_inputs: bool | list[str] | None = None


class AllTurns(Part):
    """Every assistant turn."""

    type: Literal["all"]


class ThinkingTurns(Part):
    """The latest assistant turns that hold thinking."""

    type: Literal["thinking_turns"]
    value: int = Field(gt=0, le=2**31 - 1)


def _all_turns(value: Any) -> Any:
    return {"type": "all"} if value == "all" else value


class ClearThinkingEdit(Part):
    """Drop old thinking."""

    type: Literal["clear_thinking_20251015"]
    keep: (
        Annotated[Annotated[AllTurns | ThinkingTurns, Field(discriminator="type")], BeforeValidator(_all_turns)] | None
    ) = None


class CompactEdit(BaseModel):
    """Have the server summarise the conversation."""

    model_config = ConfigDict(strict=True, extra="allow", frozen=True)

    type: Literal["compact_20260112"]


EditUnion = Annotated[ClearToolUsesEdit | ClearThinkingEdit | CompactEdit, Field(discriminator="type")]


class ContextManagement(Part):
    """Edits of the context, in the order in which they are made."""

    edits: list[EditUnion] = Field(default_factory=list, max_length=MAX_EDITS)


class Diagnostics(Part):
    """The reply that the prompt is compared with, to say why the cache missed."""

    previous_message_id: str | None = None


class Metadata(Part):
    """Who asks."""

    user_id: str | None = None


class Thread(BaseModel):
    """A conversation that the provider keeps."""

    model_config = ConfigDict(strict=True, extra="allow", frozen=True)

    type: Literal["create", "continue"]


class CountRequest(Part):
    """What counting needs: everything that can become part of the prompt."""

    model: str = Field(min_length=1, max_length=256)
    messages: Annotated[list[Message], Field(fail_fast=True)] = Field(max_length=100_000)
    system: System = Field(default_factory=list)
    tools: Annotated[list[ToolUnion], Field(fail_fast=True)] = Field(default_factory=list)
    tool_choice: ToolChoiceUnion | None = None
    thinking: ThinkingUnion | None = None
    output_config: OutputConfig | None = None
    cache_control: CacheControl | None = None
    context_management: ContextManagement | None = None
    speed: Literal["standard", "fast"] | None = None
    mcp_servers: list[dict[str, Any]] = Field(default_factory=list)
    billing_policy: dict[str, Any] | None = None
    compaction: dict[str, Any] | None = None


class MessageRequest(CountRequest):
    """A request for a message."""

    max_tokens: Count
    stream: bool = False
    stop_sequences: Annotated[list[str], Field(fail_fast=True)] = Field(default_factory=list)
    temperature: float | None = Field(default=None, ge=0, le=1)
    top_p: float | None = Field(default=None, gt=0, le=1)
    top_k: Count | None = None
    metadata: Metadata | None = None
    service_tier: Literal["auto", "standard_only"] = "auto"
    inference_geo: str | None = None
    diagnostics: Diagnostics | None = None
    container: str | dict[str, Any] | None = None
    fallbacks: Literal["default"] | list[dict[str, Any]] | None = None
    fallback_credit_token: str | dict[str, Any] | None = None
    thread: Thread | None = None
