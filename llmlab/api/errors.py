"""Failures that go over the wire: one exception, and the two protocols' envelopes for it."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from llmlab.errors import LabError

STATUS: Mapping[str, int] = MappingProxyType(
    {
        "invalid_request_error": 400,
        "authentication_error": 401,
        "billing_error": 402,
        "permission_error": 403,
        "not_found_error": 404,
        "timeout_error": 504,
        "conflict_error": 409,
        "request_too_large": 413,
        "rate_limit_error": 429,
        "api_error": 500,
        "overloaded_error": 529,
    }
)
"""Anthropic's error types and their HTTP statuses (platform documentation, "Errors")."""


class ApiError(LabError):
    """A request failed. ``kind`` is one of :data:`STATUS`; ``param`` the path of the field that was wrong.

    ``retry_after`` (s) and ``should_retry`` become the headers ``retry-after`` and ``x-should-retry``. ``status``
    overrides the kind's own. ``details`` is Anthropic's machine-readable object: its ``error_code`` is what clients
    branch on.
    """

    def __init__(
        self,
        kind: str,
        message: str,
        *,
        status: int | None = None,
        param: str | None = None,
        code: str | None = None,
        retry_after: float | None = None,
        should_retry: bool | None = None,
        headers: Mapping[str, str] | None = None,
        details: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(message)
        self.kind, self.message = kind, message
        self.status = STATUS[kind] if status is None else status
        self.param, self.code = param, code
        self.retry_after, self.should_retry = retry_after, should_retry
        self.extra_headers = dict(headers or {})
        self.details = details

    @property
    def headers(self) -> dict[str, str]:
        """Response headers that tell a client whether and when to try again."""
        found = dict(self.extra_headers)
        if self.retry_after is not None:
            found["retry-after"] = f"{self.retry_after:g}"
        if self.should_retry is not None:
            found["x-should-retry"] = "true" if self.should_retry else "false"
        return found

    def anthropic(self, request_id: str | None = None) -> dict[str, Any]:
        """``{"type": "error", "error": {"type", "message"}}``, with ``request_id`` outside a stream."""
        error: dict[str, Any] = {"type": self.kind, "message": self.message}
        if self.details is not None:
            error["details"] = dict(self.details)
        body = {"type": "error", "error": error}
        return body if request_id is None else body | {"request_id": request_id}

    def openai(self) -> dict[str, Any]:
        """``{"error": {"message", "type", "param", "code"}}``."""
        kind = "server_error" if self.status >= 500 else self.kind
        return {"error": {"message": self.message, "type": kind, "param": self.param, "code": self.code}}
