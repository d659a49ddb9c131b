"""The chunks another server streams, as far as they are read. Servers differ: unknown keys are passed over."""

from __future__ import annotations

import math
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, BeforeValidator, Field

from llmlab.api.reply import TokenLogprob
from llmlab.api.usage import Usage

Count = Annotated[int, Field(ge=0, lt=2**53)]
LEAST_LOGPROB = -9999.0


def _or_empty(value: Any) -> Any:
    return [] if value is None else value


def _string_or_none(value: Any) -> Any:
    return value if isinstance(value, str) else None


def _usage_or_none(value: Any) -> Any:
    """Servers that count nothing send null, or an object without the counts."""
    return value if isinstance(value, dict) and value.get("prompt_tokens") is not None else None


class Function(BaseModel):
    """A fragment of a call."""

    name: str | None = None
    arguments: str | None = None


class ToolCall(BaseModel):
    """A fragment of a call; some servers leave the index out."""

    index: Count | None = None
    id: str | None = None
    function: Function = Function()


class Delta(BaseModel):
    """What a chunk adds. ``reasoning_content`` and ``reasoning`` are two servers' names of one thing."""

    content: str | None = None
    refusal: str | None = None
    reasoning_content: Annotated[str | None, BeforeValidator(_string_or_none)] = None
    reasoning: Annotated[str | None, BeforeValidator(_string_or_none)] = None
    tool_calls: Annotated[list[ToolCall], BeforeValidator(_or_empty)] = []

    @property
    def thinking(self) -> str:
        """The fragment of thinking, under whichever name."""
        return self.reasoning_content or self.reasoning or ""

    @property
    def text(self) -> str:
        """The fragment of the answer; a refusal is one too."""
        return (self.content or "") + (self.refusal or "")


def _finite(value: float) -> float:
    """JSON has no infinities, though servers send them; vLLM writes -9999 for a probability of 0."""
    if math.isnan(value) or value == math.inf:
        raise ValueError("it is no log probability")
    return max(value, LEAST_LOGPROB)


class Alternative(BaseModel):
    """A token and its log probability."""

    token: str
    logprob: Annotated[float, AfterValidator(_finite)]
    bytes: list[Annotated[int, Field(ge=0, le=255)]] | None = None

    @property
    def parts(self) -> tuple[str, tuple[int, ...], float]:
        """``(text, bytes, logprob)``; without bytes those of the text."""
        data = self.token.encode() if self.bytes is None else self.bytes
        return self.token, tuple(data), self.logprob


class Logprob(Alternative):
    """The chosen token and its alternatives."""

    top_logprobs: Annotated[list[Alternative], BeforeValidator(_or_empty)] = []

    @property
    def token_logprob(self) -> TokenLogprob:
        """The same in our form."""
        return TokenLogprob(*self.parts, tuple(item.parts for item in self.top_logprobs))


class Logprobs(BaseModel):
    """Log probabilities of the chunk's text."""

    content: Annotated[list[Logprob], BeforeValidator(_or_empty)] = []


class Choice(BaseModel):
    """One sample's part of a chunk."""

    index: Count = 0
    delta: Annotated[Delta, BeforeValidator(lambda value: {} if value is None else value)] = Delta()
    finish_reason: str | None = None
    stop_reason: Annotated[str | None, BeforeValidator(_string_or_none)] = None
    logprobs: Logprobs | None = None
    token_ids: Annotated[list[Count], BeforeValidator(_or_empty)] = []

    @property
    def has_output(self) -> bool:
        """Whether the model has produced anything: text, a call, a token without text, or the end."""
        delta = self.delta
        return bool(
            delta.thinking or delta.text or delta.tool_calls or self.token_ids or self.finish_reason is not None
        )


class PromptDetails(BaseModel):
    """Of the prompt tokens. What was newly kept has two names: vLLM's, and the public API's."""

    cached_tokens: Count | None = None
    created_cache_tokens: Count | None = None
    cache_write_tokens: Count | None = None

    @property
    def written(self) -> int:
        """Prompt tokens that later requests can be served from the cache, because this one computed them."""
        return self.created_cache_tokens or self.cache_write_tokens or 0


class CompletionDetails(BaseModel):
    """Of the output tokens."""

    reasoning_tokens: Count | None = None


class ChunkUsage(BaseModel):
    """Token counts of the whole request."""

    prompt_tokens: Count
    completion_tokens: Count = 0
    prompt_tokens_details: PromptDetails | None = None
    completion_tokens_details: CompletionDetails | None = None

    @property
    def usage(self) -> Usage:
        """As our ledger; cached and kept counts above the whole are cut to it.

        Upstreams name no time to live: what they keep is counted under the shorter one of the two there are.
        """
        details = self.prompt_tokens_details or PromptDetails()
        read = min(details.cached_tokens or 0, self.prompt_tokens)
        written = min(details.written, self.prompt_tokens - read)
        thinking = self.completion_tokens_details.reasoning_tokens if self.completion_tokens_details else None
        return Usage(
            uncached=self.prompt_tokens - read - written,
            cache_read=read,
            cache_write_5m=written,
            output=self.completion_tokens,
            thinking=min(thinking or 0, self.completion_tokens),
        )


class Chunk(BaseModel):
    """One event's data."""

    choices: Annotated[list[Choice], BeforeValidator(_or_empty)] = []
    usage: Annotated[ChunkUsage | None, BeforeValidator(_usage_or_none)] = None
    prompt_token_ids: list[Count] | None = None
    error: Any = None
