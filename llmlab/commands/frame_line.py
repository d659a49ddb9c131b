"""One line about one server-sent event of the Messages API; everything in it is untrusted text."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from llmlab.commands.terminal import escape_controls

MAX_WIDTH = 120
"""Characters of a summary that are shown."""


def summary(data_text: str) -> str:
    """What an event's ``data`` says, in at most 120 characters without control characters."""
    try:
        data = json.loads(data_text)
    except (ValueError, RecursionError):
        return one_line(data_text)
    if not isinstance(data, dict):
        return one_line(data_text)
    return one_line(" ".join(_words(data)))


def one_line(text: str) -> str:
    """``text`` cut to one line, its control characters spelled out."""
    shown = escape_controls(text[: MAX_WIDTH + 1].replace("\n", "\\n").replace("\t", "\\t"))
    return shown if len(shown) <= MAX_WIDTH else shown[: MAX_WIDTH - 1] + "…"


def _words(data: Mapping[str, Any]) -> list[str]:
    kind = data.get("type")
    if kind == "message_start":
        message = _object(data.get("message"))
        return [f"{message.get('id')} of {message.get('model')}:", usage_words(_object(message.get("usage")))]
    if kind == "content_block_start":
        block = _object(data.get("content_block"))
        return [f"block {data.get('index')}:", *(str(block[name]) for name in ("type", "name") if name in block)]
    if kind == "content_block_delta":
        return [f"block {data.get('index')}:", *_delta(_object(data.get("delta")))]
    if kind == "content_block_stop":
        return [f"block {data.get('index')} is complete"]
    if kind == "message_delta":
        reason = _object(data.get("delta")).get("stop_reason")
        return [f"stop reason {reason};", usage_words(_object(data.get("usage")))]
    if kind == "error":
        error = _object(data.get("error"))
        return [f"{error.get('type')}:", str(error.get("message"))]
    return [] if kind in ("ping", "message_stop") else [_json(data)]


def _delta(delta: Mapping[str, Any]) -> list[str]:
    """The fragment in quotes, with its kind where that is not text."""
    for name in ("text", "thinking", "partial_json", "signature"):
        if isinstance(delta.get(name), str):
            return [_json(delta[name])] if name == "text" else [name.replace("_", " "), _json(delta[name])]
    return [_json(delta)]


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def _object(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def usage_words(usage: Mapping[str, Any]) -> str:
    """The counts of a ``usage`` object in words; those it does not have are left out."""
    words = {
        "input_tokens": "uncached input",
        "cache_read_input_tokens": "read from the cache",
        "cache_creation_input_tokens": "written to the cache",
        "output_tokens": "output",
    }
    found = [f"{usage[name]} {text}" for name, text in words.items() if isinstance(usage.get(name), int)]
    thinking = _object(usage.get("output_tokens_details")).get("thinking_tokens")
    if isinstance(thinking, int) and thinking:
        found.append(f"of which {thinking} thinking")
    return f"{', '.join(found)} tokens" if found else "no counts"
