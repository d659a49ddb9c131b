"""A conversation as the body of a chat completion request to another server."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from llmlab.api.conversation import (
    Conversation,
    OutputFormat,
    Text,
    Thinking,
    Tool,
    ToolChoice,
    ToolResult,
    ToolUse,
    Turn,
)
from llmlab.api.errors import ApiError

SAMPLING_NAMES: Mapping[str, str] = MappingProxyType(
    {
        "temperature": "temperature",
        "top_p": "top_p",
        "n": "n",
        "seed": "seed",
        "presence_penalty": "presence_penalty",
        "frequency_penalty": "frequency_penalty",
        "logit_bias": "logit_bias",
        "top_k": "top_k",
        "min_p": "min_p",
        "repetition_penalty": "repetition_penalty",
        "min_tokens": "min_tokens",
        "ignore_eos": "ignore_eos",
        "stop_token_ids": "stop_token_ids",
        "include_stop": "include_stop_str_in_output",
    }
)
"""Arguments of ``SamplingParams`` and their names on the wire; those from ``top_k`` on are vLLM's extensions."""


NO_TIER = frozenset({"auto", "default", "standard_only"})
"""Values of ``service_tier`` that ask for nothing in particular."""


def request_body(conversation: Conversation, model: str, salt: str = "", limit_name: str = "max_tokens") -> dict:
    """The body of a streamed request for usage and everything the conversation asks for.

    What the conversation leaves out stays out, so the upstream's own defaults hold there. What the format has no place
    for is dropped: see :func:`dropped_fields`.
    ``limit_name`` is the field for the output limit. Raises ``ApiError`` for what the format cannot express.
    """
    if conversation.prewarm:
        raise ApiError("invalid_request_error", "max_tokens: 0 is not possible here: this model is on another server")
    body: dict[str, Any] = {"model": model, "messages": messages(conversation)}
    body |= {"stream": True, "stream_options": {"include_usage": True}}
    body |= _sampling(conversation.sampling, limit_name) | _tools(_promised(conversation), conversation.tool_choice)
    body |= _format(conversation.format)
    if conversation.continue_last:
        body |= {"continue_final_message": True, "add_generation_prompt": False}
    if conversation.return_token_ids:
        body["return_token_ids"] = True
    salt += conversation.cache_salt
    return body | {"cache_salt": salt} if salt else body


def dropped_fields(conversation: Conversation) -> tuple[str, ...]:
    """Names, in the client's protocol, of what a conversation holds and :func:`request_body` has no place for."""
    blocks = [block for turn in conversation.turns for block in turn.blocks]
    results = [block for block in blocks if isinstance(block, ToolResult)]
    marked = [*conversation.system, *conversation.tools, *blocks, *(text for each in results for text in each.content)]
    is_anthropic = conversation.protocol == "anthropic"
    found = {
        "thinking" if is_anthropic else "reasoning_effort": conversation.thinking is not None,
        "messages.content.thinking": any(isinstance(block, Thinking) for block in blocks),
        "messages.content.is_error": any(block.is_error for block in results),
        "cache_control": conversation.auto_cache or any(getattr(block, "marker", None) for block in marked),
        "context_management": conversation.edits,
        "diagnostics": conversation.wants_diagnostics,
        "service_tier": conversation.service_tier not in NO_TIER,
    }
    return tuple(name for name, is_there in found.items() if is_there)


def tokenize_body(conversation: Conversation, model: str) -> dict[str, Any]:
    """The body of vLLM's ``/tokenize`` for the prompt of a conversation."""
    body: dict[str, Any] = {"model": model, "messages": messages(conversation)}
    return body | {"tools": tools(conversation.tools)} if conversation.tools else body


def count_body(conversation: Conversation, model: str) -> dict[str, Any]:
    """The body of Anthropic's ``/v1/messages/count_tokens`` for it; what :func:`request_body` drops is left out too."""
    turns = [{"role": turn.role, "content": _blocks(turn)} for turn in conversation.turns]
    body: dict[str, Any] = {"model": model, "messages": [turn for turn in turns if turn["content"]]}
    if conversation.system:
        body["system"] = _join(conversation.system)
    if conversation.tools:
        body["tools"] = [
            {"name": tool.name, "description": tool.description, "input_schema": tool.input_schema}
            for tool in conversation.tools
        ]
    return body


def messages(conversation: Conversation) -> list[dict[str, Any]]:
    """System prompt and turns in the format's message list."""
    system = [{"role": "system", "content": _join(conversation.system)}] if conversation.system else []
    return system + [message for turn in conversation.turns for message in _turn(turn)]


def tools(found: Iterable[Tool]) -> list[dict[str, Any]]:
    """Tools as functions."""
    return [{"type": "function", "function": _function(tool)} for tool in found]


def _turn(turn: Turn) -> Iterator[dict[str, Any]]:
    """Tool results come first and are messages of their own; a turn of thinking only leaves nothing."""
    texts = [block for block in turn.blocks if isinstance(block, Text)]
    calls = [_call(block) for block in turn.blocks if isinstance(block, ToolUse)]
    for block in turn.blocks:
        if isinstance(block, ToolResult):
            yield {"role": "tool", "tool_call_id": block.tool_use_id, "content": _join(block.content)}
    if calls:
        yield {"role": turn.role, "content": _join(texts) or None, "tool_calls": calls}
    elif texts:
        yield {"role": turn.role, "content": _join(texts)}


def _blocks(turn: Turn) -> list[dict[str, Any]]:
    """Content blocks of Anthropic's format; results come first there as well."""
    found: list[dict[str, Any]] = []
    for block in sorted(turn.blocks, key=lambda block: not isinstance(block, ToolResult)):
        if isinstance(block, ToolResult):
            result = {"type": "tool_result", "tool_use_id": block.tool_use_id, "content": _join(block.content)}
            found.append(result | {"is_error": True} if block.is_error else result)
        elif isinstance(block, ToolUse):
            found.append({"type": "tool_use", "id": block.id, "name": block.name, "input": block.input})
        elif isinstance(block, Text) and block.text:
            found.append({"type": "text", "text": block.text})
    return found


def _call(use: ToolUse) -> dict[str, Any]:
    arguments = json.dumps(use.input, ensure_ascii=False, default=dict)
    return {"id": use.id, "type": "function", "function": {"name": use.name, "arguments": arguments}}


def _join(texts: Iterable[Text]) -> str:
    return "\n\n".join(text.text for text in texts)


def _function(tool: Tool) -> dict[str, Any]:
    function = {"name": tool.name, "description": tool.description, "parameters": tool.input_schema}
    return function | {"strict": True} if tool.strict else function


def _tools(found: tuple[Tool, ...], choice: ToolChoice) -> dict[str, Any]:
    if not found:
        return {}
    named = {"type": "function", "function": {"name": choice.name}}
    wanted = {"any": "required", "tool": named}.get(choice.mode, choice.mode)
    body = {"tools": tools(found), "tool_choice": wanted}
    return body if choice.parallel else body | {"parallel_tool_calls": False}


def _promised(conversation: Conversation) -> tuple[Tool, ...]:
    """Tools with everything that their calls are promised to be.

    In Messages the input of a forced call is an object of the tool's schema. Other servers hold a function's arguments
    to its schema only if it is strict, which it may be if its schema is closed; in the other protocol that is for the
    client to say.
    """
    if conversation.protocol != "anthropic" or conversation.tool_choice.mode not in ("any", "tool"):
        return conversation.tools
    return tuple(replace(tool, strict=True) if is_closed(tool.input_schema) else tool for tool in conversation.tools)


def is_closed(schema: Any) -> bool:
    """Whether every object of a JSON schema takes its listed properties only, and needs them all."""
    if isinstance(schema, list):
        return all(map(is_closed, schema))
    if not isinstance(schema, Mapping):
        return True
    properties = _mapping(schema.get("properties"))
    kind = schema.get("type")
    if properties or kind == "object" or (isinstance(kind, list) and "object" in kind):
        required = schema.get("required")
        if schema.get("additionalProperties") is not False or not isinstance(required, list):
            return False
        if any(name not in required for name in properties):
            return False
    parts = [schema[name] for name in ("items", "anyOf", "oneOf", "allOf") if name in schema]
    return all(map(is_closed, [*properties.values(), *_mapping(schema.get("$defs")).values(), *parts]))


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _format(wanted: OutputFormat | None) -> dict[str, Any]:
    if wanted is None:
        return {}
    if wanted.schema is None:
        return {"response_format": {"type": "json_object"}}
    schema = {"name": "answer", "schema": wanted.schema, "strict": True}
    return {"response_format": {"type": "json_schema", "json_schema": schema}}


def _sampling(sampling: Mapping[str, Any], limit_name: str) -> dict[str, Any]:
    body = {name: sampling[ours] for ours, name in SAMPLING_NAMES.items() if sampling.get(ours) is not None}
    if sampling.get("max_tokens") is not None:
        body[limit_name] = sampling["max_tokens"]
    if stop := sampling.get("stop"):
        body["stop"] = [stop] if isinstance(stop, str) else list(stop)
    if (alternatives := sampling.get("logprobs")) is not None:
        body |= {"logprobs": True} | ({"top_logprobs": alternatives} if alternatives else {})
    return body
