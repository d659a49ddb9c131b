"""A streamed reply as chat completion chunks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from llmlab.api.conversation import Conversation
from llmlab.api.errors import ApiError
from llmlab.api.openai.reply_parts import choice_logprobs, finish_reason, head, stop_reason, tool_call
from llmlab.api.reply import (
    BlockDelta,
    BlockKind,
    BlockStart,
    BlockStop,
    Ended,
    ReplyEvent,
    ReplyInfo,
    SampleEnd,
    Started,
)
from llmlab.api.sse import DONE, comment, data_frame


@dataclass(slots=True)
class _Sample:
    """State of one choice: the open block's kind, tool calls so far, and whether a call still lacks its arguments."""

    kind: BlockKind = "text"
    calls: int = 0
    empty_call: bool = False


class OpenAIStream:
    """Implements :class:`llmlab.api.codec.StreamEncoder`.

    Each choice begins with one chunk that carries the role and ends with one whose delta is empty and that carries the
    finish reason; choice 0 begins first, because clients count on it. Thinking goes out as ``reasoning_content``, the
    field that servers of open models agreed on. Usage comes in a last chunk without choices if it was asked for and
    is known.
    """

    def __init__(self, info: ReplyInfo, conversation: Conversation) -> None:
        self._head = head(info, "chat.completion.chunk") | ({"usage": None} if conversation.include_usage else {})
        self._include_usage = conversation.include_usage
        self._token_ids = conversation.return_token_ids
        self._logprobs = conversation.sampling.get("logprobs") is not None
        self._samples: list[_Sample] = []
        self._first: dict[str, Any] = {}  # what only the very first chunk carries

    def encode(self, event: ReplyEvent) -> bytes:
        """Zero or more whole frames."""
        match event:
            case Started():
                return self._started(event)
            case BlockStart():
                return self._block_start(event)
            case BlockDelta():
                return self._block_delta(event)
            case BlockStop():
                return b""
            case SampleEnd():
                return self._sample_end(event)
            case Ended():
                return self._ended(event)

    def ping(self) -> bytes:
        """A comment line: the only thing that every client skips."""
        return comment("ping")

    def error(self, error: ApiError) -> bytes:
        """The error's envelope as the last frame."""
        return data_frame(error.openai())

    def _started(self, event: Started) -> bytes:
        if self._token_ids and event.prompt_token_ids is not None:
            self._first = {"prompt_token_ids": list(event.prompt_token_ids)}
        return b""

    def _block_start(self, event: BlockStart) -> bytes:
        frames = self._begin(event.sample, event.kind)
        sample = self._samples[event.sample]
        frames += self._fill_empty_call(event.sample)
        sample.kind = event.kind
        if event.kind != "tool_use":
            return frames
        sample.calls, sample.empty_call = sample.calls + 1, True
        call = {"index": sample.calls - 1} | tool_call(event.id, event.name, "")
        return frames + self._chunk(event.sample, {"tool_calls": [call]})

    def _block_delta(self, event: BlockDelta) -> bytes:
        sample = self._samples[event.sample]
        extra = {"token_ids": list(event.token_ids)} if self._token_ids else {}
        logprobs = choice_logprobs(event.logprobs) if self._logprobs and sample.kind == "text" else None
        if not (event.text or extra.get("token_ids") or logprobs):
            return b""
        return self._chunk(event.sample, self._delta(sample, event.text), logprobs, extra)

    def _delta(self, sample: _Sample, text: str) -> dict[str, Any]:
        if sample.kind == "text":
            return {"content": text}
        if sample.kind == "thinking":
            return {"reasoning_content": text}
        sample.empty_call = sample.empty_call and not text
        return {"tool_calls": [{"index": sample.calls - 1, "function": {"arguments": text}}]}

    def _sample_end(self, event: SampleEnd) -> bytes:
        frames = self._begin(event.sample, "text")
        if event.stop == "tool_use":
            frames += self._fill_empty_call(event.sample)
        return frames + self._chunk(event.sample, {}, None, stop_reason(event), finish_reason(event.stop))

    def _ended(self, event: Ended) -> bytes:
        if not self._include_usage or event.extra.get("usage_unknown"):
            return DONE
        return data_frame(self._head | {"choices": [], "usage": event.usage.openai()}) + DONE

    def _begin(self, sample: int, kind: BlockKind) -> bytes:
        """The role chunks of this choice and of those before it that have not begun."""
        frames = b""
        while len(self._samples) <= sample:
            number = len(self._samples)
            self._samples.append(_Sample())
            content = "" if number < sample or kind == "text" else None
            frames += self._chunk(number, {"role": "assistant", "content": content})
        return frames

    def _fill_empty_call(self, number: int) -> bytes:
        """A call that ended without arguments was called with none; a call that was cut off stays empty."""
        if not self._samples[number].empty_call:
            return b""
        return self._chunk(number, self._delta(self._samples[number], "{}"))

    def _chunk(
        self,
        sample: int,
        delta: dict[str, Any],
        logprobs: dict[str, Any] | None = None,
        extra: dict[str, Any] | None = None,
        finish: str | None = None,
    ) -> bytes:
        choice = {"index": sample, "delta": delta, "logprobs": logprobs, "finish_reason": finish} | (extra or {})
        first, self._first = self._first, {}
        return data_frame(self._head | {"choices": [choice]} | first)
