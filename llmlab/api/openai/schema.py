"""The body of ``POST /v1/chat/completions`` as pydantic models: names, types and ranges of the fields.

Types are strict (no ``"5"`` for 5, no ``true`` for 1) and unknown keys are refused. What takes more than one field to
judge is checked by the readers in :mod:`llmlab.api.openai.decode` and :mod:`llmlab.api.openai.messages`.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Discriminator, Field, Tag

NAME = r"^[a-zA-Z0-9_-]{1,64}$"
CHOICES = ("none", "auto", "required")

Int64 = Annotated[int, Field(ge=-(2**63), le=2**63 - 1)]
TokenId = Annotated[int, Field(ge=0, le=2**31 - 1)]
MAX_STOP_IDS = 1024
"""They are gone through for every token."""
StopString = Annotated[str, Field(min_length=1, max_length=256)]


class Strict(BaseModel):
    """Base of all parts of a request."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)


def _shape(value: Any) -> str:
    """Tag of a field that is either a string or something longer; tags in angle brackets stay out of error paths."""
    return "<string>" if isinstance(value, str) else "<other>"


class Part(Strict):
    """One part of a message's content. Parts of other kinds pass the schema so that they can be refused by name."""

    model_config = ConfigDict(strict=True, extra="allow", frozen=True)
    type: str


Parts = Annotated[list[Part], Field(min_length=1, fail_fast=True)]
Content = Annotated[Annotated[str, Tag("<string>")] | Annotated[Parts, Tag("<other>")], Discriminator(_shape)]


class CalledFunction(Strict):
    """Name and arguments of a call; the arguments are JSON text. ``parsed_arguments`` is what SDK helpers add."""

    name: str = Field(min_length=1)
    arguments: str
    parsed_arguments: Any = None


class ToolCall(Strict):
    """A call the assistant made in an earlier turn. ``index`` is left over from streams that clients put together."""

    id: str = Field(min_length=1)
    type: Literal["function"] = "function"
    function: CalledFunction
    index: int | None = None


class SystemMessage(Strict):
    """Instructions; ``developer`` is the newer name of the role."""

    role: Literal["system", "developer"]
    content: Content
    name: str | None = None


class UserMessage(Strict):
    """What the user said."""

    role: Literal["user"]
    content: Content
    name: str | None = None


class AssistantMessage(Strict):
    """A reply that came back, which is why fields that only responses have are accepted."""

    role: Literal["assistant"]
    content: Content | None = None
    name: str | None = None
    refusal: str | None = None
    tool_calls: Annotated[list[ToolCall], Field(fail_fast=True)] | None = None
    function_call: Any = None
    audio: Any = None
    annotations: Any = None
    reasoning_content: Any = None
    reasoning: Any = None
    parsed: Any = None


class ToolMessage(Strict):
    """What a tool answered to the call ``tool_call_id``."""

    role: Literal["tool"]
    content: Content
    tool_call_id: str
    name: str | None = None


def _role(value: Any) -> str | None:
    role = value.get("role") if isinstance(value, dict) else None
    tags = {"system": "<system>", "developer": "<system>", "user": "<user>", "assistant": "<assistant>"}
    return (tags | {"tool": "<tool>"}).get(role) if isinstance(role, str) else None


Message = Annotated[
    Annotated[SystemMessage, Tag("<system>")]
    | Annotated[UserMessage, Tag("<user>")]
    | Annotated[AssistantMessage, Tag("<assistant>")]
    | Annotated[ToolMessage, Tag("<tool>")],
    Discriminator(
        _role,
        custom_error_type="invalid_role",
        custom_error_message="a message is an object whose role is system, developer, user, assistant or tool",
    ),
]


class FunctionTool(Strict):
    """A function the model may call; ``parameters`` is a JSON Schema of type object."""

    name: str = Field(pattern=NAME)
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class Tool(Strict):
    """An entry of ``tools``; only functions exist here."""

    type: Literal["function"]
    function: FunctionTool


class FunctionName(Strict):
    """A function named by a tool choice."""

    name: str


class ToolReference(Strict):
    """A tool named by a tool choice."""

    type: Literal["function"]
    function: FunctionName


class AllowedTools(Strict):
    """A choice that narrows ``tools`` for one request."""

    mode: Literal["auto", "required"]
    tools: list[ToolReference] = Field(min_length=1)


class AllowedToolChoice(Strict):
    """``tool_choice`` of type ``allowed_tools``."""

    type: Literal["allowed_tools"]
    allowed_tools: AllowedTools


def _choice(value: Any) -> str:
    if isinstance(value, dict):
        return "<allowed>" if value.get("type") == "allowed_tools" else "<named>"
    return "<word>"


ToolChoice = Annotated[
    Annotated[Literal["none", "auto", "required"], Tag("<word>")]
    | Annotated[ToolReference, Tag("<named>")]
    | Annotated[AllowedToolChoice, Tag("<allowed>")],
    Discriminator(_choice),
]


class NamedSchema(Strict):
    """``response_format.json_schema``."""

    name: str = Field(pattern=NAME)
    description: str | None = None
    schema_: dict[str, Any] | None = Field(default=None, alias="schema")
    strict: bool | None = None


class ResponseFormat(Strict):
    """``text``, any JSON object, or JSON of a schema."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: NamedSchema | None = None


class StreamOptions(Strict):
    """Options of a streamed reply. Obfuscation pads chunks against traffic analysis; here nothing is padded."""

    include_usage: bool | None = None
    include_obfuscation: bool | None = None


class Unused(Strict):
    """Documented fields that have no effect here."""

    audio: dict[str, Any] | None = None
    metadata: dict[str, str] | None = None
    modalities: list[Literal["text", "audio"]] | None = None
    moderation: dict[str, Any] | None = None
    prediction: dict[str, Any] | None = None
    prompt_cache_options: dict[str, Any] | None = None
    prompt_cache_retention: Literal["in_memory", "24h"] | None = None
    prompt_logprobs: int | None = Field(default=None, ge=-1)
    store: bool | None = None
    verbosity: Literal["low", "medium", "high"] | None = None
    web_search_options: dict[str, Any] | None = None


class Extensions(Strict):
    """Fields that vLLM added to the protocol, under its names."""

    top_k: Int64 | None = Field(default=None, ge=-1)
    min_p: float | None = Field(default=None, ge=0, le=1)
    repetition_penalty: float | None = Field(default=None, ge=0.01, le=100)
    min_tokens: Int64 | None = Field(default=None, ge=0)
    ignore_eos: bool | None = None
    stop_token_ids: Annotated[list[TokenId], Field(max_length=MAX_STOP_IDS, fail_fast=True)] | None = None
    include_stop_str_in_output: bool | None = None
    return_token_ids: bool | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    cache_salt: str | None = Field(default=None, max_length=256)


class ChatRequest(Unused, Extensions):
    """A chat completion request."""

    messages: Annotated[list[Message], Field(fail_fast=True)] = Field(min_length=1)
    model: str = Field(min_length=1)
    frequency_penalty: float | None = Field(default=None, ge=-2, le=2)
    presence_penalty: float | None = Field(default=None, ge=-2, le=2)
    logit_bias: dict[str, Annotated[float, Field(ge=-100, le=100)]] | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = Field(default=None, ge=0, le=20)
    max_completion_tokens: Int64 | None = Field(default=None, ge=1)
    max_tokens: Int64 | None = Field(default=None, ge=1)
    n: int | None = Field(default=None, ge=1, le=128)
    parallel_tool_calls: bool | None = None
    prompt_cache_key: str | None = None
    reasoning_effort: Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"] | None = None
    response_format: ResponseFormat | None = None
    safety_identifier: str | None = None
    seed: Int64 | None = None
    service_tier: Literal["auto", "default", "flex", "scale", "priority", "fast"] | None = None
    stop: (
        Annotated[
            Annotated[StopString, Tag("<string>")] | Annotated[list[StopString], Field(max_length=4), Tag("<other>")],
            Discriminator(_shape),
        ]
        | None
    ) = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    temperature: float | None = Field(default=None, ge=0, le=2)
    tool_choice: ToolChoice | None = None
    tools: list[Tool] | None = Field(default=None, min_length=1, max_length=128)
    top_p: float | None = Field(default=None, gt=0, le=1)
    user: str | None = None
    function_call: Any = None
    functions: Any = None
