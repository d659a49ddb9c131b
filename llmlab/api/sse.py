"""Writing server-sent events (WHATWG HTML, section 9.2): the frames both protocols' streams are made of."""

from __future__ import annotations

import json
from typing import Any

from llmlab.api.json_values import is_unicode

DONE = b"data: [DONE]\n\n"
"""What ends an OpenAI stream."""

HEADERS = {
    "content-type": "text/event-stream; charset=utf-8",
    "cache-control": "no-cache",
    "x-accel-buffering": "no",
}
"""Response headers of a stream; the last two keep proxies from collecting it."""


def to_json(value: Any) -> str:
    """Compact JSON on one line: line breaks inside strings are escaped, so a frame cannot be split by its data.

    Lone surrogates, which UTF-8 cannot hold, stay escaped.
    """
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    return text if is_unicode(text) else json.dumps(value, separators=(",", ":"), allow_nan=False)


def named_frame(name: str, data: Any) -> bytes:
    """``event:`` and ``data:`` lines and the blank line that ends them."""
    return f"event: {name}\ndata: {to_json(data)}\n\n".encode()


def data_frame(data: Any) -> bytes:
    """A ``data:`` line and the blank line that ends it."""
    return f"data: {to_json(data)}\n\n".encode()


def comment(text: str) -> bytes:
    """A line that parsers skip; it keeps a connection from looking idle."""
    assert not {"\n", "\r"} & set(text), "a comment is one line"
    return f": {text}\n\n".encode()
