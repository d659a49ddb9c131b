"""Pieces that streamed and whole chat completions have in common."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any

from llmlab import __version__
from llmlab.api.reply import ReplyInfo, SampleEnd, Stop, TokenLogprob

FINISH: Mapping[Stop, str] = MappingProxyType(
    {
        "end_turn": "stop",
        "stop_sequence": "stop",
        "max_tokens": "length",
        "context_window": "length",
        "tool_use": "tool_calls",
        "refusal": "content_filter",
    }
)
TIERS: Mapping[str, str] = MappingProxyType({"standard": "default", "priority": "priority", "batch": "flex"})
"""What OpenAI calls the service tiers."""
LEAST_LOGPROB = -9999.0
"""Stands for minus infinity, which JSON cannot hold; OpenAI uses the same number."""


def finish_reason(stop: Stop) -> str:
    """OpenAI's name for why a sample ended."""
    return FINISH[stop]


def stop_reason(end: SampleEnd) -> dict[str, str]:
    """vLLM's extension: the stop sequence that ended a sample, which ``finish_reason`` does not tell; else nothing."""
    return {} if end.stop_sequence is None else {"stop_reason": end.stop_sequence}


def head(info: ReplyInfo, kind: str) -> dict[str, Any]:
    """The fields that every chunk repeats; ``kind`` is the ``object``."""
    return {
        "id": info.message_id,
        "object": kind,
        "created": info.created,
        "model": info.model,
        "service_tier": TIERS.get(info.service_tier, "default"),
        "system_fingerprint": fingerprint(info.model),
    }


def fingerprint(model: str) -> str:
    """Changes with the model and with llmlab's version: equal seeds give equal tokens while it stays the same."""
    return "fp_" + hashlib.sha256(f"{__version__} {model}".encode()).hexdigest()[:12]


def tool_call(call_id: str, name: str, arguments: str) -> dict[str, Any]:
    """A call of a function, ``arguments`` being JSON text."""
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}


def choice_logprobs(logprobs: Iterable[TokenLogprob]) -> dict[str, Any] | None:
    """A choice's ``logprobs``, or ``None`` when no token is among them."""
    content = [
        _token(item.token, item.bytes, item.logprob) | {"top_logprobs": [_token(*other) for other in item.top]}
        for item in logprobs
    ]
    return {"content": content, "refusal": None} if content else None


def _token(token: str, data: tuple[int, ...], logprob: float) -> dict[str, Any]:
    return {"token": token, "logprob": max(logprob, LEAST_LOGPROB), "bytes": list(data)}
