"""Reading a request body that somebody else wrote: bounded in size, time and nesting, and real JSON."""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import Mapping
from typing import Any, NoReturn

from llmlab.api.errors import ApiError
from llmlab.gateway.disconnect import ClientLeft, Receive

READ_TIMEOUT_S = 30.0
MAX_SEPARATORS = 1_000_000
"""Commas and brackets of a body, a bound of its JSON values: 32 MiB of nothing else would take gigabytes, and the JSON
parser lets nothing else run meanwhile. No model's context holds as many."""
THREAD_BYTES = 256 * 1024
"""Bodies above this are parsed on another thread, so that other exchanges go on."""

CLOSE = {"connection": "close"}


def _too_large(limit: int) -> ApiError:
    return ApiError("request_too_large", f"the request body exceeds {limit} bytes", headers=CLOSE)


def check_head(headers: Mapping[str, str], limit: int) -> None:
    """Refuse what the head already shows to be unreadable: too long, or compressed."""
    if headers.get("content-encoding", "identity").strip().lower() not in ("", "identity"):
        raise ApiError(
            "invalid_request_error",
            "compressed request bodies are not accepted: send the JSON without content-encoding",
            status=415,
        )
    length = headers.get("content-length", "")
    if length.isdecimal() and int(length[:20]) > limit:
        raise _too_large(limit)


async def read_body(
    receive: Receive, headers: Mapping[str, str], limit: int, timeout_s: float = READ_TIMEOUT_S
) -> bytes:
    """The whole body. Raises ``ApiError`` 413, 415 or, after ``timeout_s``, 408; ``ClientLeft`` when it breaks off.

    At most ``limit`` bytes are kept; a sender of more is cut off.
    """
    check_head(headers, limit)
    try:
        async with asyncio.timeout(timeout_s):
            return await _read_all(receive, limit)
    except TimeoutError as error:
        message = f"the request body did not arrive within {timeout_s:g} s"
        raise ApiError("timeout_error", message, status=408, headers=CLOSE) from error


async def _read_all(receive: Receive, limit: int) -> bytes:
    body, more = bytearray(), True
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientLeft
        body += message.get("body", b"")
        if len(body) > limit:
            raise _too_large(limit)
        more = message.get("more_body", False)
    return bytes(body)


async def parse_body(body: bytes, max_depth: int) -> Any:
    """:func:`parse_json`, off the event loop when it may take long."""
    if len(body) > THREAD_BYTES:
        return await asyncio.to_thread(parse_json, body, max_depth)
    return parse_json(body, max_depth)


def parse_json(body: bytes, max_depth: int) -> Any:
    """The value in a body. Raises ``ApiError`` 400 for what is not JSON in UTF-8, deep nesting, NaN and infinities.

    A key that occurs twice keeps its last value, as everywhere in Python.
    """
    if sum(map(body.count, (b",", b"[", b"{"))) > MAX_SEPARATORS:
        raise _invalid(f"the body has more than {MAX_SEPARATORS} commas and brackets")
    try:
        value = json.loads(body.decode("utf-8"), parse_constant=_refuse_constant)
    except RecursionError:
        raise _too_deep(max_depth) from None
    except UnicodeDecodeError as error:
        raise _invalid(f"the body is not UTF-8: {error.reason} at byte {error.start}") from error
    except ValueError as error:  # JSONDecodeError, integers of thousands of digits, constants
        raise _invalid(f"the body is not valid JSON: {error}") from error
    _check_values(value, max_depth)
    return value


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a JSON number")


def _check_values(value: Any, max_depth: int) -> None:
    """Walk level by level, so that no nesting can exhaust the stack."""
    level, depth = [value], 0
    while level:
        if any(type(item) is float and not math.isfinite(item) for item in level):
            raise _invalid("the body is not valid JSON: a number is out of range")
        level = [item for item in level if isinstance(item, dict | list)]
        depth += bool(level)
        if depth > max_depth:
            raise _too_deep(max_depth)
        level = [child for item in level for child in (item.values() if isinstance(item, dict) else item)]


def _invalid(message: str) -> ApiError:
    return ApiError("invalid_request_error", message)


def _too_deep(max_depth: int) -> ApiError:
    return _invalid(f"the body is nested more than {max_depth} levels deep")
