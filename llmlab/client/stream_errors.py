"""What can go wrong between a request and its message, as named exceptions."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from llmlab.client.message import Message
from llmlab.errors import LabError


class ClientError(LabError):
    """Base of every failure of an exchange.

    ``partial``: what had arrived of the message, or ``None``. ``request_id``: the server's, if it answered;
    ``client_request_id``: ours, to look for in its log. ``attempts``: requests made.
    """

    partial: Message | None = None
    request_id: str | None = None
    client_request_id: str | None = None
    attempts: int = 1


class ConnectionLost(ClientError, ConnectionError):
    """The connection could not be made, or broke before the answer was complete."""


class ServerUnreachable(ConnectionLost):
    """No connection to the server could be made: nothing listens at its address, or the address is wrong."""


class CertificateRejected(ClientError):
    """The server's TLS certificate is not trusted here; no attempt will change that."""


class TotalTimeout(ClientError, TimeoutError):
    """One attempt took longer than ``Timeouts.total_s``."""

    @classmethod
    def after(cls, limit_s: float) -> TotalTimeout:
        """The error for an attempt that was given ``limit_s`` seconds."""
        return cls(f"the attempt was not over after {limit_s:g} s; raise total_s for longer answers")


class IdleTimeout(ClientError, TimeoutError):
    """A stream that had begun was silent for longer than ``Timeouts.idle_s``."""


class StreamIncomplete(ClientError):
    """The stream ended without its end marker: ``partial`` holds what came, which is not an answer."""


class ProtocolViolation(ClientError, ValueError):
    """The server sent something the protocol does not allow at that point."""


class ApiFailure(ClientError):
    """The server refused or gave up. ``kind`` is the protocol's error type, ``status`` the HTTP status.

    A failure inside a stream has status 200: only ``kind`` tells what it was. ``headers`` have lower-case names.
    """

    def __init__(self, message: str, *, kind: str = "", status: int = 0, headers: Mapping[str, str] | None = None):
        super().__init__(message)
        self.message, self.kind, self.status = message, kind, status
        self.headers = dict(headers or {})


class InvalidRequest(ApiFailure):
    """400, 422: the request is wrong and would be wrong again."""


class AuthenticationFailed(ApiFailure):
    """401: no key, or one that is not accepted."""


class BillingFailed(ApiFailure):
    """402: payment is needed."""


class PermissionDenied(ApiFailure):
    """403: the key may not do this."""


class NotFound(ApiFailure):
    """404: no such model or path."""


class Conflict(ApiFailure):
    """409: the state of the server changed meanwhile."""


class RequestTooLarge(ApiFailure):
    """413: the body has too many bytes."""


class RateLimited(ApiFailure):
    """429: too many requests or tokens in a period."""


class ServerError(ApiFailure):
    """500 and above without a more precise type."""


class UpstreamTimeout(ApiFailure):
    """408, 504: the server gave up waiting."""


class Overloaded(ApiFailure):
    """529, 503: the server has more to do than it can."""


BY_KIND: Mapping[str, type[ApiFailure]] = MappingProxyType(
    {
        "invalid_request_error": InvalidRequest,
        "authentication_error": AuthenticationFailed,
        "billing_error": BillingFailed,
        "permission_error": PermissionDenied,
        "not_found_error": NotFound,
        "conflict_error": Conflict,
        "request_too_large": RequestTooLarge,
        "rate_limit_error": RateLimited,
        "api_error": ServerError,
        "server_error": ServerError,
        "timeout_error": UpstreamTimeout,
        "overloaded_error": Overloaded,
    }
)
BY_STATUS: Mapping[int, type[ApiFailure]] = MappingProxyType(
    {
        400: InvalidRequest,
        401: AuthenticationFailed,
        402: BillingFailed,
        403: PermissionDenied,
        404: NotFound,
        408: UpstreamTimeout,
        409: Conflict,
        413: RequestTooLarge,
        422: InvalidRequest,
        429: RateLimited,
        503: Overloaded,
        504: UpstreamTimeout,
        529: Overloaded,
    }
)

TRANSIENT_KINDS = frozenset({"rate_limit_error", "api_error", "server_error", "timeout_error", "overloaded_error"})
"""Error types inside a stream after which the same request may succeed."""


def failure_from(status: int, body: Any, headers: Mapping[str, str]) -> ApiFailure:
    """The exception for an error response.

    ``body`` is its parsed JSON (either protocol's envelope) or, where it was not JSON, its text. The error's type
    decides, then the status.
    """
    kind, message = _read_envelope(body)
    fallback = BY_STATUS.get(status, ServerError if status >= 500 else ApiFailure)
    cls = BY_KIND.get(kind, fallback)
    return cls(f"HTTP {status} {kind}: {message}".replace(" :", ":"), kind=kind, status=status, headers=headers)


def failure_in_stream(data: Any, headers: Mapping[str, str]) -> ApiFailure:
    """The exception for an ``error`` event: the response's status was 200, so the type alone decides."""
    kind, message = _read_envelope(data)
    shown = f"the stream was ended by {kind or 'an error'}: {message}"
    return BY_KIND.get(kind, ApiFailure)(shown, kind=kind, status=200, headers=headers)


def _read_envelope(body: Any) -> tuple[str, str]:
    error = body.get("error") if isinstance(body, dict) else None
    if isinstance(error, dict):
        return str(error.get("type") or ""), str(error.get("message") or "no message")
    return "", (str(body)[:300].strip() if body else "") or "no message"
