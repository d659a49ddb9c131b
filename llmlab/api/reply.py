"""What comes back from a backend, event by event, whichever protocol it leaves in.

Order per sample: blocks with indices contiguous from 0, each ``BlockStart``, ``BlockDelta`` (any number),
``BlockStop``, never interleaved; then ``SampleEnd``. One ``Started`` comes first, one ``Ended`` last. With ``n > 1``
the samples' events interleave, sample 0 first.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from llmlab.api.usage import Usage

BlockKind = Literal["text", "thinking", "tool_use"]
Stop = Literal["end_turn", "max_tokens", "stop_sequence", "tool_use", "context_window", "refusal"]


@dataclass(frozen=True, slots=True)
class ReplyInfo:
    """Facts fixed when a request was routed. ``created`` is seconds since the epoch.

    ``service_tier``, ``speed`` and ``inference_geo`` are what was given, not what was asked for.
    """

    message_id: str
    model: str
    created: int
    service_tier: str = "standard"
    speed: str = "standard"
    inference_geo: str = "not_available"


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """One output token: natural log of its probability, and the likeliest alternatives as (text, bytes, logprob)."""

    token: str
    bytes: tuple[int, ...]
    logprob: float
    top: tuple[tuple[str, tuple[int, ...], float], ...] = ()


@dataclass(frozen=True, slots=True)
class Started:
    """The prompt has been computed and the first token is here. ``usage`` counts the prompt; its output is 0.

    ``prompt_token_ids`` is set when the request asked for token ids. ``diagnostics`` is Anthropic's object of cache
    diagnostics, or ``None``.
    """

    usage: Usage
    prompt_token_ids: tuple[int, ...] | None = None
    diagnostics: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class BlockStart:
    """A content block begins. ``id`` and ``name`` are set for ``tool_use``."""

    sample: int
    index: int
    kind: BlockKind
    id: str = ""
    name: str = ""


@dataclass(frozen=True, slots=True)
class BlockDelta:
    """More of a block: text, thinking, or a fragment of the arguments' JSON. ``text`` may be empty.

    ``token_ids`` and ``logprobs`` are those of the tokens that became final since the last delta.
    """

    sample: int
    index: int
    text: str
    token_ids: tuple[int, ...] = ()
    logprobs: tuple[TokenLogprob, ...] = ()


@dataclass(frozen=True, slots=True)
class BlockStop:
    """A content block is complete. ``signature`` is set for thinking."""

    sample: int
    index: int
    signature: str = ""


@dataclass(frozen=True, slots=True)
class SampleEnd:
    """One sample has ended. ``stop_sequence`` is the string that ended it, if one did."""

    sample: int
    stop: Stop
    stop_sequence: str | None = None


@dataclass(frozen=True, slots=True)
class Ended:
    """The request has ended. ``applied_edits`` are Anthropic's objects for context edits that were carried out.

    ``extra`` holds what only some backends can tell: ``iterations`` (Anthropic's token counts of every run the reply
    took), ``queue_s``, ``prefill_s``, ``decode_s`` (where its time went), ``usage_unknown`` (``usage`` means nothing).
    """

    usage: Usage
    applied_edits: tuple[Mapping[str, Any], ...] | None = None
    extra: Mapping[str, Any] = field(default_factory=dict)


ReplyEvent = Started | BlockStart | BlockDelta | BlockStop | SampleEnd | Ended
