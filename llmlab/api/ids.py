"""Identifiers that go over the wire: a prefix that names the kind, and 24 random base-62 characters (142 bits)."""

from __future__ import annotations

import secrets
import string

ALPHABET = string.digits + string.ascii_letters
LENGTH = 24


def _new(prefix: str) -> str:
    return prefix + "".join(secrets.choice(ALPHABET) for _ in range(LENGTH))


def message_id() -> str:
    """Of an Anthropic message: ``msg_...``."""
    return _new("msg_")


def tool_use_id() -> str:
    """Of an Anthropic ``tool_use`` block: ``toolu_...``."""
    return _new("toolu_")


def request_id() -> str:
    """Of one HTTP request, in its response header: ``req_...``."""
    return _new("req_")


def completion_id() -> str:
    """Of an OpenAI chat completion: ``chatcmpl-...``."""
    return _new("chatcmpl-")


def call_id() -> str:
    """Of an OpenAI tool call: ``call_...``."""
    return _new("call_")
