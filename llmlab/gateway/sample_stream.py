"""One sample of a reply on its way out: its text, thinking and tool calls as blocks."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from llmlab.api.reply import BlockDelta, BlockKind, BlockStart, BlockStop, ReplyEvent, TokenLogprob
from llmlab.gateway.tool_calls import ToolCallParser


class SampleStream:
    """Turns pieces of output into block events with contiguous indices.

    ``new_call_id`` makes ids of tool calls, ``parser`` finds them (``None``: the output is plain text).
    ``reports_tokens``: token ids or log-probabilities are wanted, so tokens without text need a block too.
    """

    def __init__(
        self, sample: int, new_call_id: Callable[[], str], parser: ToolCallParser | None, reports_tokens: bool
    ) -> None:
        self.sample, self._new_call_id = sample, new_call_id
        self._parser, self._reports_tokens = parser, reports_tokens
        self._index = -1
        self._open: BlockKind | None = None
        self._ids: tuple[int, ...] = ()
        self._logprobs: tuple[TokenLogprob, ...] = ()

    @property
    def called(self) -> bool:
        """Whether a tool call was completed."""
        return self._parser is not None and self._parser.num_calls > 0

    def note_tokens(self, ids: tuple[int, ...], logprobs: tuple[TokenLogprob, ...] = ()) -> None:
        """Tokens that go out with the next delta."""
        self._ids += ids
        self._logprobs += logprobs

    def think(self, text: str) -> Iterator[ReplyEvent]:
        """More thinking."""
        if text:
            yield from self._ensure("thinking")
            yield self._delta(text)

    def end_thinking(self, sign: Callable[[], str]) -> Iterator[ReplyEvent]:
        """Close the thinking block, if there is one, with its signature."""
        if self._open == "thinking":
            yield from self._flush()
            yield BlockStop(self.sample, self._index, sign())
            self._open = None

    def feed(self, text: str) -> Iterator[ReplyEvent]:
        """More of the answer."""
        if self._parser is None:
            yield from self._text(text)
            return
        for piece in self._parser.feed(text):
            yield from self._piece(piece.kind, piece.text)

    def finish(self, cut: bool) -> Iterator[ReplyEvent]:
        """What was held back, and the end of the last block. ``cut``: the output ended in the middle."""
        if self._parser is not None:
            for piece in self._parser.finish(cut):
                yield from self._piece(piece.kind, piece.text)
        if self._open is None and self._ids and self._reports_tokens:
            yield from self._ensure("text")
        yield from self._close()

    def _piece(self, kind: str, text: str) -> Iterator[ReplyEvent]:
        if kind == "text":
            yield from self._text(text)
        elif kind == "call":
            yield from self._close()
            yield self._start("tool_use", self._new_call_id(), text)
        elif kind == "arguments":
            yield self._delta(text)
        # a call's end leaves its block open, for the tokens of the closing marker that are still to come

    def _text(self, text: str) -> Iterator[ReplyEvent]:
        if text:
            yield from self._ensure("text")
            yield self._delta(text)

    def _ensure(self, kind: BlockKind) -> Iterator[ReplyEvent]:
        if self._open != kind:
            yield from self._close()
            yield self._start(kind)

    def _start(self, kind: BlockKind, call_id: str = "", name: str = "") -> BlockStart:
        self._index += 1
        self._open = kind
        return BlockStart(self.sample, self._index, kind, call_id, name)

    def _delta(self, text: str) -> BlockDelta:
        ids, self._ids = self._ids, ()
        logprobs, self._logprobs = self._logprobs, ()
        return BlockDelta(self.sample, self._index, text, ids, logprobs)

    def _flush(self) -> Iterator[ReplyEvent]:
        if self._ids and self._reports_tokens:
            yield self._delta("")

    def _close(self) -> Iterator[ReplyEvent]:
        if self._open is not None:
            yield from self._flush()
            yield BlockStop(self.sample, self._index)
            self._open = None
