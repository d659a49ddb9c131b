"""What a request asks for, whichever protocol it came in: the form between the codecs and the backends.

A codec turns a checked request body into a :class:`Conversation`; a backend renders and serves it. Everything here is
plain immutable data. Positions of cache markers are part of the blocks they sit on, so that a backend that has no use
for them can ignore them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

Protocol = Literal["anthropic", "openai"]
Ttl = Literal["5m", "1h"]


@dataclass(frozen=True, slots=True)
class CacheMarker:
    """A cache breakpoint: the prefix up to and including its block may be read and written for ``ttl``."""

    ttl: Ttl = "5m"


@dataclass(frozen=True, slots=True)
class Text:
    """Text of a system prompt, a turn or a tool result."""

    text: str
    marker: CacheMarker | None = None


@dataclass(frozen=True, slots=True)
class Thinking:
    """A thinking block that came back. ``redacted`` ones carry opaque ``data`` in place of text."""

    text: str
    signature: str = ""
    redacted: bool = False


@dataclass(frozen=True, slots=True)
class ToolUse:
    """The assistant asked for a tool. ``input`` is the parsed JSON object, in the key order in which it came."""

    id: str
    name: str
    input: Mapping[str, Any]
    marker: CacheMarker | None = None


@dataclass(frozen=True, slots=True)
class ToolResult:
    """What a tool answered, as text; ``tool_use_id`` names the :class:`ToolUse` it belongs to."""

    tool_use_id: str
    content: tuple[Text, ...] = ()
    is_error: bool = False
    marker: CacheMarker | None = None


Block = Text | Thinking | ToolUse | ToolResult


@dataclass(frozen=True, slots=True)
class Turn:
    """One message after merging: neighbours have different roles. Tool results are blocks of a user turn."""

    role: Literal["user", "assistant", "system"]
    blocks: tuple[Block, ...]


@dataclass(frozen=True, slots=True)
class Tool:
    """A tool the model may ask for. ``input_schema`` is a JSON Schema of type object."""

    name: str
    description: str = ""
    input_schema: Mapping[str, Any] = field(default_factory=lambda: {"type": "object"})
    strict: bool = False
    marker: CacheMarker | None = None


@dataclass(frozen=True, slots=True)
class ToolChoice:
    """Who decides about tool calls: the model (``auto``), nobody (``none``), the request (``any``, ``tool``).

    ``name`` is set for ``tool``. ``parallel=False`` allows at most one call.
    """

    mode: Literal["auto", "any", "tool", "none"] = "auto"
    name: str | None = None
    parallel: bool = True


@dataclass(frozen=True, slots=True)
class OutputFormat:
    """The answer must be JSON: of this JSON Schema, or any object when ``schema`` is ``None``."""

    schema: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class ThinkingMode:
    """A thinking phase before the answer. ``budget_tokens=None`` leaves its length to the server.

    ``display="omitted"`` sends the signature without the text.
    """

    budget_tokens: int | None = None
    display: Literal["summarized", "omitted"] = "summarized"


@dataclass(frozen=True, slots=True)
class ClearToolUses:
    """Context edit: drop the oldest tool results once the prompt is past the trigger.

    ``trigger`` and ``clear_at_least`` count input tokens, or tool uses when ``trigger_kind`` is ``tool_uses``;
    ``keep`` is the number of latest tool uses left alone. ``clear_inputs`` also empties the calls' arguments: of all
    tools, of none, or of the named ones.
    """

    trigger_kind: Literal["input_tokens", "tool_uses"] = "input_tokens"
    trigger: int = 100_000
    keep: int = 3
    clear_at_least: int = 0
    exclude_tools: tuple[str, ...] = ()
    clear_inputs: bool | tuple[str, ...] = False


@dataclass(frozen=True, slots=True)
class ClearThinking:
    """Context edit: drop thinking blocks of all but the last ``keep`` assistant turns (``None`` keeps all)."""

    keep: int | None = 1


ContextEdit = ClearToolUses | ClearThinking


@dataclass(frozen=True, slots=True)
class Conversation:
    """One request. ``sampling`` holds keyword arguments of ``SamplingParams`` (``max_tokens`` and ``stop`` among them).

    ``prewarm``: compute and cache the prompt, generate nothing (``max_tokens: 0``). ``auto_cache``: the marker of
    automatic caching, to be put on the last block that can carry one. ``previous_message_id`` is compared with when
    ``wants_diagnostics``. ``continue_last``: the last turn is the assistant's and is continued, not closed.
    ``beta``: the client asked for the beta surface and knows the fields that only it has.
    ``cache_salt`` keeps prefixes apart; ``cache_key`` is a routing hint. ``ignored`` lists the paths of fields that
    were accepted and have no effect here.
    """

    protocol: Protocol
    model: str
    turns: tuple[Turn, ...]
    system: tuple[Text, ...] = ()
    tools: tuple[Tool, ...] = ()
    tool_choice: ToolChoice = ToolChoice()
    sampling: Mapping[str, Any] = field(default_factory=dict)
    stream: bool = False
    include_usage: bool = False
    prewarm: bool = False
    format: OutputFormat | None = None
    thinking: ThinkingMode | None = None
    auto_cache: CacheMarker | None = None
    edits: tuple[ContextEdit, ...] = ()
    wants_diagnostics: bool = False
    previous_message_id: str | None = None
    continue_last: bool = False
    service_tier: str = "auto"
    speed: str | None = None
    inference_geo: str | None = None
    user: str | None = None
    cache_key: str | None = None
    cache_salt: str = ""
    return_token_ids: bool = False
    beta: bool = False
    ignored: tuple[str, ...] = ()

    @property
    def n(self) -> int:
        """Number of samples asked for."""
        return int(self.sampling.get("n", 1))
