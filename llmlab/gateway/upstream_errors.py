"""What goes wrong at another server, as the error this one answers with.

A client cannot mend a refusal of *our* credentials or bill, so those become 502; what it can mend (its request, its
pace) keeps its kind. Messages are cut, and our own key is taken out of them.
"""

from __future__ import annotations

import json
import math
import os
import socket
import time
from collections.abc import Mapping
from email.utils import parsedate_to_datetime
from types import MappingProxyType
from typing import Any

import httpx2

from llmlab.api.errors import STATUS, ApiError

MAX_MESSAGE = 1000
MAX_RETRY_AFTER_S = 86_400.0
MAX_CAUSES, MAX_WHY = 8, 200
OURS = (401, 402, 403)
"""Statuses that are about this server's account at the upstream."""
CREDENTIALS = "upstream_credentials"
"""``code`` of the error for them."""

KINDS: Mapping[int, str] = MappingProxyType(
    {
        400: "invalid_request_error",
        404: "not_found_error",
        405: "not_found_error",
        408: "timeout_error",
        409: "conflict_error",
        413: "request_too_large",
        422: "invalid_request_error",
        429: "rate_limit_error",
        503: "overloaded_error",
        504: "timeout_error",
        529: "overloaded_error",
    }
)


def bad_gateway(message: str, should_retry: bool | None = None, code: str | None = None) -> ApiError:
    """502: the upstream answered, but not in a way that can be used."""
    return ApiError("api_error", message, status=502, should_retry=should_retry, code=code)


def from_status(name: str, status: int, headers: Mapping[str, str], body: bytes, secret: str | None) -> ApiError:
    """The error for a response that is not 200. ``headers`` are looked up in lower case."""
    if status in OURS:
        message = f"upstream {name} does not accept this server's credentials (status {status})"
        return bad_gateway(message, False, CREDENTIALS)
    found = _envelope(body)
    message = _clean(found.get("message") or _page(status, headers), secret)
    kind = KINDS.get(status, "api_error")
    fallback = 502 if kind == "api_error" else None
    return ApiError(
        kind,
        f"upstream {name}: {message}",
        status=status if 500 <= status < 600 else fallback,
        param=_text(found.get("param")),
        code=_text(found.get("code")),
        retry_after=_retry_after(headers),
        should_retry={"true": True, "false": False}.get(headers.get("x-should-retry", "")),
    )


def from_event(name: str, error: Any, secret: str | None) -> ApiError:
    """The error for an ``error`` object in the middle of a stream."""
    found = error if isinstance(error, Mapping) else {"message": error}
    code = found.get("code")
    kind = KINDS.get(code, "api_error") if isinstance(code, int) else found.get("type")
    kind = kind if isinstance(kind, str) and kind in STATUS else "api_error"
    message = _clean(_text(found.get("message")) or "an error without a message", secret)
    return ApiError(kind, f"upstream {name}: {message}", param=_text(found.get("param")), code=_text(code))


def from_exception(name: str, error: Exception) -> ApiError:
    """The error for a connection that could not be made, went silent, or broke."""
    if isinstance(error, httpx2.ConnectTimeout | httpx2.ConnectError):
        return bad_gateway(f"upstream {name} cannot be reached ({_why(error)})", True)
    if isinstance(error, httpx2.TimeoutException):
        return ApiError("timeout_error", f"upstream {name} was silent for too long")
    return bad_gateway(f"the connection to upstream {name} broke", True)


def _why(error: BaseException) -> str:
    """What the system said about a connection that could not be made."""
    cause: BaseException | None = error
    for _ in range(MAX_CAUSES):
        if cause is None:
            break
        if isinstance(cause, socket.gaierror):
            return cause.strerror or "no such host"
        if isinstance(cause, OSError) and cause.errno:
            return os.strerror(cause.errno)  # the exception's own words may hold the address
        cause = cause.__cause__ or cause.__context__
    if isinstance(error, httpx2.TimeoutException):
        return "it does not take the connection in time"
    return str(error)[:MAX_WHY] or type(error).__name__


def _envelope(body: bytes) -> dict[str, Any]:
    """``message``, ``param`` and ``code`` of either protocol's envelope, or of the plainer ones that servers use."""
    try:
        value = json.loads(body)
    except (ValueError, RecursionError):
        return {}
    value = value if isinstance(value, dict) else {}
    inner = value.get("error")
    if isinstance(inner, dict):
        return inner | {"message": _text(inner.get("message"))}
    plain = (_text(item) for item in (inner, value.get("message"), value.get("detail")))
    return {"message": next((item for item in plain if item), None)}


def _page(status: int, headers: Mapping[str, str]) -> str:
    """What is said about a body that is no error envelope; a page for people has no place in a message."""
    if 300 <= status < 400:
        return f"it redirects (status {status}), which is not followed; give the address it really has"
    kind = headers.get("content-type", "").partition(";")[0] or "no content type"
    return f"status {status} with a body that is no error message ({kind})"


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) else None


def _clean(message: str, secret: str | None) -> str:
    message = message.encode("utf-8", "replace").decode()
    if secret:
        message = message.replace(secret, "[key]")
    return message if len(message) <= MAX_MESSAGE else message[: MAX_MESSAGE - 3] + "..."


def _retry_after(headers: Mapping[str, str]) -> float | None:
    """Seconds to wait, from ``retry-after-ms`` or ``retry-after`` in seconds or as a date; ``None`` when useless."""
    milliseconds = _number(headers.get("retry-after-ms"))
    value = headers.get("retry-after", "")
    seconds = milliseconds / 1000 if milliseconds is not None else _number(value)
    if seconds is None:
        seconds = _until(value)
    return min(seconds, MAX_RETRY_AFTER_S) if seconds is not None and seconds > 0 else None


def _number(value: str | None) -> float | None:
    try:
        number = float(value or "")
    except ValueError:
        return None
    return number if math.isfinite(number) else None


def _until(date: str) -> float | None:
    try:
        return parsedate_to_datetime(date).timestamp() - time.time()
    except (TypeError, ValueError, OverflowError):
        return None
