"""A completion from the chunks of a Chat Completions stream."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from llmlab.client.arguments import IncompleteArguments, JoinOnce


@dataclass(slots=True)
class ToolCall:
    """One function call. ``arguments`` is ``None`` while, or if for good, the JSON is not whole."""

    id: str
    name: str
    text: str = ""
    arguments: dict[str, Any] | None = None


@dataclass(slots=True)
class Choice:
    """One sample. ``reasoning`` is what servers send under ``reasoning_content`` or ``reasoning``."""

    content: str = ""
    reasoning: str = ""
    tool_calls: list[ToolCall] = field(default_factory=list)
    finish_reason: str | None = None

    @property
    def may_run_tools(self) -> bool:
        """Whether every call is whole and the answer was not cut."""
        is_whole = all(call.arguments is not None for call in self.tool_calls)
        return bool(self.tool_calls) and self.finish_reason == "tool_calls" and is_whole


@dataclass(slots=True)
class Completion:
    """A whole reply. ``usage`` is ``None`` unless ``stream_options.include_usage`` was asked for."""

    id: str = ""
    model: str = ""
    choices: dict[int, Choice] = field(default_factory=dict)
    usage: dict[str, Any] | None = None


class OpenAIAccumulator:
    """Builds :attr:`completion` from chunks that a ``ChunkLifecycle`` has let through.

    Content and arguments are appended, arguments parsed once at the choice's ``finish_reason``. ``usage`` is replaced.
    """

    def __init__(self) -> None:
        self.completion = Completion()
        self._arguments: dict[tuple[int, int], JoinOnce] = {}

    def add(self, chunk: dict[str, Any]) -> None:
        """Take the next chunk (not ``[DONE]``)."""
        done = self.completion
        done.id, done.model = str(chunk.get("id") or done.id), str(chunk.get("model") or done.model)
        done.usage = chunk.get("usage") or done.usage
        for part in chunk["choices"]:
            self._add_choice(part["index"], part["delta"], part.get("finish_reason"))

    def _add_choice(self, index: int, delta: dict, finish_reason: str | None) -> None:
        choice = self.completion.choices.setdefault(index, Choice())
        choice.content += _text(delta, "content")
        choice.reasoning += _text(delta, "reasoning_content") or _text(delta, "reasoning")
        for fragment in delta.get("tool_calls") or ():
            self._add_call(index, choice, fragment)
        if finish_reason is not None:
            choice.finish_reason = finish_reason
            self._finish_calls(index, choice)

    def _add_call(self, index: int, choice: Choice, fragment: dict) -> None:
        number, function = fragment["index"], fragment.get("function") or {}
        if number == len(choice.tool_calls):
            choice.tool_calls.append(ToolCall(_text(fragment, "id"), _text(function, "name")))
            self._arguments[index, number] = JoinOnce()
        self._arguments[index, number].add(_text(function, "arguments"))

    def _finish_calls(self, index: int, choice: Choice) -> None:
        for number, call in enumerate(choice.tool_calls):
            arguments = self._arguments[index, number]
            call.text = arguments.text
            try:
                call.arguments = arguments.finish()
            except IncompleteArguments:
                call.arguments = None
        if choice.finish_reason == "length" and choice.tool_calls:
            choice.tool_calls[-1].arguments = None  # a whole object cannot be told from one that would have gone on


def _text(source: dict, name: str) -> str:
    value = source.get(name)
    return value if isinstance(value, str) else ""
