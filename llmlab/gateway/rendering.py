"""A conversation through the model's chat template to token ids, and where in them its blocks end."""

from __future__ import annotations

import secrets
from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from time import perf_counter_ns
from typing import Any

from jinja2 import TemplateError

from llmlab.api.conversation import CacheMarker, Conversation, Tool
from llmlab.errors import InvalidParameter
from llmlab.gateway.encoding import Encoding, TextEncoder
from llmlab.gateway.prompt_cache import LOOKBACK, Position
from llmlab.gateway.prompt_text import THINK_OPEN, Message, Part, messages_of, tool_json


@dataclass(frozen=True, slots=True)
class Rendered:
    """A prompt. ``positions`` has one entry per tool, system block and message block, in that order.

    ``tools_end`` and ``system_end`` are the lengths in tokens of the prefixes with all tools, and all system blocks;
    ``times`` are the moments (ns) of start, end of rendering and end of tokenizing.
    """

    text: str
    ids: list[int]
    positions: tuple[Position, ...]
    tools_end: int
    system_end: int
    times: tuple[int, int, int]


class Renderer:
    """Renders for one tokenizer. Content is untrusted: special tokens that it spells stay plain text.

    Raises ``InvalidParameter`` when the template does not take the messages.
    """

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self.encoder = TextEncoder(tokenizer)
        self._uses_tools = self._probe_tools()
        self._system_first = self._takes_system("system", "user")
        self._system_turns = self._takes_system("user", "system", "assistant", "user")

    def render(self, conversation: Conversation, check_length: Callable[[int], None] | None = None) -> Rendered:
        """The prompt: everything said so far, and the opening of the answer (and of its thinking).

        ``check_length`` is told the number of characters before they are tokenized, and may refuse them.
        """
        start = perf_counter_ns()
        messages = messages_of(
            conversation,
            own_tools=not self._uses_tools,
            system_first=self._system_first,
            system_turns=self._system_turns,
        )
        if conversation.continue_last and not messages[-1].content:
            messages.pop()
            conversation = replace(conversation, continue_last=False)
        draft = _Draft(self, conversation, messages)
        text = draft.text
        if check_length is not None:
            check_length(len(text))
        rendered = perf_counter_ns()
        encoding = self.encoder.encode(text, draft.literal)
        positions = draft.positions(encoding)
        done = perf_counter_ns()
        num_tools, num_system = len(conversation.tools), len(conversation.system)
        ends = [0, *(position.tokens for position in positions)]
        return Rendered(
            text, encoding.ids, positions, ends[num_tools], ends[num_tools + num_system], (start, rendered, done)
        )

    # -- the template ---------------------------------------------------------------------------------------

    def apply(
        self, messages: Sequence[dict[str, str]], tools: list[dict[str, Any]] | None, *, answer: bool, thinking: bool
    ) -> str:
        """The template's text. ``answer``: with the opening of the assistant's answer."""
        try:
            return self._tokenizer.apply_chat_template(
                list(messages),
                tools=tools or None,
                tokenize=False,
                add_generation_prompt=answer,
                enable_thinking=thinking,
            )
        except (TemplateError, TypeError, ValueError) as error:
            raise InvalidParameter(f"the model's chat template does not take these messages: {error}") from error

    @property
    def uses_tools(self) -> bool:
        """Whether the template itself describes tools, in the form in which calls are read here."""
        return self._uses_tools

    def _probe_tools(self) -> bool:
        name = "probe_" + secrets.token_hex(4)
        tool = tool_json(Tool(name, "", {"type": "object", "properties": {}}))
        text = self._try([{"role": "user", "content": "hello"}], [tool])
        return name in text and "<tool_call>" in text

    def _takes_system(self, *roles: str) -> bool:
        mark = secrets.token_hex(4)
        return mark in self._try([{"role": role, "content": mark if role == "system" else "a"} for role in roles], None)

    def _try(self, messages: list[dict[str, str]], tools: list[dict[str, Any]] | None) -> str:
        try:
            return self.apply(messages, tools, answer=True, thinking=False)
        except InvalidParameter:
            return ""


class _Draft:
    """One conversation on its way through the template, with marks in the content that no content can contain."""

    def __init__(self, renderer: Renderer, conversation: Conversation, messages: list[Message]) -> None:
        self._renderer, self._conversation, self._messages = renderer, conversation, messages
        self._split, self._end = secrets.token_hex(16), secrets.token_hex(16)
        self._tools = [self._shielded(tool_json(tool)) for tool in conversation.tools] if renderer.uses_tools else []
        self._parts = [part for message in messages for part in message.parts]
        marked = self._apply(self._marked)
        plain = marked.replace(self._end, "") if self._end in marked else marked
        wanted = self._apply(self._plain)
        self._marks_moved = plain != wanted or marked.count(self._end) != len(self._parts)
        if conversation.continue_last:
            wanted = self._without_close(wanted, marked)
        elif conversation.thinking and not wanted.rstrip().endswith(THINK_OPEN.strip()):
            wanted += THINK_OPEN
        self._shielded_text = wanted
        self.literal = self._literal_ranges()
        self.text = wanted.replace(self._split, "")
        self._offsets = self._offsets_by_search() if self._marks_moved else self._offsets_by_marks(marked)

    def positions(self, encoding: Encoding) -> tuple[Position, ...]:
        """Tools, system blocks and message blocks with the tokens up to their ends, which never fall."""
        found: list[tuple[int, CacheMarker | None]] = []
        if self._tools:
            found += zip(self._tool_offsets(), (tool.marker for tool in self._conversation.tools), strict=True)
        for part, offset in zip(self._parts, self._offsets, strict=True):
            if part.counts:
                found.append((offset, part.marker))
        positions, longest = [], 0
        for offset, marker in found:
            longest = max(longest, encoding.tokens_before(offset))
            positions.append(Position(longest, marker.ttl if marker else None))
        return tuple(positions)

    # -- content --------------------------------------------------------------------------------------------

    def _plain(self, message: Message) -> str:
        return self._shield(message.content)

    def _marked(self, message: Message) -> str:
        """The content with a mark behind every part: before white space at its end, which a template may trim."""
        content, ends = message.content, _stripped_ends(message)
        pieces = [content[a:b] for a, b in zip([0, *ends], [*ends, len(content)], strict=True)]
        return self._shield_pieces(pieces)

    def _shield_pieces(self, pieces: list[str]) -> str:
        """Pieces joined by marks, special tokens broken wherever the whole content spells them."""
        whole = "".join(pieces)
        cuts = [match.start() + 1 for match in self._renderer.encoder.specials_in(whole)]
        out, offset = [], 0
        for i, piece in enumerate(pieces):
            inside = cuts[bisect_right(cuts, offset) : bisect_right(cuts, offset + len(piece))]
            edges = [0, *(cut - offset for cut in inside), len(piece)]
            out.append(self._split.join(piece[a:b] for a, b in pairwise(edges)))
            out.append(self._end if i < len(pieces) - 1 else "")
            offset += len(piece)
        return "".join(out)

    def _shield(self, text: str) -> str:
        return self._shield_pieces([text])

    def _shielded(self, value: Any) -> Any:
        if isinstance(value, str):
            return self._shield(value)
        if isinstance(value, dict):
            return {self._shielded(key): self._shielded(item) for key, item in value.items()}
        return [self._shielded(item) for item in value] if isinstance(value, list | tuple) else value

    def _apply(
        self,
        content: Callable[[Message], str],
        tools: int | None = None,
        messages: Sequence[Message] | None = None,
    ) -> str:
        chosen = self._messages if messages is None else messages
        messages = [{"role": message.role, "content": content(message)} for message in chosen]
        return self._renderer.apply(
            messages,
            self._tools[:tools],
            answer=not self._conversation.continue_last,
            thinking=self._conversation.thinking is not None,
        )

    def _without_close(self, text: str, marked: str) -> str:
        """The text up to the end of the last message's content, so that the model goes on with it."""
        content = self._plain(self._messages[-1])
        end = text.rfind(content.strip()) + len(content.strip())
        if not self._marks_moved and self._end in marked:
            end = len(marked[: marked.rfind(self._end)].replace(self._end, ""))
        trailing = content[len(content.rstrip()) :] if content.strip() else content
        return text[:end] + trailing

    # -- offsets --------------------------------------------------------------------------------------------

    def _literal_ranges(self) -> list[tuple[int, int]]:
        """Where content spells special tokens, in the final text."""
        pieces, offset, ranges = self._shielded_text.split(self._split), 0, []
        text = "".join(pieces)
        for piece in pieces[:-1]:
            offset += len(piece)
            ranges.append((offset - 1, offset - 1 + self._renderer.encoder.special_length(text, offset - 1)))
        return ranges

    def _offsets_by_marks(self, marked: str) -> list[int]:
        offsets, length = [], 0
        for piece in marked.replace(self._split, "").split(self._end)[:-1]:
            length += len(piece)
            offsets.append(length)
        return offsets

    def _offsets_by_search(self) -> list[int]:
        """Where marks change what the template does: each message's content is looked for after the one before.

        Content that the template did not write as it is leaves its parts at the end of the message before.
        """
        offsets, done = [], 0
        for message in self._messages:
            content = message.content
            lead, core = len(content) - len(content.lstrip()), content.strip()
            at = self.text.find(core, done)
            ends = _stripped_ends(message)
            offsets += [done if at < 0 else at + max(0, end - lead) for end in ends]
            done = max(done, at + len(core))
        return offsets

    def _tool_offsets(self) -> list[int]:
        """A tool ends where leaving out the ones after it changes the text; the system message may come before.

        One that no marker looks back at ends, for all anybody can see, where the one before it does.
        """
        system = self._messages[0].role == "system"
        start = self._messages[:1] if system else [Message("user", [Part("a")])]
        visible, offsets = self._visible_tools(), [0]
        for i in range(len(self._tools)):
            shorter = self._apply(self._plain, tools=i + 1, messages=start) if i in visible else ""
            offsets.append(_common_length(self.text, shorter.replace(self._split, "")) if i in visible else offsets[-1])
        return offsets[1:]

    def _visible_tools(self) -> set[int]:
        """Tools whose ends matter: each costs a run of the template over all tools before it."""
        last = len(self._tools) - 1
        marked = [i for i, tool in enumerate(self._conversation.tools) if tool.marker] + [last]
        return {i for mark in marked for i in range(max(0, mark - LOOKBACK + 1), mark + 1)}


def _stripped_ends(message: Message) -> list[int]:
    """Where each part ends in the message's content, white space at its end left out; never falling."""
    ends, length, last = [], 0, 0
    for part in message.parts:
        kept = len(part.text.rstrip())
        last = length + kept if kept else last
        length += len(part.text)
        ends.append(last)
    return ends


def _common_length(a: str, b: str) -> int:
    """Length of the longest common start."""
    low, high = 0, min(len(a), len(b))
    while low < high:
        middle = (low + high + 1) // 2
        if a[low:middle] == b[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low
