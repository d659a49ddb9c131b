"""Replacing old turns by a summary when the context fills up (article A, sections 2.12 and 3.8).

The request for the summary is the conversation itself plus one instruction, so its prefix is served from the cache.
What was read before is gone afterwards: a model that needs a file again has to read it again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from llmlab.client.breakpoints import as_blocks
from llmlab.client.entry import Entry, text_block
from llmlab.errors import CompactionFailed, InvalidParameter

THRESHOLD = 0.8
"""Share of the context window at which a summary is due."""

INSTRUCTION = (
    "Write a summary of this conversation that will take its place. Keep what the user asked for, what was decided, "
    "names, numbers and file names that are still needed, and what remains to be done. Answer in plain text and do "
    "not call a tool."
)
HEADING = "The conversation so far was replaced by this summary; go on from it.\n\n"


@dataclass(frozen=True, slots=True)
class CompactionPolicy:
    """When to ask for a summary. ``window`` is the model's context in tokens, ``threshold`` a share of it.

    Raises ``InvalidParameter`` for a window below 1 or a threshold outside (0, 1].
    """

    window: int
    threshold: float = THRESHOLD
    instruction: str = INSTRUCTION

    def __post_init__(self) -> None:
        if self.window < 1 or not 0 < self.threshold <= 1:
            raise InvalidParameter(f"need window >= 1 and 0 < threshold <= 1, not {self.window} and {self.threshold}")

    @property
    def limit(self) -> int:
        """Context size in tokens from which on a summary is due."""
        return int(self.window * self.threshold)

    def is_due(self, tokens: int, max_tokens: int = 0) -> bool:
        """Whether ``tokens`` of context are too many, or leave no room in the window for ``max_tokens`` of output."""
        return tokens >= self.limit or tokens + max_tokens > self.window


def compaction_request(request: Mapping[str, Any], instruction: str = INSTRUCTION) -> dict[str, Any]:
    """The same request with one more text at its end.

    Everything before it, tools and markers included, stays as it was. The text joins a user turn that is last already
    and follows its tool results. Only a ``tool_choice`` that forces a call goes, for no summary could be written.
    """
    messages = [dict(message) for message in request["messages"]]
    asked = text_block(instruction)
    if messages and messages[-1]["role"] == "user":
        messages[-1]["content"] = [*as_blocks(messages[-1]["content"]), asked]
    else:
        messages.append({"role": "user", "content": [asked]})
    is_forced = request.get("tool_choice", {}).get("type") in ("any", "tool")
    return {**request, **({"tool_choice": {"type": "none"}} if is_forced else {}), "messages": messages}


def split_kept(entries: Sequence[Entry]) -> tuple[Sequence[Entry], int]:
    """What a summary is to cover, and how many entries at the end stay: a prompt nobody has answered yet does."""
    kept = 0
    while kept < len(entries) and _is_kept(entries[len(entries) - 1 - kept]):
        kept += 1
    return entries[: len(entries) - kept], kept


def _is_kept(entry: Entry) -> bool:
    is_result = any(block.get("type") == "tool_result" for block in entry.content)
    return bool(entry.hidden_reason) or (entry.kind == "user" and not is_result)


def compaction_entry(text: str, *, model: str, usage: Mapping[str, Any], keeps: int, at: float = 0.0) -> Entry:
    """The entry that stands for all before it. Raises ``CompactionFailed`` when the model wrote nothing."""
    if not text.strip():
        raise CompactionFailed("the model was asked for a summary and wrote no text; the conversation is kept as it is")
    return Entry("compaction", (text_block(HEADING + text.strip()),), model, "end_turn", usage, keeps, at)


@dataclass(frozen=True, slots=True)
class Read:
    """One read of a file: ``again`` if it had been read before, ``forgotten`` if a compaction came in between."""

    path: str
    again: bool
    forgotten: bool


class ReadTracker:
    """Which files the model has in its context. After a compaction: none."""

    def __init__(self) -> None:
        self._known: set[str] = set()
        self._ever: set[str] = set()
        self.log: list[Read] = []

    @property
    def known(self) -> frozenset[str]:
        """Files whose text is still in the context."""
        return frozenset(self._known)

    def read(self, path: str) -> Read:
        """Note a read."""
        done = Read(path, path in self._ever, path in self._ever and path not in self._known)
        self._known.add(path)
        self._ever.add(path)
        self.log.append(done)
        return done

    def forget(self) -> frozenset[str]:
        """Note a compaction; returns the files whose text went."""
        gone = frozenset(self._known)
        self._known.clear()
        return gone

    @property
    def repeated(self) -> list[str]:
        """Files that had to be read again because of a compaction."""
        return [read.path for read in self.log if read.forgotten]
