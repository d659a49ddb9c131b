"""What differs between the versions of the API (request header ``anthropic-version``)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from llmlab.api.anthropic.validate import invalid
from llmlab.api.errors import ApiError
from llmlab.api.rules import Rules

FIRST = "2023-06-01"
LATEST = "2026-10-21"
SAMPLING = ("temperature", "top_p", "top_k")


def version_of(headers: Mapping[str, str]) -> str:
    """The version asked for, the first one when none is. Raises ``ApiError`` for an unknown one."""
    version = headers.get("anthropic-version", FIRST).strip()
    if version not in (FIRST, LATEST):
        raise ApiError(
            "invalid_request_error",
            f"anthropic-version: {version[:40]!r} is not a version of this API; use {FIRST} or {LATEST}",
        )
    return version


def check_sampling(body: Any, version: str, rules: Rules) -> None:
    """Under the latest version a sampling field is an unknown field, even at its default value."""
    if version == FIRST or rules.lenient_sampling or not isinstance(body, dict):
        return
    for name in SAMPLING:
        if name in body:
            raise invalid(name, "Extra inputs are not permitted")
