"""A reply in one piece as a chat completion object."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from llmlab.api.conversation import Conversation
from llmlab.api.openai.reply_parts import choice_logprobs, finish_reason, head, stop_reason, tool_call
from llmlab.api.reply import (
    BlockDelta,
    BlockKind,
    BlockStart,
    Ended,
    ReplyEvent,
    ReplyInfo,
    SampleEnd,
    Started,
    TokenLogprob,
)


@dataclass(slots=True)
class _Call:
    id: str
    name: str
    arguments: list[str] = field(default_factory=list)


@dataclass(slots=True)
class _Sample:
    """What one choice has received so far; pieces of text are joined at the end."""

    kind: BlockKind = "text"
    text: list[str] = field(default_factory=list)
    thinking: list[str] = field(default_factory=list)
    calls: list[_Call] = field(default_factory=list)
    logprobs: list[TokenLogprob] = field(default_factory=list)
    token_ids: list[int] = field(default_factory=list)
    end: SampleEnd | None = None

    def pieces(self) -> list[str]:
        """Where the open block's text goes."""
        if self.kind == "tool_use":
            return self.calls[-1].arguments
        return self.text if self.kind == "text" else self.thinking


class OpenAICollector:
    """Implements :class:`llmlab.api.codec.Collector`.

    ``content`` is null when the reply is tool calls only. ``usage`` is null when a backend could not tell it.
    """

    def __init__(self, info: ReplyInfo, conversation: Conversation) -> None:
        self._info = info
        self._token_ids = conversation.return_token_ids
        self._logprobs = conversation.sampling.get("logprobs") is not None
        self._samples: dict[int, _Sample] = {}
        self._prompt_token_ids: tuple[int, ...] | None = None
        self._ended: Ended | None = None

    def add(self, event: ReplyEvent) -> None:
        """Take the next event."""
        match event:
            case Started():
                self._prompt_token_ids = event.prompt_token_ids
            case BlockStart():
                self._block_start(event)
            case BlockDelta():
                self._block_delta(event)
            case SampleEnd():
                self._sample(event.sample).end = event
            case Ended():
                self._ended = event

    def body(self) -> dict[str, Any]:
        """The response, once ``Ended`` has been added."""
        assert self._ended is not None, "body() comes after Ended"
        usage = None if self._ended.extra.get("usage_unknown") else self._ended.usage.openai()
        choices = [self._choice(number, self._samples[number]) for number in sorted(self._samples)]
        body = head(self._info, "chat.completion") | {"choices": choices, "usage": usage}
        if self._token_ids and self._prompt_token_ids is not None:
            body["prompt_token_ids"] = list(self._prompt_token_ids)
        return body

    def _sample(self, number: int) -> _Sample:
        return self._samples.setdefault(number, _Sample())

    def _block_start(self, event: BlockStart) -> None:
        sample = self._sample(event.sample)
        sample.kind = event.kind
        if event.kind == "tool_use":
            sample.calls.append(_Call(event.id, event.name))

    def _block_delta(self, event: BlockDelta) -> None:
        sample = self._sample(event.sample)
        sample.pieces().append(event.text)
        sample.token_ids.extend(event.token_ids)
        if sample.kind == "text":
            sample.logprobs.extend(event.logprobs)

    def _choice(self, number: int, sample: _Sample) -> dict[str, Any]:
        assert sample.end is not None, "a sample's events end with SampleEnd"
        choice = {
            "index": number,
            "message": _message(sample),
            "logprobs": choice_logprobs(sample.logprobs) if self._logprobs else None,
            "finish_reason": finish_reason(sample.end.stop),
            **stop_reason(sample.end),
        }
        return choice | {"token_ids": sample.token_ids} if self._token_ids else choice


def _message(sample: _Sample) -> dict[str, Any]:
    text = "".join(sample.text)
    message: dict[str, Any] = {"role": "assistant", "content": text or (None if sample.calls else ""), "refusal": None}
    if thinking := "".join(sample.thinking):
        message["reasoning_content"] = thinking
    if sample.calls:
        message["tool_calls"] = [_call(call, sample) for call in sample.calls]
    return message


def _call(call: _Call, sample: _Sample) -> dict[str, Any]:
    """Only the last call of a reply that was cut off may lack its arguments; elsewhere none means ``{}``."""
    cut = sample.end.stop != "tool_use" and call is sample.calls[-1]
    return tool_call(call.id, call.name, "".join(call.arguments) or ("" if cut else "{}"))
