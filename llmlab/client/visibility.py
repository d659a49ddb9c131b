"""From the entries of a session to the messages of a request: filter, merge, order, complete.

Article A, section 2.3, with today's rules: servers merge neighbours of one role, so merging here is a choice that makes
the body independent of how a turn was recorded; that tool results come first is a rule.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from llmlab.client.entry import Entry, is_empty_text

INTERRUPTED = "The tool was not run: the session was interrupted before it finished."
"""Result that stands in for one that never came."""

Message = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Visible:
    """Messages of a request and, as sentences, what was done to get them from the entries."""

    messages: list[Message]
    notes: list[str]


def visible_messages(entries: Sequence[Entry]) -> Visible:
    """The messages to send: each step's effect is in ``notes``. The entries stay as they are."""
    notes: list[str] = []
    sent = without_hidden(after_compaction(entries, notes), notes)
    messages = merge([to_message(entry) for entry in sent], notes)
    messages = merge(answer_dangling(messages, notes), notes)
    messages = [results_first(message, notes) for message in messages]
    return Visible(drop_trailing_empty(messages, notes), notes)


def after_compaction(entries: Sequence[Entry], notes: list[str]) -> list[Entry]:
    """The last summary and what it does not cover."""
    found = [index for index, entry in enumerate(entries) if entry.kind == "compaction"]
    if not found:
        return list(entries)
    at = found[-1]
    kept = max(at - entries[at].keeps, 0)
    notes.append(f"replaced {kept} entries by a summary")
    return [entries[at], *entries[kept:at], *entries[at + 1 :]]


def without_hidden(entries: Sequence[Entry], notes: list[str]) -> list[Entry]:
    """Entries that may be sent."""
    hidden = [entry for entry in entries if entry.hidden_reason]
    notes.extend(f"left out {entry.kind}: {entry.hidden_reason}" for entry in hidden)
    return [entry for entry in entries if not entry.hidden_reason]


def to_message(entry: Entry) -> Message:
    """One entry as a message; a summary speaks as the user."""
    role = "assistant" if entry.kind == "assistant" else "user"
    return {"role": role, "content": [dict(block) for block in entry.content if not is_empty_text(block)]}


def merge(messages: Sequence[Message], notes: list[str]) -> list[Message]:
    """Neighbours of one role become one message."""
    merged: list[Message] = []
    for message in messages:
        if merged and merged[-1]["role"] == message["role"]:
            merged[-1]["content"].extend(message["content"])
            notes.append(f"merged neighbouring {message['role']} turns in message {len(merged) - 1}")
        else:
            merged.append({"role": message["role"], "content": list(message["content"])})
    return merged


def answer_dangling(messages: Sequence[Message], notes: list[str]) -> list[Message]:
    """Every tool use gets a result in the message after it; results without a tool use there are dropped."""
    answered: list[Message] = []
    for message in messages:
        if message["role"] == "assistant":
            _close(answered, [], notes)
            answered.append(message)
        else:
            _close(answered, message["content"], notes)
    _close(answered, [], notes)
    return answered


def _close(messages: list[Message], content: list[Mapping[str, Any]], notes: list[str]) -> None:
    """Append a user message that answers the tool uses of the last one; nothing if that would be empty."""
    asked = _asked(messages)
    kept, answered = [], set()
    for block in content:
        if block.get("type") != "tool_result":
            kept.append(block)
        elif (name := block.get("tool_use_id")) in asked and name not in answered:
            answered.add(name)
            kept.append(block)
        else:
            notes.append(f"left out a tool result for {name!r}: no open tool use has this id")
    missing = [name for name in asked if name not in answered]
    notes.extend(f"answered the dangling tool use {name!r}" for name in missing)
    if kept or missing:
        messages.append({"role": "user", "content": [*map(interrupted_result, missing), *kept]})


def _asked(messages: Sequence[Message]) -> list[str]:
    if not messages or messages[-1]["role"] != "assistant":
        return []
    asked = (block.get("id", "") for block in messages[-1]["content"] if block.get("type") == "tool_use")
    return list(dict.fromkeys(asked))


def interrupted_result(tool_use_id: str) -> Message:
    """The error result for a tool that did not get to run."""
    return {"type": "tool_result", "tool_use_id": tool_use_id, "content": INTERRUPTED, "is_error": True}


def results_first(message: Message, notes: list[str]) -> Message:
    """Tool results before everything else, both in their old order."""
    is_other = [block.get("type") != "tool_result" for block in message["content"]]
    if is_other == sorted(is_other):
        return message
    notes.append("moved tool results to the front of their message")
    content = sorted(message["content"], key=lambda block: block.get("type") != "tool_result")
    return message | {"content": content}


def drop_trailing_empty(messages: Sequence[Message], notes: list[str]) -> list[Message]:
    """Without an assistant turn at the end that says nothing: it would be a prefill of nothing."""
    kept = list(messages)
    while kept and kept[-1]["role"] == "assistant" and not any(map(_says_something, kept[-1]["content"])):
        kept.pop()
        notes.append("dropped an empty assistant turn at the end")
    return kept


def _says_something(block: Mapping[str, Any]) -> bool:
    return block.get("type") != "text" or bool(str(block.get("text", "")).strip())
