"""A chat completion request as a :class:`~llmlab.api.conversation.Conversation`.

What a request leaves out stays out: without ``temperature`` the engine is greedy, so that a run repeats (OpenAI's own
default is 1), and without a token limit the reply may go on until the context is full.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from pydantic import ValidationError

from llmlab.api.conversation import Conversation, Text, ThinkingMode, Turn
from llmlab.api.openai.messages import read_messages, unused_fields
from llmlab.api.openai.problems import from_pydantic, invalid
from llmlab.api.openai.schema import ChatRequest, Unused
from llmlab.api.openai.tools import read_format, read_tools
from llmlab.api.openai.values import check_values
from llmlab.api.rules import Rules

REASONING_BUDGETS: Mapping[str, int] = MappingProxyType(
    {"low": 64, "medium": 256, "high": 512, "xhigh": 1024, "max": 2048}
)
"""Thinking tokens for each ``reasoning_effort``; ``none``, ``minimal`` and no effort at all mean no thinking phase.

The protocol does not say how many tokens an effort is worth; these fit contexts of a few thousand tokens.
"""

SAME_NAME = (
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "repetition_penalty",
    "presence_penalty",
    "frequency_penalty",
    "min_tokens",
    "ignore_eos",
    "seed",
    "n",
)
"""Fields that ``SamplingParams`` has under the same name, in the same unit."""


def decode(body: Any, rules: Rules) -> Conversation:
    """The request in a parsed JSON body. Raises ``ApiError`` whatever is wrong with it."""
    request = parse(body)
    _check_together(request)
    system, turns = read_messages(request.messages)
    tools, choice = read_tools(request)
    return Conversation(
        protocol="openai",
        model=request.model,
        turns=turns,
        system=system,
        tools=tools,
        tool_choice=choice,
        sampling=_sampling(request, rules),
        stream=bool(request.stream),
        include_usage=bool(request.stream_options and request.stream_options.include_usage),
        format=read_format(request.response_format),
        thinking=_thinking(request.reasoning_effort),
        continue_last=_continues(request, turns, rules),
        service_tier=request.service_tier or "auto",
        user=request.safety_identifier or request.user,
        cache_key=request.prompt_cache_key,
        cache_salt=request.cache_salt or "",
        return_token_ids=bool(request.return_token_ids),
        ignored=_ignored(request),
    )


def parse(body: Any) -> ChatRequest:
    """The body with names, types and ranges checked. Raises ``ApiError``."""
    check_values(body)
    try:
        return ChatRequest.model_validate(body)
    except ValidationError as error:
        raise from_pydantic(error) from error


def _check_together(request: ChatRequest) -> None:
    for name, instead in (("functions", "tools"), ("function_call", "tool_choice")):
        if getattr(request, name) is not None:
            raise invalid(name, f"it is deprecated and not supported; use {instead}")
    if request.top_logprobs is not None and not request.logprobs:
        raise invalid("top_logprobs", "it needs logprobs to be true")
    if request.stream_options is not None and not request.stream:
        raise invalid("stream_options", "it is only allowed when stream is true")


def _sampling(request: ChatRequest, rules: Rules) -> dict[str, Any]:
    found = {name: value for name in SAME_NAME if (value := getattr(request, name)) is not None}
    found["max_tokens"] = _max_tokens(request, rules)
    if request.stop:
        found["stop"] = (request.stop,) if isinstance(request.stop, str) else tuple(request.stop)
    if request.stop_token_ids:
        found["stop_token_ids"] = tuple(request.stop_token_ids)
    if request.include_stop_str_in_output:
        found["include_stop"] = True
    if request.logit_bias:
        found["logit_bias"] = _logit_bias(request.logit_bias)
    if request.logprobs:
        found["logprobs"] = request.top_logprobs or 0
    return found


def _max_tokens(request: ChatRequest, rules: Rules) -> int | None:
    name = "max_tokens" if request.max_completion_tokens is None else "max_completion_tokens"
    wanted, cap = getattr(request, name), rules.max_output_tokens
    if cap is not None and (wanted or 0) > cap:
        raise invalid(name, f"this server generates at most {cap} tokens per request, but {wanted} were asked for")
    limit = cap if wanted is None else wanted
    if limit is not None and (request.min_tokens or 0) > limit:
        raise invalid("min_tokens", f"it is {request.min_tokens}, more than the limit of {limit} output tokens")
    return limit


def _logit_bias(bias: Mapping[str, float]) -> dict[int, float]:
    found: dict[int, float] = {}
    for key, value in bias.items():
        if not (key.isascii() and key.isdigit() and len(key) <= 10):
            raise invalid("logit_bias", "its keys must be token ids in decimal digits")
        if int(key) in found:
            raise invalid("logit_bias", f"token {int(key)} is named twice")
        found[int(key)] = float(value)
    return found


def _thinking(effort: str | None) -> ThinkingMode | None:
    budget = REASONING_BUDGETS.get(effort or "none")
    return None if budget is None else ThinkingMode(budget_tokens=budget)


def _continues(request: ChatRequest, turns: tuple[Turn, ...], rules: Rules) -> bool:
    if not request.continue_final_message:
        if request.add_generation_prompt is False:
            raise invalid("add_generation_prompt", "false is only possible together with continue_final_message")
        return False
    if request.add_generation_prompt:
        raise invalid("add_generation_prompt", "it cannot be true together with continue_final_message")
    _check_continuable(request, turns, rules)
    return True


def _check_continuable(request: ChatRequest, turns: tuple[Turn, ...], rules: Rules) -> None:
    path = "continue_final_message"
    if not rules.allow_prefill:
        raise invalid(path, "this server does not continue assistant messages")
    last = turns[-1] if turns else None
    if last is None or last.role != "assistant" or not isinstance(last.blocks[-1], Text):
        raise invalid(path, "the last message must be an assistant message that ends with text")
    if _thinking(request.reasoning_effort):
        raise invalid(path, "an answer that has begun cannot start with thinking; leave reasoning_effort out")


def _ignored(request: ChatRequest) -> tuple[str, ...]:
    names = (*Unused.model_fields, "user", "safety_identifier")
    unused = [name for name in names if getattr(request, name) is not None]
    if request.stream_options and request.stream_options.include_obfuscation:
        unused.append("stream_options.include_obfuscation")
    if request.response_format and request.response_format.json_schema:
        unused += ["response_format.json_schema.description"] * bool(request.response_format.json_schema.description)
    return (*unused, *unused_fields(request.messages))
