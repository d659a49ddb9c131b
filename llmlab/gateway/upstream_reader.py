"""Chunks of another server's stream as the events of one reply."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import chain

from pydantic import ValidationError

from llmlab.api.errors import ApiError
from llmlab.api.reply import (
    BlockDelta,
    BlockKind,
    BlockStart,
    BlockStop,
    Ended,
    ReplyEvent,
    SampleEnd,
    Started,
    Stop,
    TokenLogprob,
)
from llmlab.api.usage import Usage
from llmlab.gateway.upstream_chunks import Choice, Chunk, ToolCall
from llmlab.gateway.upstream_errors import bad_gateway, from_event


class ChunkReader:
    """Reads the stream of one request for ``samples`` samples.

    A block's fragments must follow each other, as every server known sends them. ``new_call_id`` makes ids for calls
    that come without one. The reply starts with the first chunk that holds output, for the first of all only names the
    role, and may come long before it. Failures are raised as ``ApiError``.
    """

    def __init__(self, name: str, samples: int, new_call_id: Callable[[], str], secret: str | None = None) -> None:
        self.name, self.secret = name, secret
        self.is_done = False
        self._samples = [_Sample(number, new_call_id) for number in range(samples)]
        self._usage: Usage | None = None
        self._prompt_token_ids: list[int] | None = None
        self._started = False

    def feed(self, data: str) -> Iterator[ReplyEvent]:
        """The events in one server-sent event's data."""
        if data.strip() == "[DONE]":
            self.is_done = True
            return
        chunk = self._parse(data)
        if chunk.usage is not None:
            self._usage = chunk.usage.usage
        if chunk.prompt_token_ids is not None:
            self._prompt_token_ids = chunk.prompt_token_ids
        if not self._started and any(choice.has_output for choice in chunk.choices):
            self._started = True
            yield self._start()
        for choice in chunk.choices:
            yield from self._sample(choice).feed(choice)

    def finish(self) -> Ended:
        """The last event, when the stream is over. A stream that stopped before its samples ended is an error."""
        if not self._started or any(not sample.is_over for sample in self._samples):
            raise bad_gateway(f"upstream {self.name} ended its stream in the middle of the reply", True)
        return Ended(self._usage or Usage(0), extra={} if self._usage else {"usage_unknown": True})

    def _parse(self, data: str) -> Chunk:
        try:
            chunk = Chunk.model_validate_json(data)
        except ValidationError as error:
            raise bad_gateway(f"upstream {self.name} sent an event that is no chat completion chunk") from error
        if chunk.error is not None:
            raise from_event(self.name, chunk.error, self.secret)
        return chunk

    def _start(self) -> Started:
        """Most servers tell the prompt's size only at the end; until then it is 0."""
        usage = self._usage or Usage(0)
        prompt = replace(usage, output=0, thinking=0)
        return Started(prompt, None if self._prompt_token_ids is None else tuple(self._prompt_token_ids))

    def _sample(self, choice: Choice) -> _Sample:
        if choice.index >= len(self._samples):
            raise bad_gateway(f"upstream {self.name} sent more samples than the {len(self._samples)} asked for")
        return self._samples[choice.index]


@dataclass(slots=True)
class _Sample:
    """Blocks of one sample; ``kind`` is that of the open block, ``None`` between blocks.

    Token ids and log probabilities without text go to the block that is open.
    """

    number: int
    new_call_id: Callable[[], str]
    kind: BlockKind | None = None
    blocks: int = 0
    calls: int = 0
    is_over: bool = False

    def feed(self, choice: Choice) -> Iterator[ReplyEvent]:
        if self.is_over:
            return
        logprobs = tuple(item.token_logprob for item in choice.logprobs.content) if choice.logprobs else ()
        tokens = (tuple(choice.token_ids), logprobs)
        yield from self._text("thinking", choice.delta.thinking)
        yield from self._text("text", choice.delta.text, *tokens)
        yield from chain.from_iterable(self._call(call) for call in choice.delta.tool_calls)
        if any(tokens) and not choice.delta.text and self.kind is not None:
            yield BlockDelta(self.number, self.blocks - 1, "", *tokens)
        if choice.finish_reason is not None:
            yield from self._end(choice)

    def _text(
        self, kind: BlockKind, text: str, token_ids: tuple[int, ...] = (), logprobs: tuple[TokenLogprob, ...] = ()
    ) -> Iterator[ReplyEvent]:
        if text:
            yield from self._open(kind)
            yield BlockDelta(self.number, self.blocks - 1, text, token_ids, logprobs)

    def _open(self, kind: BlockKind, id: str = "", name: str = "") -> Iterator[ReplyEvent]:
        if self.kind == kind and kind != "tool_use":
            return
        yield from self._close()
        self.kind, self.blocks = kind, self.blocks + 1
        yield BlockStart(self.number, self.blocks - 1, kind, id, name)

    def _close(self) -> Iterator[ReplyEvent]:
        if self.kind is not None:
            self.kind = None
            yield BlockStop(self.number, self.blocks - 1)

    def _call(self, call: ToolCall) -> Iterator[ReplyEvent]:
        index = self._index(call)
        if index == self.calls:
            yield from self._begin_call(call)
        elif index != self.calls - 1 or self.kind != "tool_use":
            raise bad_gateway("the upstream mixed the fragments of several tool calls")
        if call.function.arguments:
            yield BlockDelta(self.number, self.blocks - 1, call.function.arguments)

    def _index(self, call: ToolCall) -> int:
        """Without an index, an id or a name begins a call and anything else goes on with the last one."""
        if call.index is not None:
            return call.index
        return self.calls if call.id or call.function.name or not self.calls else self.calls - 1

    def _begin_call(self, call: ToolCall) -> Iterator[ReplyEvent]:
        if not call.function.name:
            raise bad_gateway("the upstream began a tool call without its name")
        self.calls += 1
        yield from self._open("tool_use", call.id or self.new_call_id(), call.function.name)

    def _end(self, choice: Choice) -> Iterator[ReplyEvent]:
        yield from self._close()
        self.is_over = True
        yield SampleEnd(self.number, self._stop(choice), choice.stop_reason if choice.finish_reason == "stop" else None)

    def _stop(self, choice: Choice) -> Stop:
        """Some servers say ``stop`` after a call that was forced; the client has to see that a tool is wanted."""
        if choice.finish_reason == "error":
            raise ApiError("api_error", "the upstream failed while it generated", status=502)
        if choice.finish_reason in ("tool_calls", "function_call"):
            return "tool_use"
        if choice.finish_reason in ("length", "content_filter"):
            return "max_tokens" if choice.finish_reason == "length" else "refusal"
        if choice.stop_reason is not None:
            return "stop_sequence"
        return "tool_use" if self.calls else "end_turn"
