"""The smaller fields of a request: sampling, thinking, context edits, and what has no effect here."""

from __future__ import annotations

from typing import Any

from llmlab.api.anthropic import schema as wire
from llmlab.api.anthropic.content import ignored_parts
from llmlab.api.anthropic.tools import ignored_fields
from llmlab.api.anthropic.validate import invalid
from llmlab.api.conversation import ClearThinking, ClearToolUses, ContextEdit, ThinkingMode
from llmlab.api.errors import ApiError
from llmlab.api.rules import Rules

MAX_STOP_SEQUENCES = 16
MAX_STOP_LENGTH = 256
WITHOUT_EFFECT = ("mcp_servers", "billing_policy", "container", "fallbacks", "fallback_credit_token")
COMPACTION = "compaction happens in the client here: have the conversation summarised, then send the summary instead"


def sampling_of(request: wire.MessageRequest, rules: Rules) -> dict[str, Any]:
    """Keyword arguments of ``SamplingParams``; what the request leaves out is left out."""
    if rules.max_output_tokens is not None and request.max_tokens > rules.max_output_tokens:
        limit = f"{rules.max_output_tokens}, the maximum number of output tokens of this server"
        raise invalid("max_tokens", f"{request.max_tokens} > {limit}")
    _check_stop_sequences(request.stop_sequences)
    _check_thinking_sampling(request)
    found: dict[str, Any] = {"max_tokens": max(request.max_tokens, 1)}
    if request.stop_sequences:
        found["stop"] = tuple(request.stop_sequences)
    for name in ("temperature", "top_p", "top_k"):
        value = getattr(request, name)
        if value is not None:
            found[name] = value
    return found


def thinking_mode(thinking: wire.ThinkingUnion | None, rules: Rules) -> ThinkingMode | None:
    """The thinking phase asked for. Raises ``ApiError`` for a budget below the server's minimum."""
    if not isinstance(thinking, wire.ThinkingEnabled | wire.ThinkingAdaptive):
        return None
    display = "omitted" if thinking.display == "omitted" else "summarized"
    if isinstance(thinking, wire.ThinkingAdaptive):
        return ThinkingMode(None, display)
    if thinking.budget_tokens < rules.min_thinking_budget:
        text = f"Input should be greater than or equal to {rules.min_thinking_budget}"
        raise invalid("thinking.enabled.budget_tokens", text)
    return ThinkingMode(thinking.budget_tokens, display)


def context_edits(request: wire.CountRequest) -> tuple[ContextEdit, ...]:
    """The context edits in their order. Raises ``ApiError`` for compaction, and for thinking cleared too late."""
    if request.compaction is not None:
        raise invalid("compaction", COMPACTION)
    edits = request.context_management.edits if request.context_management else []
    return tuple(_edit(edit, index) for index, edit in enumerate(edits))


def ignored_paths(request: wire.CountRequest) -> tuple[str, ...]:
    """Dotted paths of the fields that are present and have no effect here."""
    found = [name for name in WITHOUT_EFFECT if getattr(request, name, None)]
    if request.speed == "fast":
        found.append("speed")
    if isinstance(request, wire.MessageRequest):
        _check_thread(request.thread)
        found += [name for name in ("metadata", "inference_geo") if getattr(request, name) is not None]
    config = request.output_config
    if config:
        found += [f"output_config.{name}" for name in ("effort", "task_budget") if getattr(config, name)]
    found += _ignored_thinking(request.thinking)
    return (*found, *ignored_fields(request.tools), *ignored_parts(request.system, request.messages))


def _ignored_thinking(thinking: wire.ThinkingUnion | None) -> list[str]:
    if isinstance(thinking, wire.ThinkingBetweenTools):
        return ["thinking"]
    if not isinstance(thinking, wire.ThinkingEnabled | wire.ThinkingAdaptive):
        return []
    found = ["thinking.display"] if thinking.display == "updates" else []
    return [*found, "thinking.block_binding"] if thinking.block_binding else found


def _check_stop_sequences(sequences: list[str]) -> None:
    if len(sequences) > MAX_STOP_SEQUENCES:
        raise invalid("stop_sequences", f"at most {MAX_STOP_SEQUENCES} are allowed, not {len(sequences)}")
    for index, sequence in enumerate(sequences):
        if not sequence.strip():
            raise invalid(f"stop_sequences.{index}", "each stop sequence must contain non-whitespace")
        if len(sequence) > MAX_STOP_LENGTH:
            raise invalid(f"stop_sequences.{index}", f"String should have at most {MAX_STOP_LENGTH} characters")


def _check_thinking_sampling(request: wire.MessageRequest) -> None:
    if not isinstance(request.thinking, wire.ThinkingEnabled | wire.ThinkingAdaptive):
        return
    if request.temperature not in (None, 1):
        text = "`temperature` may only be set to 1 when thinking is enabled or in adaptive mode."
        raise ApiError("invalid_request_error", text, param="temperature")
    if request.top_k is not None:
        raise ApiError("invalid_request_error", "`top_k` must be unset when thinking is on.", param="top_k")
    if request.top_p is not None and request.top_p < 0.95:
        text = "`top_p` must be from 0.95 to 1 when thinking is on."
        raise ApiError("invalid_request_error", text, param="top_p")


def _check_thread(thread: wire.Thread | None) -> None:
    """Both kinds are refused, with the code at which the SDK's own threads go on by sending the whole history."""
    if thread is None:
        return
    raise ApiError(
        "invalid_request_error",
        "thread: this server keeps no conversations; send all messages with each request",
        param="thread",
        details={"error_code": "thread_unsupported_request", "unsupported": ["thread"]},
    )


def _edit(edit: object, index: int) -> ContextEdit:
    path = f"context_management.edits.{index}"
    if isinstance(edit, wire.ClearThinkingEdit):
        if index:
            raise invalid(path, "clear_thinking_20251015 must be the first edit")
        return _clear_thinking(edit)
    if isinstance(edit, wire.ClearToolUsesEdit):
        return _clear_tool_uses(edit)
    raise invalid(path, COMPACTION)


def _clear_thinking(edit: wire.ClearThinkingEdit) -> ClearThinking:
    if edit.keep is None:
        return ClearThinking()
    return ClearThinking(edit.keep.value if isinstance(edit.keep, wire.ThinkingTurns) else None)


def _clear_tool_uses(edit: wire.ClearToolUsesEdit) -> ClearToolUses:
    given: dict[str, Any] = {}
    if edit.trigger:
        given |= {"trigger_kind": edit.trigger.type, "trigger": edit.trigger.value}
    if edit.keep:
        given["keep"] = edit.keep.value
    if edit.clear_at_least:
        given["clear_at_least"] = edit.clear_at_least.value
    inputs = edit.clear_tool_inputs
    return ClearToolUses(
        exclude_tools=tuple(edit.exclude_tools or ()),
        clear_inputs=tuple(inputs) if isinstance(inputs, list) else bool(inputs),
        **given,
    )
