"""From the JSON body of a Messages request to a :class:`Conversation` (article A, section 2)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from llmlab.api.anthropic import schema as wire
from llmlab.api.anthropic.caching import check_markers
from llmlab.api.anthropic.content import marker, text_block
from llmlab.api.anthropic.json_schema import check_schema
from llmlab.api.anthropic.messages import read_messages
from llmlab.api.anthropic.settings import context_edits, ignored_paths, sampling_of, thinking_mode
from llmlab.api.anthropic.tools import read_choice, read_tools
from llmlab.api.anthropic.validate import invalid, validate
from llmlab.api.anthropic.version import check_sampling, version_of
from llmlab.api.conversation import Conversation, OutputFormat, Text
from llmlab.api.errors import ApiError
from llmlab.api.rules import Rules


def decode_message(body: Any, headers: Mapping[str, str], rules: Rules) -> Conversation:
    """The request in the body of ``POST /v1/messages``. Raises ``ApiError``.

    A request that says nothing about sampling is greedy here, so that a run repeats; Anthropic's default temperature
    is 1. ``max_tokens: 0`` becomes ``prewarm`` with ``max_tokens=1`` in ``sampling``, the least an engine accepts.
    """
    version = version_of(headers)
    check_sampling(body, version, rules)
    request = validate(wire.MessageRequest, body)
    fields = _prompt_fields(request, version, rules) | _reply_fields(request, rules)
    fields["beta"] = bool(headers.get("anthropic-beta", "").strip(" ,"))
    conversation = Conversation(**fields)
    _check_together(request, conversation)
    check_markers(conversation)
    return conversation


def decode_count(body: Any, headers: Mapping[str, str], rules: Rules) -> Conversation:
    """The request in the body of ``POST /v1/messages/count_tokens``. Raises ``ApiError``."""
    version = version_of(headers)
    request = validate(wire.CountRequest, body)
    conversation = Conversation(**_prompt_fields(request, version, rules))
    _check_together(request, conversation)
    check_markers(conversation)
    return conversation


def _prompt_fields(request: wire.CountRequest, version: str, rules: Rules) -> dict[str, Any]:
    turns, continued = read_messages(request.messages, version, rules)
    tools = read_tools(request.tools)
    return {
        "protocol": "anthropic",
        "model": request.model,
        "turns": turns,
        "continue_last": continued,
        "system": _system(request),
        "tools": tools,
        "tool_choice": read_choice(request.tool_choice, tools),
        "thinking": thinking_mode(request.thinking, rules),
        "format": _format(request.output_config),
        "auto_cache": marker(request.cache_control),
        "edits": context_edits(request),
        "speed": request.speed,
        "ignored": ignored_paths(request),
    }


def _reply_fields(request: wire.MessageRequest, rules: Rules) -> dict[str, Any]:
    return {
        "sampling": sampling_of(request, rules),
        "prewarm": request.max_tokens == 0,
        "stream": request.stream,
        "wants_diagnostics": request.diagnostics is not None,
        "previous_message_id": request.diagnostics.previous_message_id if request.diagnostics else None,
        "service_tier": request.service_tier,
        "inference_geo": request.inference_geo,
        "user": request.metadata.user_id if request.metadata else None,
    }


def _system(request: wire.CountRequest) -> tuple[Text, ...]:
    texts = [text_block(block, f"system.{index}") for index, block in enumerate(request.system)]
    return tuple(text for text in texts if text.text)


def _format(config: wire.OutputConfig | None) -> OutputFormat | None:
    if config is None or config.format is None:
        return None
    check_schema(config.format.json_schema, "output_config.format.schema")
    return OutputFormat(config.format.json_schema)


def _check_together(request: wire.CountRequest, conversation: Conversation) -> None:
    """Fields that exclude each other."""
    if isinstance(request, wire.MessageRequest):
        _check_prewarm(request, conversation)
        _check_budget(request)
    forced = conversation.tool_choice.mode in ("any", "tool")
    if forced and isinstance(request.thinking, wire.ThinkingEnabled):
        raise invalid("tool_choice", "Thinking may not be enabled when tool_choice forces tool use.")
    if conversation.thinking and conversation.continue_last:
        text = "the final message cannot be from the assistant when thinking is on; end with a user message"
        raise invalid("messages", text)
    if conversation.format and conversation.continue_last:
        text = "the final message cannot be from the assistant when output_config.format is set"
        raise invalid("messages", text)


def _check_budget(request: wire.MessageRequest) -> None:
    thinking = request.thinking
    if isinstance(thinking, wire.ThinkingEnabled) and thinking.budget_tokens >= request.max_tokens:
        text = "max_tokens must be greater than thinking.budget_tokens"
        raise ApiError("invalid_request_error", text, param="max_tokens")


def _check_prewarm(request: wire.MessageRequest, conversation: Conversation) -> None:
    if not conversation.prewarm:
        return
    refused = {
        "stream": conversation.stream,
        "thinking.enabled": isinstance(request.thinking, wire.ThinkingEnabled),
        "output_config.format": conversation.format is not None,
        f"tool_choice.{conversation.tool_choice.mode}": conversation.tool_choice.mode in ("any", "tool"),
    }
    for name, present in refused.items():
        if present:
            raise invalid("max_tokens", f"0 computes the prompt only and cannot be combined with {name}")
